"""Workers come and go while tools are at work: busy, told to go, killed.

What `test_worker_process` shows of a departing worker is not repeated here. The tools stand in
this module: a worker imports it from here.
"""

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from commitline import Agent, App, Effect, ScriptedModel, Tool, ToolContext, tool
from commitline.activities.contract.turns import CALL_MODEL
from commitline.activities.model.scripted_model import call, say
from commitline.examples.shop import payments
from commitline.tests.crash.stage import Aftermath, Played, Scene, Script, Stage, until

# --- what the workers run

_FOLDER: Final = Path(os.environ.get("CRASH_FOLDER", "."))
_HOLD: Final = _FOLDER / os.environ.get("HOLD", "hold")
_BURNS_SECONDS: Final = 8.0
_STEPS: Final = 4


def _note(name: str) -> None:
    with (_FOLDER / name).open("a") as file:
        file.write(f"{time.time()}\n")


async def _charge(order_id: str, key: str | None) -> dict[str, Any]:
    return await payments.post("/charges", {"order_id": order_id}, idempotency_key=key)


@tool(effect=Effect.IDEMPOTENT)
def burn() -> str:
    """Hold on to the interpreter, as a computation in Python does."""
    _note("burner_starts")
    end = time.monotonic() + _BURNS_SECONDS
    while time.monotonic() < end:
        sum(range(100_000))
    _note("burner_ends")
    return "burnt"


@tool(effect=Effect.IDEMPOTENT)
async def step(number: int) -> int:
    await asyncio.sleep(0.05)
    _note("steps")
    return number


