"""Our logger: what writes its events may fail, and no call of it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

import commitline
from commitline.logs import Log


@pytest.fixture
def _broken() -> Iterator[None]:
    kept = structlog.get_config()

    def breaks(*event: Any) -> Any:
        raise BrokenPipeError(32, "Broken pipe")

    structlog.configure(processors=[breaks])
    yield
    structlog.configure(**kept)


@pytest.mark.usefixtures("_broken")
def test_an_event_that_cannot_be_written_is_lost_and_nothing_else() -> None:
    log = Log().bind(tool="act")

    log.info("tool.raised", error="ValueError")
    log.warning("tool.timed_out")
    log.error("ledger.row_lost")


def test_what_is_bound_is_part_of_every_event() -> None:
    with capture_logs() as logs:
        Log({"run_key": "r"}).bind(tool="act").info("tool.raised", error="ValueError")

    assert logs == [
        {
            "event": "tool.raised",
            "log_level": "info",
            "run_key": "r",
            "tool": "act",
            "error": "ValueError",
        }
    ]


def test_nothing_else_of_ours_makes_a_logger() -> None:
    root = Path(commitline.__path__[0])
    folders = ("activities", "handles", "ledger", "workflows")
    files = [*root.glob("*.py"), *(one for name in folders for one in (root / name).rglob("*.py"))]
    made = {
        file.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"get_logger", "getLogger"}
    }

    assert made == {"logs.py"}
