"""An attempt that was given up is not dead: frozen workers wake up, and two attempts live at once.

The workers are stopped and woken by signals. Their tools are plain functions in threads, which
no cancellation reaches, and stand in this module: a worker imports it from here.
"""

import asyncio
import os
import signal
import time
import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from commitline import NEVER_HAPPENED, Agent, App, Effect, ScriptedModel, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.examples.shop import payments
from commitline.ledger import Action
from commitline.testing.processes import WorkerProcess
from commitline.tests.crash.stage import (
    Aftermath,
    Played,
    Scene,
    Script,
    Stage,
    freeze_in_claim,
    until,
)

# --- what the workers run

_FOLDER: Final = Path(os.environ.get("CRASH_FOLDER", "."))
_ARGUMENTS: Final = {"order_id": "4821", "amount_cents": 4900}


def _held() -> None:
    """Wait while this worker's own file is there."""
    while (_FOLDER / os.environ["HOLD"]).exists():
        time.sleep(0.02)


def _send(order_id: str, amount_cents: int, key: str | None) -> dict[str, Any]:
    body = {"order_id": order_id, "amount_cents": amount_cents, "reference": order_id}
    answer = asyncio.run(payments.post("/charges", body, idempotency_key=key))
    _held()
    return answer


@tool(effect=Effect.IDEMPOTENT)
def charge_by_key(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    return _send(order_id, amount_cents, ctx.idempotency_key)


@tool(effect=Effect.AT_MOST_ONCE)
def charge_blindly(order_id: str, amount_cents: int) -> dict[str, Any]:
    return _send(order_id, amount_cents, None)


async def _look_up(args: dict[str, Any], key: str) -> Any:
    with (_FOLDER / "lookups").open("a") as file:
        file.write(f"{key}\n")
    try:
        return await payments.get(f"/lookup/charge/{args['order_id']}")
    except urllib.error.HTTPError as err:
        if err.code == 404:
            return NEVER_HAPPENED
        raise


@tool(effect=Effect.LOOKUP, lookup=_look_up, lookup_settles_after=timedelta(0))
def charge_by_reference(order_id: str, amount_cents: int) -> dict[str, Any]:
    return _send(order_id, amount_cents, None)


_TOOLS: Final = {
    "idempotent": charge_by_key,
    "at_most_once": charge_blindly,
    "lookup": charge_by_reference,
}


def _app(effect: str) -> App:
    made = _TOOLS[effect]
    model = ScriptedModel("scripted", [call((made.name, _ARGUMENTS)), say("done")])
    return App([Agent("support", model=model, instructions="", tools=[made])])


def _local_app(effect: str, *, seconds: float = 20) -> App:
    model = ScriptedModel("scripted", [call((_TOOLS[effect].name, _ARGUMENTS)), say("done")])
    made = replace(_TOOLS[effect], local=True, tool_timeout=seconds)
    return App([Agent("support", model, "", [made], local=True, model_timeout=seconds)])


idempotent = _app("idempotent")
at_most_once = _app("at_most_once")
lookup = _app("lookup")
idempotent_local = _local_app("idempotent")
at_most_once_local = _local_app("at_most_once")
lookup_local = _local_app("lookup")
idempotent_brief = _local_app("idempotent", seconds=2)
at_most_once_brief = _local_app("at_most_once", seconds=2)
lookup_brief = _local_app("lookup", seconds=2)

# --- how the scenes are played

_HERE: Final = "commitline.tests.crash.test_fencing"
_SETTLED: Final = {"idempotent": "ok", "at_most_once": "unknown", "lookup": "ok"}
"""The state of the row when somebody else has dealt with the action."""


@dataclass(frozen=True)
class Overtaken:
    """What is left when an attempt was overtaken by another one and woke up."""

    after: Aftermath
    row_then: Action
    """Before it woke up."""
    row_woken: Action
    """When it had woken up and gone."""
    row: Action
    """In the end."""
    requests: list[tuple[str | None, str]]
    """Key and body of each."""
    lookups: int
    status: int
    """The exit status of the worker that was frozen."""
    log: str
    """What that worker said."""


Scripts: TypeAlias = Mapping[str, Script[Overtaken]]


def _worker(scene: Scene, effect: str, name: str) -> WorkerProcess:
    """Return a worker with a log, and a file that holds its tools, of its own."""
    worker = scene.worker(
        f"{_HERE}:{effect}",
        HOLD=f"hold_{name}",
        # The answer to a claim is taken up after a long sleep, too.
        COMMITLINE_STATEMENT_SECONDS="60",
    )
    worker.log = scene.log.with_name(f"{name}.log")
    return worker


def _hold(scene: Scene, name: str) -> Path:
    return scene.log.with_name(f"hold_{name}")


def _send_signal(worker: WorkerProcess, number: signal.Signals) -> None:
    assert worker.process is not None
    os.kill(worker.process.pid, number)


def _freeze(worker: WorkerProcess) -> None:
    _send_signal(worker, signal.SIGSTOP)


async def _wake_and_go(worker: WorkerProcess) -> int:
    """Wake a worker, and have it go when it has finished what it has begun."""
    _send_signal(worker, signal.SIGCONT)
    return await asyncio.to_thread(worker.terminate)


async def _have_arrived(scene: Scene, number: int) -> bool:
    return await asyncio.to_thread(scene.provider.requests, "charge") == number


async def _is(scene: Scene, state: str) -> bool:
    return [action.state for action in await scene.actions()] == [state]


async def _overtaken(
    scene: Scene, status: int, row_then: Action | None = None, row_woken: Action | None = None
) -> Overtaken:
    after = await scene.aftermath()
    asked = scene.log.with_name("lookups")
    (row,) = after.actions
    return Overtaken(
        after=after,
        row_then=row_then or row,
        row_woken=row_woken or row,
        row=row,
        requests=scene.provider.sent("charge"),
        lookups=len(asked.read_text().splitlines()) if asked.exists() else 0,
        status=status,
        log=scene.log.with_name("a.log").read_text(),
    )


async def _claim_and_freeze(scene: Scene, worker: WorkerProcess, *, commits: bool) -> None:
    """Freeze a worker whose claim is under way, and then have it commit, or be lost."""

    async def start() -> None:
        await scene.client.start("support", "Charge.", id=scene.run_id, tool_timeout=2)

    await freeze_in_claim(scene, worker, start, commits=commits)


# --- frozen while its tool is at work


def _frozen_at_work(effect: str, *, wakes: str, mode: str = "") -> Script[Overtaken]:
    """Freeze a worker after the effect; it wakes while another one is at work, or later."""

    async def play(scene: Scene) -> Overtaken:
        _hold(scene, "a").touch()
        if wakes == "early":
            _hold(scene, "b").touch()
        await scene.start()
        with _worker(scene, effect + mode, "a") as frozen:
            await until(lambda: _have_arrived(scene, 1))
            _freeze(frozen)
            _hold(scene, "a").unlink()
            with _worker(scene, effect + mode, "b"):
                if wakes == "early":
                    await until(lambda: _have_arrived(scene, 2))
                else:
                    await until(lambda: _is(scene, _SETTLED[effect]))
                (row_then,) = await scene.actions()
                status = await _wake_and_go(frozen)
                (row_woken,) = await scene.actions()
                _hold(scene, "b").unlink(missing_ok=True)
                return await _overtaken(scene, status, row_then, row_woken)

    return play


_AT_WORK: Final[Scripts] = {
    "idempotent, early": _frozen_at_work("idempotent", wakes="early"),
    "at_most_once, late": _frozen_at_work("at_most_once", wakes="late"),
    "lookup, late": _frozen_at_work("lookup", wakes="late"),
}


def test_a_worker_that_wakes_after_it_was_overtaken_changes_nothing_any_more(
    played: Played[Overtaken],
) -> None:
    left = played["idempotent, early"]
    first, second = left.requests

    assert left.status == 0
    assert left.after.effects == {"charge:4821": 1}
    assert first == second
    assert first[0] is not None
    assert (left.row.state, left.row.tries) == ("ok", 2)
    assert left.after.told("charge_by_key").status == "ok"


def test_a_worker_that_wakes_while_another_one_is_at_work_does_not_record_for_it(
    played: Played[Overtaken],
) -> None:
    left = played["idempotent, early"]

    assert (left.row_then.state, left.row_then.tries) == ("dispatched", 2)
    assert replace(left.row_woken, now=left.row_then.now) == left.row_then


def test_what_must_not_be_sent_twice_is_unknown_until_its_own_late_answer_settles_it(
    played: Played[Overtaken],
) -> None:
    left = played["at_most_once, late"]

    assert left.row_then.state == "unknown"
    assert left.after.told("charge_blindly").status == "unknown"
    assert (left.row_woken.state, left.row_woken.tries) == ("ok", 1)
    assert left.row_woken.decided_by is None
    assert (len(left.requests), left.after.effects) == (1, {"charge:4821": 1})


def test_what_can_be_looked_up_is_adopted_and_not_sent_again(played: Played[Overtaken]) -> None:
    left = played["lookup, late"]

    assert (len(left.requests), left.after.effects) == (1, {"charge:4821": 1})
    assert left.lookups >= 1
    assert (left.row.state, left.after.told("charge_by_reference").status) == ("ok", "ok")


# --- frozen before its call


def _frozen_before_its_claim(effect: str, *, mode: str = "") -> Script[Overtaken]:
    """Freeze a worker that waits for its claim, lose the claim, and wake it to claim again."""

    async def play(scene: Scene) -> Overtaken:
        _hold(scene, "b").touch()
        frozen = _worker(scene, effect + mode, "a")
        try:
            await _claim_and_freeze(scene, frozen, commits=False)
            with _worker(scene, effect + mode, "b"):
                await until(lambda: _have_arrived(scene, 1))
                (row_then,) = await scene.actions()
                status = await _wake_and_go(frozen)
                (row_woken,) = await scene.actions()
                _hold(scene, "b").unlink()
                return await _overtaken(scene, status, row_then, row_woken)
        finally:
            frozen.kill()

    return play


def _frozen_before_its_call(effect: str, *, mode: str = "") -> Script[Overtaken]:
    """Freeze a worker whose claim is committed, and wake it after its deadline."""

    async def play(scene: Scene) -> Overtaken:
        frozen = _worker(scene, effect + mode, "a")
        try:
            await _claim_and_freeze(scene, frozen, commits=True)
            with _worker(scene, effect + mode, "b"):
                await until(lambda: _is(scene, _SETTLED[effect]))
                await until(lambda: _is_over(scene))
                (row_then,) = await scene.actions()
                status = await _wake_and_go(frozen)
                (row_woken,) = await scene.actions()
                return await _overtaken(scene, status, row_then, row_woken)
        finally:
            frozen.kill()

    return play


async def _is_over(scene: Scene) -> bool:
    """Whether the first claim is past its deadline: two seconds, and five for a slow claim."""
    (row,) = await scene.actions()
    return row.now - row.created_at > timedelta(seconds=7.5)


_BEFORE_THE_CALL: Final[Scripts] = {
    **{
        f"{e}, before its claim": _frozen_before_its_claim(e)
        for e in ("idempotent", "at_most_once")
    },
    **{f"{e}, before its call": _frozen_before_its_call(e) for e in _TOOLS},
}


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
def test_a_worker_that_wakes_before_its_claim_finds_the_action_taken_and_calls_nothing(
    played: Played[Overtaken], effect: str
) -> None:
    left = played[f"{effect}, before its claim"]

    assert left.row_then.state == "dispatched"
    assert replace(left.row_woken, now=left.row_then.now) == left.row_then
    assert (len(left.requests), left.after.effects) == (1, {"charge:4821": 1})
    assert (left.row.state, left.row.tries) == ("ok", 1)
    assert left.after.told(_TOOLS[effect].name).status == "ok"


@pytest.mark.parametrize(
    ("effect", "requests"), [("idempotent", 1), ("at_most_once", 0), ("lookup", 1)]
)
def test_a_worker_that_wakes_after_the_deadline_of_its_claim_calls_nothing(
    played: Played[Overtaken], effect: str, requests: int
) -> None:
    left = played[f"{effect}, before its call"]

    assert len(left.requests) == requests
    assert sum(left.after.effects.values()) == requests
    assert left.after.told(_TOOLS[effect].name).status == _SETTLED[effect]
    assert left.row.state == _SETTLED[effect]


@pytest.mark.parametrize("effect", _TOOLS)
def test_what_was_decided_while_a_worker_slept_is_not_undone_by_it(
    played: Played[Overtaken], effect: str
) -> None:
    left = played[f"{effect}, before its call"]

    assert replace(left.row_woken, now=left.row_then.now) == left.row_then


# --- two at once


def _reset_at_work(effect: str) -> Script[Overtaken]:
    """Reset the run while its tool is at work; the first attempt goes on."""

    async def play(scene: Scene) -> Overtaken:
        _hold(scene, "a").touch()
        await scene.start()
        with _worker(scene, effect, "a"):
            await until(lambda: _have_arrived(scene, 1))
            await scene.reset(before="0.0")
            if effect == "idempotent":
                await until(lambda: _have_arrived(scene, 2))
            else:
                await until(lambda: _is(scene, _SETTLED[effect]))
                await scene.aftermath()
            (row_then,) = await scene.actions()
            _hold(scene, "a").unlink()
            await until(lambda: _is(scene, "ok"))
            return await _overtaken(scene, 0, row_then)

    return play


_RESET: Final[Scripts] = {f"{effect}, reset": _reset_at_work(effect) for effect in _TOOLS}


@pytest.mark.parametrize(
    ("effect", "requests", "told"),
    [("idempotent", 2, "ok"), ("at_most_once", 1, "unknown"), ("lookup", 1, "ok")],
)
def test_two_attempts_that_live_at_once_have_one_effect(
    played: Played[Overtaken], effect: str, requests: int, told: str
) -> None:
    left = played[f"{effect}, reset"]

    assert left.after.effects == {"charge:4821": 1}
    assert left.requests == [left.requests[0]] * requests
    assert left.row.state == "ok"
    assert left.after.told(_TOOLS[effect].name).status == told


# --- local activities, of which none is the later one


_LOCAL: Final[Scripts] = {
    "idempotent, before its claim": _frozen_before_its_claim("idempotent", mode="_local"),
    "at_most_once, before its claim": _frozen_before_its_claim("at_most_once", mode="_local"),
    "idempotent, early": _frozen_at_work("idempotent", wakes="early", mode="_local"),
    "at_most_once, late": _frozen_at_work("at_most_once", wakes="late", mode="_local"),
    "lookup, late": _frozen_at_work("lookup", wakes="late", mode="_local"),
    **{f"{e}, before its call": _frozen_before_its_call(e, mode="_brief") for e in _TOOLS},
}
_LOCAL_IN_CI: Final = "at_most_once, before its claim"


def test_a_local_attempt_that_wakes_cannot_know_and_its_rival_settles_what_it_parked(
    played: Played[Overtaken],
) -> None:
    left = played[f"local: {_LOCAL_IN_CI}"]

    assert (left.row_then.state, left.row_woken.state) == ("dispatched", "unknown")
    assert (len(left.requests), left.after.effects) == (1, {"charge:4821": 1})
    assert (left.row.state, left.row.tries, left.row.decided_by) == ("ok", 1, None)
    assert left.after.told("charge_blindly").status == "ok"


@pytest.mark.slow
def test_a_local_attempt_that_wakes_before_its_claim_takes_the_row_and_its_rivals_success_stands(
    played_locally: Played[Overtaken],
) -> None:
    left = played_locally["idempotent, before its claim"]

    assert (left.row_woken.state, left.row_woken.tries) == ("dispatched", 2)
    assert left.row_woken.claim_token != left.row_then.claim_token
    assert (len(left.requests), left.after.effects) == (1, {"charge:4821": 1})
    assert (left.row.state, left.after.told("charge_by_key").status) == ("ok", "ok")


@pytest.mark.slow
def test_a_local_attempt_that_wakes_after_its_effect_settles_the_row_for_its_rival(
    played_locally: Played[Overtaken],
) -> None:
    left = played_locally["idempotent, early"]

    assert (left.row_then.state, left.row_woken.state) == ("dispatched", "ok")
    assert left.requests == [left.requests[0]] * 2
    assert left.after.effects == {"charge:4821": 1}
    assert left.after.told("charge_by_key").status == "ok"


@pytest.mark.slow
def test_a_local_attempt_that_wakes_after_its_effect_settles_what_is_unknown(
    played_locally: Played[Overtaken],
) -> None:
    left = played_locally["at_most_once, late"]

    assert (left.row_then.state, left.row_woken.state) == ("unknown", "ok")
    assert left.after.told("charge_blindly").status == "unknown"
    assert (len(left.requests), left.after.effects) == (1, {"charge:4821": 1})


@pytest.mark.slow
def test_the_effect_of_a_local_attempt_that_sleeps_is_looked_up(
    played_locally: Played[Overtaken],
) -> None:
    left = played_locally["lookup, late"]

    assert (len(left.requests), left.after.effects) == (1, {"charge:4821": 1})
    assert left.lookups >= 1
    assert (left.row.state, left.after.told("charge_by_reference").status) == ("ok", "ok")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effect", "requests"), [("idempotent", 1), ("at_most_once", 0), ("lookup", 1)]
)
def test_a_local_attempt_that_wakes_after_the_deadline_of_its_claim_calls_nothing(
    played_locally: Played[Overtaken], effect: str, requests: int
) -> None:
    left = played_locally[f"{effect}, before its call"]

    assert len(left.requests) == requests
    assert sum(left.after.effects.values()) == requests
    assert left.after.told(_TOOLS[effect].name).status == _SETTLED[effect]
    assert replace(left.row_woken, now=left.row_then.now) == left.row_then


# --- all scenes, side by side


@pytest.fixture(scope="module")
def played(stage: Stage) -> Played[Overtaken]:
    """What became of each run; the long scenes begin first."""
    local = {f"local: {_LOCAL_IN_CI}": _LOCAL[_LOCAL_IN_CI]}
    return stage.play({**_BEFORE_THE_CALL, **local, **_AT_WORK, **_RESET})


@pytest.fixture(scope="module")
def played_locally(stage: Stage) -> Played[Overtaken]:
    """The same of local activities."""
    return stage.play({name: one for name, one in _LOCAL.items() if name != _LOCAL_IN_CI})
