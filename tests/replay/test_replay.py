"""Histories of finished runs replay on the code as it is now."""

from __future__ import annotations

import os
import subprocess
import sys
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


@pytest.mark.parametrize("seed", ["1", "2", "3"])
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


@pytest.mark.parametrize(
    ("module", "name", "changed"),
    [
        (agent_run, "OPEN_RUN", "commitline.begin_run"),
        (turn, "position", lambda step, call, *, epoch=0: f"{step}-{call}"),
    ],
    ids=["another first activity", "other positions"],
)
async def test_changed_code_does_not_replay(
    module: ModuleType, name: str, changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, changed)

    result = await replaying.replay(replaying.HISTORIES / "errors_and_an_unknown_tool.json")

    assert isinstance(result.replay_failure, NondeterminismError)
