"""The crash tests once more, for turns and calls that are local activities.

Several of them share a workflow task, and the server knows nothing of them before its end. A worker
that dies in it takes all of them along, and the next one begins the task anew.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest
from temporalio.api.enums.v1 import EventType

from commitline.errors import RunFailed
from commitline.tests.crash.stage import Aftermath, Played, Scene, Script, Stage, until
from commitline.tests.crash.test_crash_windows import CHARGE_BODY, CHARGE_REQUESTS, LOST_MAILS
from commitline.tests.histories import activities_in, local_activities_in

SHOP: Final = "local_mode:app"
TILL: Final = "local_mode:till"
TURNS: Final = "local_mode:turns"
TAKES_BACK: Final = "local_mode:takes_back"
CHARGE: Final = ("order-4821-charge", CHARGE_BODY)

_IN_CI: Final = ("before_record@charge_card", "after_effect@send_receipt")
"""The windows that CI has time for; `make test-full` goes through all."""
_OTHERS: Final = [
    f"{point}@{tool}"
    for tool in ("charge_card", "send_receipt")
    for point in CHARGE_REQUESTS
    if f"{point}@{tool}" not in _IN_CI
]


# --- killed in each window


def _crashes(points: Sequence[str]) -> dict[str, Script[Aftermath]]:
    """The shop's run, its worker killed at each point and another one taking over."""

    def at(point: str) -> Script[Aftermath]:
        async def play(scene: Scene) -> Aftermath:
            return await scene.crash_and_finish(SHOP, at=point)

        return play

    return {point: at(point) for point in points}


@pytest.fixture(scope="module")
def crashed(stage: Stage) -> Played[Any]:
    """What became of the runs that CI has no time for."""
    return stage.play({"dropped": _dropped, "stopped": _stopped, **_crashes(_OTHERS)})


@pytest.mark.parametrize("point", _IN_CI)
def test_a_run_whose_worker_is_killed_has_each_effect_once(others: Played[Any], point: str) -> None:
    _assert_each_effect_once(others[point], point)


@pytest.mark.slow
@pytest.mark.parametrize("point", _OTHERS)
def test_wherever_its_worker_is_killed_a_run_has_each_effect_once(
    crashed: Played[Aftermath], point: str
) -> None:
    _assert_each_effect_once(crashed[point], point)


def _assert_each_effect_once(after: Aftermath, point: str) -> None:
    at, _, killed = point.partition("@")
    assert after.effects["charge:4821"] == 1
    assert set(after.sent["charge"]) == {CHARGE}
    assert after.effects.get("mail:4821", 0) <= 1
    assert after.told("charge_card").status == "ok"
    mail = after.row("send_receipt")
    assert after.told("send_receipt").status == mail.state
    if killed == "send_receipt":
        assert mail.state == ("unknown" if at in LOST_MAILS else "ok")
    if mail.state == "ok":
        assert after.effects["mail:4821"] == 1
    assert [result.call_id for result in after.results] == ["call_1", "call_2", "call_3"]


# --- several turns in one workflow task


@dataclass(frozen=True)
class Turns:
    """A worker was killed after some turns, all in one workflow task."""

    after: Aftermath
    markers_then: int
    """How many of them the server knew of when the worker had died."""
    local: list[str]
    """The local activities of the whole history."""
    by_the_server: list[str]


async def _several_turns(scene: Scene) -> Turns:
    await scene.start()
    await scene.crash(TURNS, at="after_effect@note")
    handle = scene.temporal.get_workflow_handle(scene.run_id)
    markers = len(local_activities_in((await handle.fetch_history()).events))
    after = await scene.finish(TURNS)
    events = (await handle.fetch_history()).events
    local = local_activities_in(events)
    every = activities_in(events)
    return Turns(after, markers, local, [name for name in every if name not in local])


def test_turns_that_the_server_never_knew_of_are_not_done_again(
    others: Played[Any],
) -> None:
    left: Turns = others["turns"]

    assert left.markers_then == 0, "all was lost with the workflow task"
    assert left.after.turns == [0, 1, 2, 3, 4], "no completion was paid for twice"
    assert left.after.effects == {"charge:4821": 1, "mail:ada@example.com": 1}
    assert (len(left.after.sent["charge"]), len(left.after.sent["mail"])) == (1, 1)
    assert left.after.row("note").state == "unknown"
    assert left.by_the_server == []


def test_a_read_that_answers_otherwise_the_second_time_changes_nothing_that_was_decided(
    others: Played[Any],
) -> None:
    after: Aftermath = others["turns"].after

    assert after.row("note").args == '{"number":0}'
    assert "look ok 0" in after.output, "what the model saw first"
    assert "note unknown" in after.output


# --- the first workflow task is made anew