@tool(effect=Effect.IDEMPOTENT)
async def charge_and_wait(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    answer = await _charge(order_id, ctx.idempotency_key)
    while _HOLD.exists():  # noqa: ASYNC110 - another process takes it away
        await asyncio.sleep(0.02)
    return answer


@tool(effect=Effect.IDEMPOTENT)
async def charge_and_complain(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Make an error of one's own out of a cancellation, as some client libraries do."""
    try:
        answer = await _charge(order_id, ctx.idempotency_key)
        while _HOLD.exists():  # noqa: ASYNC110 - another process takes it away
            await asyncio.sleep(0.02)
    except asyncio.CancelledError as err:
        raise RuntimeError("the worker is shutting down") from err
    return answer


@tool(effect=Effect.IDEMPOTENT)
async def charge_and_take_no_notice(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Go on in spite of every cancellation."""
    answer = await _charge(order_id, ctx.idempotency_key)
    while _HOLD.exists():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.02)
    return answer


@tool(effect=Effect.IDEMPOTENT)
def charge_in_a_thread(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    answer = asyncio.run(_charge(order_id, ctx.idempotency_key))
    while _HOLD.exists():
        time.sleep(0.02)
    return answer


@tool(effect=Effect.IDEMPOTENT, isolation="process")
def charge_in_a_process(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    answer = asyncio.run(_charge(order_id, ctx.idempotency_key))
    while _HOLD.exists():
        time.sleep(0.02)
    return answer


@tool(effect=Effect.AT_MOST_ONCE)
def charge_blindly_in_a_thread(order_id: str) -> dict[str, Any]:
    answer = asyncio.run(_charge(order_id, None))
    while _HOLD.exists():
        time.sleep(0.02)
    return answer


def _app(made: Tool) -> App:
    model = ScriptedModel("scripted", [call((made.name, {"order_id": "4821"})), say("done")])
    return App([Agent("support", model=model, instructions="", tools=[made])])


waiting = _app(charge_and_wait)
complaining = _app(charge_and_complain)
deaf = _app(charge_and_take_no_notice)
thread = _app(charge_in_a_thread)
process = _app(charge_in_a_process)
blind_thread = _app(charge_blindly_in_a_thread)

busy = App(
    [
        Agent(
            "burner",
            model=ScriptedModel("burner", [call(("burn", {})), say("done")]),
            instructions="",
            tools=[burn],
        ),
        Agent(
            "stepper",
            model=ScriptedModel(
                "stepper",
                [*(call(("step", {"number": number})) for number in range(_STEPS)), say("done")],
            ),
            instructions="",
            tools=[step],
        ),
    ]
)

_HERE: Final = "commitline.tests.crash.test_deploys"


async def _have_arrived(scene: Scene, number: int) -> bool:
    return await asyncio.to_thread(scene.provider.requests, "charge") == number


def _notes(scene: Scene, name: str) -> list[float]:
    path = scene.log.with_name(name)
    return [float(line) for line in path.read_text().split()] if path.exists() else []


# --- told to go


@dataclass(frozen=True)
class Departure:
    """A worker was told to go while a charge was under way; another one finished the run."""

    status: int
    row_then: str
    """The state of the row when the first worker had gone."""
    after: Aftermath


def _leave_while_charging(app: str, *, grace: str, delay_seconds: float = 0.0) -> Script[Departure]:
    """Tell the worker to go in mid-charge; without a delay the call outlasts any grace."""

    async def play(scene: Scene) -> Departure:
        scene.provider.behave(delay_seconds=delay_seconds)
        if not delay_seconds:
            scene.hold.touch()
        await scene.start()
        with scene.worker(f"{_HERE}:{app}", COMMITLINE_GRACE_SECONDS=grace) as worker:
            await until(lambda: _have_arrived(scene, 1))
            status = await asyncio.to_thread(worker.terminate)
        (row,) = await scene.actions()
        scene.hold.unlink(missing_ok=True)
        return Departure(status, row.state, await scene.finish(f"{_HERE}:{app}"))

    return play


_REPEATED: Final = ("complaining", "deaf", "process")
_NOT_REPEATED: Final = ("blind_thread",)


@pytest.fixture(scope="module")
def departures(stage: Stage) -> Played[Departure]:
    return stage.play(
        {
            "thread, in time": _leave_while_charging("thread", grace="30", delay_seconds=2),
            "process, in time": _leave_while_charging("process", grace="30", delay_seconds=2),
            **{app: _leave_while_charging(app, grace="1") for app in (*_REPEATED, *_NOT_REPEATED)},
        }
    )


@pytest.mark.parametrize("app", ["thread", "process"])
def test_a_call_outside_the_event_loop_is_finished_too_within_the_grace_period(
    departures: Played[Departure], app: str
) -> None:
    left = departures[f"{app}, in time"]

    assert (left.status, left.row_then) == (0, "ok")
    assert len(left.after.sent["charge"]) == 1
    assert left.after.actions[0].tries == 1
    assert left.after.results[0].status == "ok"


@pytest.mark.parametrize("app", _REPEATED)
def test_a_call_that_outlasts_the_grace_period_is_resumed_elsewhere_whatever_it_makes_of_it(
    departures: Played[Departure], app: str
) -> None:
    left = departures[app]
    first, second = left.after.sent["charge"]

    assert (left.status, left.row_then) == (0, "dispatched")
    assert first == second
    assert left.after.effects == {"charge:4821": 1}
    assert [(row.state, row.tries) for row in left.after.actions] == [("ok", 2)]
    assert [result.status for result in left.after.results] == ["ok"]


@pytest.mark.parametrize("app", _NOT_REPEATED)
def test_a_call_that_outlasts_the_grace_period_and_must_not_be_repeated_is_unknown(
    departures: Played[Departure], app: str
) -> None:
    left = departures[app]

    assert left.status == 0
    assert len(left.after.sent["charge"]) == 1
    assert left.after.effects == {"charge:4821": 1}
    assert [row.state for row in left.after.actions] == ["unknown"]
    assert [result.status for result in left.after.results] == ["unknown"]


@pytest.mark.parametrize("app", [*_REPEATED, *_NOT_REPEATED])
def test_the_model_is_told_nothing_of_a_worker_that_goes(
    departures: Played[Departure], app: str
) -> None:
    told = " ".join(
        result.content.lower()
        for message in departures[app].after.conversation
        for result in message.results
    )

    assert told
    for word in ("worker", "shut", "cancel", "terminat", "sigterm", "grace"):
        assert word not in told


# --- busy


async def test_a_tool_that_burns_the_processor_stops_neither_its_worker_nor_other_runs(
    scene: Scene,
) -> None:
    async def burns() -> bool:
        return bool(_notes(scene, "burner_starts"))

    with scene.worker(f"{_HERE}:busy"):
        burner = await scene.client.start("burner", "Burn.", id=f"{scene.run_id}-burner")
        await until(burns)
        stepper = await scene.client.start("stepper", "Step.", id=f"{scene.run_id}-stepper")
        results = [(await run.result()).output for run in (stepper, burner)]

    (row,) = await burner.actions()
    starts, ends = _notes(scene, "burner_starts"), _notes(scene, "burner_ends")
    steps = _notes(scene, "steps")
    assert results == ["done", "done"]
    assert (len(starts), len(ends)) == (1, 1)
    assert (row.state, row.tries) == ("ok", 1)
    assert len(steps) == _STEPS
    assert len([at for at in steps if at < ends[0]]) >= 2
    assert [action.tries for action in await stepper.actions()] == [1] * _STEPS


# --- killed


async def test_a_run_whose_worker_was_killed_is_at_its_next_step_soon_after_the_heartbeat(
    scene: Scene,
) -> None:
    heartbeat_seconds, slack_seconds = 1, 2
    started = '"event": "worker.started"'

    async def stands_by() -> bool:
        return scene.log.read_text().count(started) == 2

    scene.log.with_name("hold_a").touch()
    await scene.start()
    with scene.worker(f"{_HERE}:waiting", HOLD="hold_a") as killed:
        await until(lambda: _have_arrived(scene, 1))
        with scene.worker(f"{_HERE}:waiting", HOLD="hold_b"):
            await until(stands_by)
            at = time.time()
            killed.kill()
            after = await scene.aftermath()

    history = await scene.temporal.get_workflow_handle(scene.run_id).fetch_history()
    asked = [
        event.event_time.ToMicroseconds() / 1e6
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL
    ]
    first, second = after.sent["charge"]
    assert len(asked) == 2
    assert asked[1] - at < heartbeat_seconds + 1 + slack_seconds
    # Its next task was offered to the other worker at once, and not first to the dead one.
    assert not [
        event
        for event in history.events
        if event.HasField("workflow_task_timed_out_event_attributes")
    ]
    assert first == second
    assert after.effects == {"charge:4821": 1}
    assert (after.row("charge_and_wait").state, after.output) == ("ok", "done")
