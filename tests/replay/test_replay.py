"""Histories of finished runs replay on the code as it is now."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from temporalio.workflow import NondeterminismError

from commitline.workflows import agent_run, turn

from . import replaying

HISTORIES = replaying.recorded()


def test_there_is_a_history_of_every_way_that_a_run_ends() -> None:
    assert [path.stem for path in HISTORIES] == [
        "asked_midway",
        "canceled",
        "errors_and_an_unknown_tool",
        "forked",
        "local_turns",
        "out_of_steps",
        "outcome_recorded_later",
        "past_its_deadline",
        "plain_answer",
        "plan_undone",
        "structured_output",
        "sub_agent_of_another",
        "sub_agents",
        "three_calls",
        "three_calls_of_a_thread",
        "turn_recorded_later",
        "two_requests_of_a_thread",
        "within_its_deadline",
    ]


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_run_replays(path: Path) -> None:
    result = await replaying.replay(path)

    assert result.replay_failure is None


@pytest.mark.parametrize(
    "seed", [*(pytest.param(seed, marks=pytest.mark.slow) for seed in ("1", "2")), "3"]
)
def test_recorded_runs_replay_whatever_order_sets_and_hashes_have(seed: str) -> None:
    replayed = subprocess.run(
        [sys.executable, replaying.__file__],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )

    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert replayed.stdout.count(": ok\n") == len(HISTORIES)


def change(monkeypatch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Change the source of a module, as the sandbox loads it for a run."""
    get_code = SourceFileLoader.get_code

    def changed(loader: SourceFileLoader, name: str) -> Any:
        if name != module.__name__:
            return get_code(loader, name)
        source = Path(loader.path).read_text(encoding="utf-8")
        assert old in source
        return compile(source.replace(old, new), loader.path, "exec")

    monkeypatch.setattr(SourceFileLoader, "get_code", changed)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (agent_run, "(Opened, OPEN_RUN,", "(Opened, 'begin_run',"),
        (turn, "position(self.step, index,", "position(self.step, index + 1,"),
    ],
    ids=["another first activity", "other positions"],
)
async def test_changed_code_does_not_replay(
    module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, module, old, new)

    result = await replaying.replay(replaying.HISTORIES / "errors_and_an_unknown_tool.json")

    assert isinstance(result.replay_failure, NondeterminismError)


@pytest.mark.parametrize("fault", ["datetime.datetime.now()", "random.random()"])
async def test_a_call_that_would_not_replay_is_refused_in_our_workflows(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    imported, line = f"import {fault.partition('.')[0]}", "        self._progress.steps ="
    change(monkeypatch, turn, line, f"        {imported}\n        {fault}\n{line}")

    result = await replaying.replay(replaying.HISTORIES / "three_calls.json")

    assert result.replay_failure is not None
    assert "restricted" in caplog.text