async def _lost(scene: Scene) -> Aftermath:
    """Kill the worker in the run's first workflow task, and lose all that the ledger has of it."""
    await scene.start()
    await scene.crash(TURNS, at="after_effect@note")
    async with await psycopg.AsyncConnection.connect(scene.settings.database_url) as connection:
        await connection.execute(
            "truncate agent_runs, agent_threads, agent_actions, agent_domain_keys cascade"
        )
    return await scene.finish(TURNS)


def test_a_run_that_a_failover_lost_with_its_first_task_sends_nothing_again_without_a_key(
    others: Played[Any],
) -> None:
    after: Aftermath = others["lost"]

    assert len(after.sent["mail"]) == 1
    assert after.row("send_mail").state == "unknown"
    assert after.effects == {"charge:4821": 1, "mail:ada@example.com": 1}
    assert after.row("charge_card").state == "ok", "it was sent again, under its key"


@dataclass(frozen=True)
class Stopped:
    """A run was stopped, to be undone, when its first worker had died and no other was there."""

    told: str
    effects: dict[str, int]
    state: str
    """Of its undo."""


async def _stopped(scene: Scene) -> Stopped:
    run = await scene.start()
    await scene.crash(TAKES_BACK, at="after_record@send_mail")
    await run.stop(reason="wrong customer", compensate=True, wait_seconds=0)
    with scene.worker(TAKES_BACK), pytest.raises(RunFailed) as raised:
        async with asyncio.timeout(60):
            await run.result()
    stats = await asyncio.to_thread(scene.provider.stats)
    report = await run.undo_report()
    return Stopped(str(raised.value), stats["effects"], report.state)


@pytest.mark.slow
def test_an_undo_that_was_ordered_before_the_first_task_is_made_anew_is_carried_out(
    crashed: Played[Any],
) -> None:
    left: Stopped = crashed["stopped"]

    assert "was canceled" in left.told
    assert left.effects == {"charge:1": 1, "refund:1": 1, "mail:ada": 1}
    assert left.state == "compensated"


# --- told to go


@dataclass(frozen=True)
class Gone:
    """A worker was told to go in the middle of a workflow task."""

    status: int
    row_then: str
    turns_then: list[int]
    """The model turns before it had gone."""
    after: Aftermath


async def _told_to_go(scene: Scene) -> Gone:
    scene.provider.behave(delay_seconds=1.0)
    await scene.start()
    with scene.worker(TILL, COMMITLINE_GRACE_SECONDS="10") as worker:
        await until(lambda: _arrived(scene))
        status = await asyncio.to_thread(worker.terminate)
    (row,) = await scene.actions()
    return Gone(status, row.state, scene.turns(), await scene.finish(TILL))


async def _arrived(scene: Scene, number: int = 1) -> bool:
    return await asyncio.to_thread(scene.provider.requests, "charge") == number


def test_a_worker_that_is_told_to_go_finishes_its_call_and_hands_the_run_on(
    others: Played[Any],
) -> None:
    left: Gone = others["told to go"]

    assert (left.status, left.row_then) == (0, "ok")
    assert left.turns_then == [0], "a run of short turns would keep it for ever"
    assert left.after.sent["charge"] == [CHARGE]
    assert left.after.turns == [0, 1]
    assert left.after.told("charge_card").status == "ok"


# --- frozen, and dropped from the cache


async def _dropped(scene: Scene) -> Aftermath:
    """Freeze a worker in a call until its workflow task has timed out, and wake it."""
    scene.hold.touch()
    await scene.start()
    with scene.worker(TILL) as worker:
        await until(lambda: _arrived(scene))
        assert worker.process is not None
        os.kill(worker.process.pid, signal.SIGSTOP)
        await until(lambda: _timed_out(scene))
        os.kill(worker.process.pid, signal.SIGCONT)
        await until(lambda: _arrived(scene, 2))
        scene.hold.unlink()
        return await scene.aftermath()


async def _timed_out(scene: Scene) -> bool:
    history = await scene.temporal.get_workflow_handle(scene.run_id).fetch_history()
    timed_out = EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT
    return any(event.event_type == timed_out for event in history.events)


@pytest.mark.slow
def test_a_call_that_is_cancelled_with_its_workflow_task_was_not_stopped_and_is_taken_over(
    crashed: Played[Any],
) -> None:
    after: Aftermath = crashed["dropped"]

    assert after.sent["charge"] == [CHARGE] * 2
    assert after.effects == {"charge:4821": 1}
    assert after.row("charge_card").state == "ok"
    assert after.told("charge_card").status == "ok"


# --- all scenes, side by side


@pytest.fixture(scope="module")
def others(stage: Stage) -> Played[Any]:
    """What became of the other runs."""
    return stage.play(
        {
            **_crashes(_IN_CI),
            "turns": _several_turns,
            "lost": _lost,
            "told to go": _told_to_go,
        }
    )
