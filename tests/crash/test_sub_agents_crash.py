"""Two sub-agents in one message: wherever a worker is killed, each keeps its own, and does it once.

The worker that takes over has the *other* one slow: what was done first, is done last.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Final

import pytest

from commitline.identity import within_run
from commitline.tests.crash.stage import Aftermath, Played, Scene, Script, Stage

APP: Final = "nesting:app"
POINTS: Final = (
    "after_claim@ship",
    "after_effect@charge",
    "before_record@ship",
    "completion_recorded",
)
SEEDS: Final = (1,)
PLAYS: Final = (*POINTS, *(f"seed {seed}" for seed in SEEDS))


@dataclass(frozen=True)
class Nested:
    """What is left, and what is left when the whole has been replayed."""

    first: Aftermath
    again: Aftermath


@pytest.fixture(scope="module")
def played(stage: Stage) -> Played[Nested]:
    at_points = {point: _killed_at(point) for point in POINTS}
    return stage.play(at_points | {f"seed {seed}": _killed_at_random(seed) for seed in SEEDS})


def _killed_at(point: str) -> Script[Nested]:
    async def play(scene: Scene) -> Nested:
        await scene.start()
        with scene.worker(APP, crash_at=point, SLOW_ORDER="1") as worker:
            await asyncio.to_thread(worker.wait_until_killed)
        return await _finish(scene)

    return play


def _killed_at_random(seed: int) -> Script[Nested]:
    chosen = random.Random(seed)

    async def play(scene: Scene) -> Nested:
        await scene.start()
        for slow in "121":
            with scene.worker(APP, SLOW_ORDER=slow) as worker:
                await asyncio.sleep(chosen.uniform(1.5, 3.0))  # an interpreter's start among it
                worker.kill()
        return await _finish(scene)

    return play


async def _finish(scene: Scene) -> Nested:
    with scene.worker(APP, SLOW_ORDER="2"):
        first = await scene.aftermath()
        # Everything anew, from the first model turn, in another execution of the parent.
        await scene.client.run(scene.run_id).reset(to_step=0)
        return Nested(first, await scene.aftermath())


@pytest.mark.parametrize("play", PLAYS)
def test_each_of_the_four_steps_has_a_row_of_its_own_and_one_effect(
    played: Played[Nested], play: str
) -> None:
    after = played[play].first
    rows = {within_run(row.run_key, row.position): row for row in after.actions}

    assert {at: (row.tool, json.loads(row.args)["order_id"]) for at, row in rows.items()} == {
        "0.0/0.0": ("charge", "1"),
        "0.0/1.0": ("ship", "1"),
        "0.1/0.0": ("charge", "2"),
        "0.1/1.0": ("ship", "2"),
    }
    assert {row.state for row in rows.values()} == {"ok"}
    assert len({row.idempotency_key for row in rows.values()}) == 4
    assert after.effects == {"charge:1": 1, "charge:2": 1, "ship:1": 1, "ship:2": 1}


@pytest.mark.parametrize("play", PLAYS)
def test_each_call_is_answered_by_its_own_agent_with_its_own_results(
    played: Played[Nested], play: str
) -> None:
    after = played[play].first
    results = {
        within_run(row.run_key, row.position): json.loads(row.result or "") for row in after.actions
    }

    assert [(told.status, json.loads(told.content)) for told in after.results] == [
        ("ok", f"1: {results['0.0/0.0']}, {results['0.0/1.0']}"),
        ("ok", f"2: {results['0.1/0.0']}, {results['0.1/1.0']}"),
    ]
    assert after.output == "both are done"


@pytest.mark.parametrize("play", PLAYS)
def test_a_replay_of_the_whole_reads_everything_back_and_sends_nothing(
    played: Played[Nested], play: str
) -> None:
    first, again = played[play].first, played[play].again

    assert [(row.key, row.result, row.tries) for row in again.actions] == [
        (row.key, row.result, row.tries) for row in first.actions
    ]
    assert again.results == first.results
    assert again.sent == first.sent
