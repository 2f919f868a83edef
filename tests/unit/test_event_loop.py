"""The event loop of a worker's process: uvloop's where that is installed, else asyncio's."""

from __future__ import annotations

import asyncio
import sys

import pytest

from commitline.activities.runner.tool_runner import ToolRunner
from commitline.process import run_event_loop


async def _here() -> str:
    return type(asyncio.get_running_loop()).__module__


async def _where_tools_run() -> str:
    with ToolRunner() as runner:
        return str(await runner.run_async("look", _here))


def test_a_worker_uses_uvloop_where_it_is_installed() -> None:
    assert run_event_loop(_here()).startswith("uvloop")


def test_a_worker_needs_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    assert run_event_loop(_here()).startswith("asyncio")


def test_the_event_loop_of_the_tools_stays_that_of_asyncio() -> None:
    assert run_event_loop(_where_tools_run()).startswith("asyncio")
