"""Shared state when workers die and the ledger goes away: each change counts, and counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psycopg
import pytest

from commitline.activities.contract.conversation import Message
from commitline.activities.contract.outcomes import RECORD_OUTCOME
from commitline.activities.contract.turns import RECORD_TURN
from commitline.canonical import Json, parse
from commitline.testing.proxy import TcpProxy
from commitline.tests.crash.stage import Played, Scene, Script, Stage, until

_APP: Final = "sharing:sharing"
_POINTS: Final = ("before_record", "after_record", "completion_recorded")
_LATER: Final = ("completion_recorded",)
"""Of these the second turn's, which has merged the changes."""


@dataclass(frozen=True)
class Left:
    """What is left of a run."""

    states: Sequence[tuple[int, Json]]
    conversation: Sequence[Message]
    given: Sequence[int]
    """The pens that each call of the tool was given, its repetitions among them."""


async def _left(scene: Scene) -> Left:
    after = await scene.aftermath()
    url = scene.settings.database_url
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute("select version, state::text from agent_states")
        states = [(version, parse(text)) for version, text in await cursor.fetchall()]
    given = scene.hold.with_name("given").read_text().split()
    return Left(states, after.conversation, [int(pens) for pens in given])


def _killed(point: str) -> Script[Left]:
    later = point in _LATER

    async def play(scene: Scene) -> Left:
        await scene.start()
        told = {"CRASH_LATER": point} if later else {}
        with scene.worker(_APP, crash_at=None if later else point, **told) as worker:
            await asyncio.to_thread(worker.wait_until_killed)
        with scene.worker(_APP):
            return await _left(scene)

    return play


async def _ledger_away(scene: Scene) -> Left:
    """Cut the way to the ledger before the outcomes, and before the turn that merges them."""
    thinking = scene.hold.with_name("thinking")
    scene.hold.touch()
    thinking.touch()
    await scene.start()
    url = scene.settings.database_url
    with TcpProxy.before(url) as proxy:
        behind = {"COMMITLINE_DATABASE_URL": proxy.url(url), "COMMITLINE_STATEMENT_SECONDS": "1"}
        with scene.worker(_APP, **behind):
            for hold, activity in ((scene.hold, RECORD_OUTCOME), (thinking, RECORD_TURN)):
                await until(partial(_is_there, hold.with_name(f"{hold.name} is there")))
                proxy.cut()
                hold.unlink()
                await until(partial(_has_scheduled, scene, activity))
                proxy.restore()
            return await _left(scene)


async def _is_there(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


async def _has_scheduled(scene: Scene, activity: str) -> bool:
    history = await scene.temporal.get_workflow_handle(scene.run_id).fetch_history()
    return any(
        event.activity_task_scheduled_event_attributes.activity_type.name == activity
        for event in history.events
    )


@pytest.fixture(scope="module")
def played(stage: Stage) -> Played[Left]:
    killed = {point: _killed(point) for point in _POINTS}
    return stage.play({**killed, "ledger away": _ledger_away})


@pytest.mark.parametrize("name", [*_POINTS, "ledger away"])
def test_each_change_is_merged_once_and_a_conflict_is_told_once(
    played: Played[Left], name: str
) -> None:
    left = played[name]

    assert left.states == [(2, {"place": "attic by 0.1", "pens": 2})]
    assert set(left.given) == {0}, "every attempt was given what its turn had left"
    notices = [one.text for one in left.conversation if one.text.startswith("[notice]")]
    assert len(notices) == 1
    assert '0.0 to "hall by 0.0", 0.1 to "attic by 0.1"' in notices[0]


def test_a_call_whose_outcome_is_on_record_is_not_made_again(played: Played[Left]) -> None:
    assert len(played["ledger away"].given) == 2
    assert len(played["completion_recorded"].given) == 2
    assert len(played["before_record"].given) > 2
