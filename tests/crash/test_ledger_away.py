"""The ledger goes away at each moment of a run: cut, silent, read-only, failed over, crowded.

The workers are real and reach Postgres through a `TcpProxy`; the tests look at the database
directly. What a tool would do there is in the module as well: a worker imports it from here.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import psycopg
import pytest

from commitline import Agent, App, Effect, NotAttempted, ScriptedModel, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.outcomes import RECORD_OUTCOME
from commitline.activities.contract.runs import CLOSE_RUN, OPEN_RUN
from commitline.activities.contract.turns import CALL_MODEL, RECORD_TURN
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.config import Settings
from commitline.errors import LedgerUnavailable, RunFailed
from commitline.examples.shop import payments
from commitline.testing.proxy import TcpProxy
from commitline.tests.crash.stage import Aftermath, Gate, Played, Scene, Script, Stage, until
from commitline.tests.histories import activities_in

# --- what the workers run

_FOLDER: Final = Path(os.environ.get("CRASH_FOLDER", "."))
_BIG: Final = 300_000
"""Characters: over the 256 KiB that travel by way of history."""
_CHARGE: Final = {"order_id": "4821", "amount_cents": 4900}
_MAIL: Final = {"to": "ada@example.com", "text": "hi"}


async def _held() -> None:
    while (_FOLDER / "hold").exists():  # noqa: ASYNC110 - another process takes it away
        await asyncio.sleep(0.02)


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    body = {"order_id": order_id, "amount_cents": amount_cents}
    answer = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    await _held()
    return answer


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge_and_tell_a_lot(ctx: ToolContext, order_id: str, amount_cents: int) -> str:
    body = {"order_id": order_id, "amount_cents": amount_cents}
    await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    await _held()
    return "x" * _BIG


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge_at_the_second_try(
    ctx: ToolContext, order_id: str, amount_cents: int
) -> dict[str, Any]:
    began = _FOLDER / "began"
    if not began.exists():
        began.touch()
        await _held()
        raise NotAttempted("not now")
    body = {"order_id": order_id, "amount_cents": amount_cents}
    return await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)


@tool(effect=Effect.AT_MOST_ONCE)
async def send_mail(to: str, text: str) -> dict[str, Any]:
    answer = await payments.post("/mails", {"to": to, "text": text})
    await _held()
    return answer


@tool(effect=Effect.AT_MOST_ONCE)
async def mail_and_break(to: str, text: str) -> None:
    await payments.post("/mails", {"to": to, "text": text})
    await _held()
    raise RuntimeError("on the way back")


@tool(effect=Effect.IDEMPOTENT)
def work_for_a_second(ctx: ToolContext) -> str:
    time.sleep(1)
    asyncio.run(payments.post("/works", {"to": ctx.run_key}, idempotency_key=ctx.idempotency_key))
    return "worked"


class _HeldModel(ScriptedModel):
    """Thinks for as long as the test wants."""

    async def complete(self, request: ModelRequest) -> Completion:
        answer = await super().complete(request)
        await _held()
        return answer


class _SlowModel(ScriptedModel):
    """Thinks for a second."""

    async def complete(self, request: ModelRequest) -> Completion:
        await asyncio.sleep(1)
        return await super().complete(request)


_TOOLS: Final = [
    charge_card,
    charge_and_tell_a_lot,
    charge_at_the_second_try,
    send_mail,
    mail_and_break,
    work_for_a_second,
]


def _app(kind: type[ScriptedModel], *calls: tuple[str, dict[str, Any]]) -> App:
    model = kind("scripted", [call(*calls), say("done")], count_file=_FOLDER / "model_calls")
    return App([Agent("support", model=model, instructions="", tools=_TOOLS)])


charging = _app(ScriptedModel, ("charge_card", _CHARGE))
telling_a_lot = _app(ScriptedModel, ("charge_and_tell_a_lot", _CHARGE))
trying_twice = _app(ScriptedModel, ("charge_at_the_second_try", _CHARGE))
mailing = _app(ScriptedModel, ("send_mail", _MAIL))
breaking = _app(ScriptedModel, ("mail_and_break", {"to": "ada@example.com", "text": "hi"}))
thinking = _app(_HeldModel, ("charge_card", _CHARGE))
crowd = _app(_SlowModel, ("work_for_a_second", {}))

# --- how the scenes are played

_HERE: Final = "commitline.tests.crash.test_ledger_away"
_SENT: Final = {
    "charging": ("charge", "order-4821-charge", '{"order_id": "4821", "amount_cents": 4900}'),
    "mailing": ("mail", None, '{"to": "ada@example.com", "text": "hi"}'),
    "breaking": ("mail", None, '{"to": "ada@example.com", "text": "hi"}'),
}
_TOOL: Final = {"charging": "charge_card", "mailing": "send_mail"}
_SESSIONS: Final = """
select pid from pg_stat_activity
 where datname = current_database() and application_name = 'commitline'
"""
_USUAL: Final = [OPEN_RUN, CALL_MODEL, "charge_card", CALL_MODEL, CLOSE_RUN]


Scripts: TypeAlias = Mapping[str, "Script[Survived]"]


@dataclass(frozen=True)
class Survived:
    """What is left of a run that met an outage."""

    after: Aftermath
    activities: list[str]
    """What the run scheduled, in order."""
    retried: bool
    """Whether the server knows of a failed attempt of any of them."""
    arrivals: list[float]
    """When requests reached the provider."""
    log: str
    then: Mapping[str, Any] = field(default_factory=dict)
    """What the test saw during the outage."""


@asynccontextmanager
async def _behind_a_proxy(
    scene: Scene, app: str, *, statement_seconds: str = "1"
) -> AsyncIterator[TcpProxy]:
    """Run a worker whose way to the ledger leads through a proxy."""
    url = scene.settings.database_url
    with TcpProxy.before(url) as proxy:
        worker = scene.worker(
            f"{_HERE}:{app}",
            COMMITLINE_DATABASE_URL=proxy.url(url),
            COMMITLINE_STATEMENT_SECONDS=statement_seconds,
        )
        with worker:
            try:
                yield proxy
            except BaseException as err:
                err.add_note(scene.log.read_text(errors="replace")[-6000:])
                raise


async def _survived(scene: Scene, **then: Any) -> Survived:
    after = await scene.aftermath()
    events = (await scene.temporal.get_workflow_handle(scene.run_id).fetch_history()).events
    return Survived(
        after=after,
        activities=await _activities(scene),
        retried=any(e.activity_task_started_event_attributes.attempt > 1 for e in events),
        arrivals=[sent["at"] for sent in scene.provider.stats()["sent"]],
        log=scene.log.read_text(),
        then=then,
    )


async def _activities(scene: Scene) -> list[str]:
    history = await scene.temporal.get_workflow_handle(scene.run_id).fetch_history()
    return activities_in(history.events)


async def _has_scheduled(scene: Scene, activity: str, times: int = 1) -> bool:
    return (await _activities(scene)).count(activity) >= times


async def _has_attempted(scene: Scene, activity: str, attempt: int) -> bool:
    """Whether the server counts so many attempts at the call that is under way."""
    run = await scene.temporal.get_workflow_handle(scene.run_id).describe()
    return any(
        one.activity_type.name == activity and one.attempt >= attempt
        for one in run.raw_description.pending_activities
    )


async def _length(scene: Scene) -> int:
    """Return how many events the run's history has."""
    run = await scene.temporal.get_workflow_handle(scene.run_id).describe()
    return run.history_length


async def _has_logged(scene: Scene, event: str, times: int = 1) -> bool:
    return scene.log.exists() and scene.log.read_text().count(f'"{event}"') >= times


async def _arrived(scene: Scene, kind: str) -> bool:
    return await asyncio.to_thread(scene.provider.requests, kind) > 0


async def _is_asked(scene: Scene) -> bool:
    return (scene.hold.parent / "model_calls").exists()


async def _has_begun(scene: Scene) -> bool:
    return (scene.hold.parent / "began").exists()


async def _query(scene: Scene, statement: str) -> list[tuple[Any, ...]]:
    """Ask the scene's database, by no proxy."""
    url = scene.settings.database_url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        cursor = await connection.execute(statement.encode())
        return await cursor.fetchall() if cursor.description else []


async def _count(scene: Scene, of_what: str) -> int:
    ((number,),) = await _query(scene, f"select count(*) from {of_what}")
    return int(number)


async def _terminate_sessions(scene: Scene) -> None:
    """End what the workers have in their pools, as a failover does."""
    ended = await _query(scene, _SESSIONS.replace("pid", "pg_terminate_backend(pid)", 1))
    assert ended


async def _read_only(scene: Scene, on: bool) -> None:
    """Make the database what a demoted primary is, or promote it."""
    parts = urlsplit(scene.settings.database_url)
    server = parts._replace(path="/postgres").geturl()
    value = "on" if on else "off"
    statement = f'alter database "{parts.path[1:]}" set default_transaction_read_only = {value}'
    async with await psycopg.AsyncConnection.connect(server, autocommit=True) as connection:
        await connection.execute(statement.encode())


def _assert_sent_once(left: Survived, app: str) -> None:
    """One request, sent after its intent was committed; one row, done; and the model knows."""
    kind, key, body = _SENT[app]
    row = left.after.row(_TOOL[app])
    assert left.after.sent[kind] == [(key, body)]
    assert list(left.after.effects.values()) == [1]
    assert row.dispatched_at is not None
    assert row.dispatched_at.timestamp() <= min(left.arrivals)
    assert (row.state, left.after.told(row.tool).status) == ("ok", "ok")


# --- away at the intent


def _away_at_the_intent(*, node_timeout: float | None, unavailable: int) -> Script[Survived]:
    """Cut the way to the ledger when the claim has been sent, and lose the claim."""

    async def play(scene: Scene) -> Survived:
        async with Gate(scene) as gate, _behind_a_proxy(scene, "charging") as proxy:
            await scene.client.start(
                "support", "Charge.", id=scene.run_id, node_timeout=node_timeout
            )
            await gate.reached()
            proxy.cut()
            began = time.monotonic()
            await gate.turn_away()
            await until(lambda: _has_logged(scene, "ledger.unavailable", unavailable))
            seen = {
                "rows": await _count(scene, "agent_actions"),
                "requests": scene.provider.requests("charge"),
                "seconds": time.monotonic() - began,
            }
            proxy.restore()
            return await _survived(scene, **seen)

    return play


async def _away_for_the_next_try(scene: Scene) -> Survived:
    """Cut the way to the ledger between two tries, for as long as the pool has no connection."""
    scene.hold.touch()
    await scene.start()
    async with _behind_a_proxy(scene, "trying_twice") as proxy:
        await until(lambda: _has_begun(scene))
        proxy.cut()
        scene.hold.unlink()
        await until(lambda: _has_attempted(scene, "charge_at_the_second_try", 4))
        requests = scene.provider.requests("charge")
        proxy.restore()
        return await _survived(scene, requests=requests)


async def _away_for_long(scene: Scene) -> Survived:
    """Stay away for longer than a claim waits, and try to stop the run meanwhile."""
    url = scene.settings.database_url
    async with Gate(scene) as gate, _behind_a_proxy(scene, "charging") as proxy:
        await scene.client.start("support", "Charge.", id=scene.run_id, node_timeout=1)
        await gate.reached()
        proxy.cut()
        await gate.turn_away()
        behind = Settings(database_url=proxy.url(url), statement_seconds=1)
        refused = ""
        async with AgentClient(scene.temporal, behind) as client:
            try:
                await client.run(scene.run_id).stop(reason="enough")
            except LedgerUnavailable as err:
                refused = str(err)
        state = (await scene.client.run(scene.run_id).status()).state
        events = await _length(scene)
        await until(lambda: _has_attempted(scene, "charge_card", 4))
        events = await _length(scene) - events
        stopped = await _count(scene, "agent_runs where stopped_at is not null")
        requests = scene.provider.requests("charge")
        proxy.restore()
        return await _survived(
            scene, refused=refused, state=state, stopped=stopped, requests=requests, events=events
        )


_AT_THE_INTENT: Final[Scripts] = {
    "for long": _away_for_long,
    "between tries": _away_for_the_next_try,
    "a short node": _away_at_the_intent(node_timeout=2, unavailable=3),
    "as usual": _away_at_the_intent(node_timeout=None, unavailable=2),
}


@pytest.mark.parametrize("how", ["as usual", "a short node"])
def test_nothing_is_sent_before_its_intent_is_committed_however_long_the_ledger_is_away(
    played: Played[Survived], how: str
) -> None:
    left = played[how]
    row = left.after.row("charge_card")

    assert (left.then["rows"], left.then["requests"]) == (0, 0)
    _assert_sent_once(left, "charging")
    assert row.tries == 1
    assert left.after.output == "done"


def test_an_outage_that_outlasts_the_node_does_not_use_it_up(
    played: Played[Survived],
) -> None:
    left = played["a short node"]

    assert left.then["seconds"] > 2
    assert left.after.told("charge_card").status == "ok"


@pytest.mark.parametrize("how", ["between tries", "for long"])
def test_a_call_that_could_not_be_claimed_is_started_afresh_and_not_given_up(
    played: Played[Survived], how: str
) -> None:
    left = played[how]
    (row,) = left.after.actions

    assert left.then["requests"] == 0
    assert left.activities.count(row.tool) == 1
    assert left.after.effects == {"charge:4821": 1}
    assert len(left.after.sent["charge"]) == 1
    assert (row.state, left.after.told(row.tool).status) == ("ok", "ok")
    assert left.after.output == "done"


def test_a_wait_for_the_ledger_costs_the_history_nothing(played: Played[Survived]) -> None:
    assert played["for long"].then["events"] == 0


def test_a_stop_that_the_ledger_cannot_commit_says_so_and_stops_nothing(
    played: Played[Survived],
) -> None:
    left = played["for long"]

    assert "[CL206]" in left.then["refused"]
    assert (left.then["state"], left.then["stopped"]) == ("running", 0)
    assert left.after.output == "done"


# --- read-only


async def _read_only_at_the_start(scene: Scene) -> Survived:
    await _read_only(scene, True)
    async with _behind_a_proxy(scene, "charging"):
        await scene.start()
        await until(lambda: _has_logged(scene, "ledger.unavailable"))
        requests = scene.provider.requests("charge")
        await _read_only(scene, False)
        return await _survived(scene, requests=requests)


async def _read_only_at_the_intent(scene: Scene) -> Survived:
    async with Gate(scene) as gate, _behind_a_proxy(scene, "charging"):
        await scene.start()
        await gate.reached()
        await _read_only(scene, True)
        await gate.turn_away()
        await until(lambda: _has_logged(scene, "ledger.unavailable"))
        requests = scene.provider.requests("charge")
        await _read_only(scene, False)
        return await _survived(scene, requests=requests)


async def _read_only_at_the_record(scene: Scene) -> Survived:
    """Be read-only for less than a ledger call takes: it must not keep the bad connections."""
    scene.hold.touch()
    await scene.start()
    async with _behind_a_proxy(scene, "charging", statement_seconds="30"):
        await until(lambda: _arrived(scene, "charge"))
        await _read_only(scene, True)
        sessions = {pid for (pid,) in await _query(scene, _SESSIONS)}
        enough = len(sessions) + 8  # more than a pool makes that keeps what it has
        await _terminate_sessions(scene)
        scene.hold.unlink()

        async def discards_sessions() -> bool:
            sessions.update(pid for (pid,) in await _query(scene, _SESSIONS))
            return len(sessions) >= enough

        await until(discards_sessions)
        await _read_only(scene, False)
        return await _survived(scene, requests=scene.provider.requests("charge"))


_DEMOTED: Final[Scripts] = {
    "demoted at the start": _read_only_at_the_start,
    "demoted at the intent": _read_only_at_the_intent,
    "demoted at the record": _read_only_at_the_record,
}


@pytest.mark.parametrize(("moment", "requests"), [("start", 0), ("intent", 0), ("record", 1)])
def test_a_primary_that_is_demoted_and_promoted_again_costs_no_effect(
    played: Played[Survived], moment: str, requests: int
) -> None:
    left = played[f"demoted at the {moment}"]

    assert left.then["requests"] == requests
    _assert_sent_once(left, "charging")
    assert left.after.turns == [0, 1]


# --- while the model thinks


async def _sessions_end_while_the_model_thinks(scene: Scene) -> Survived:
    scene.hold.touch()
    await scene.start()
    async with _behind_a_proxy(scene, "thinking", statement_seconds="10"):
        await until(lambda: _is_asked(scene))
        await _terminate_sessions(scene)
        scene.hold.unlink()
        return await _survived(scene)


def _away_while_the_model_thinks(fault: str) -> Script[Survived]:
    async def play(scene: Scene) -> Survived:
        scene.hold.touch()
        await scene.start()
        async with _behind_a_proxy(scene, "thinking") as proxy:
            await until(lambda: _is_asked(scene))
            getattr(proxy, fault)()
            scene.hold.unlink()
            await until(lambda: _has_scheduled(scene, RECORD_TURN))
            seen = {
                "completions": await _count(scene, "agent_messages where role = 'assistant'"),
                "requests": scene.provider.requests("charge"),
            }
            proxy.thaw()
            proxy.restore()
            return await _survived(scene, **seen)

    return play


_THINKING: Final[Scripts] = {
    "thinking, sessions end": _sessions_end_while_the_model_thinks,
    "thinking, cut": _away_while_the_model_thinks("cut"),
    "thinking, freeze_answers": _away_while_the_model_thinks("freeze_answers"),
}


def test_sessions_that_end_while_the_model_thinks_are_not_noticed_by_the_run(
    played: Played[Survived],
) -> None:
    left = played["thinking, sessions end"]

    assert left.activities == _USUAL
    assert not left.retried
    assert "ledger.unavailable" not in left.log
    _assert_sent_once(left, "charging")
    assert left.after.turns == [0, 1]


@pytest.mark.parametrize(("fault", "completions"), [("cut", 0), ("freeze_answers", 1)])
def test_a_completion_that_cannot_be_recorded_is_kept_by_the_run_and_not_paid_for_again(
    played: Played[Survived], fault: str, completions: int
) -> None:
    left = played[f"thinking, {fault}"]

    assert (left.then["completions"], left.then["requests"]) == (completions, 0)
    assert left.activities == [OPEN_RUN, CALL_MODEL, RECORD_TURN, *_USUAL[2:]]
    assert left.after.turns == [0, 1]
    _assert_sent_once(left, "charging")


# --- while the tool is at work


def _away_at_the_record(app: str, fault: str) -> Script[Survived]:
    """Have the ledger go after the effect and come back when the workflow has the outcome."""

    async def play(scene: Scene) -> Survived:
        scene.hold.touch()
        await scene.start()
        async with _behind_a_proxy(scene, app) as proxy:
            await until(lambda: _arrived(scene, _SENT[app][0]))
            getattr(proxy, fault)()
            scene.hold.unlink()
            await until(lambda: _has_scheduled(scene, RECORD_OUTCOME))
            states = [(action.state, action.done_at) for action in await scene.actions()]
            proxy.thaw()
            proxy.restore()
            return await _survived(scene, states=states)

    return play


async def _away_with_a_big_outcome(scene: Scene) -> Survived:
    scene.hold.touch()
    await scene.start()
    async with _behind_a_proxy(scene, "telling_a_lot") as proxy:
        await until(lambda: _arrived(scene, "charge"))
        proxy.cut()
        scene.hold.unlink()
        await until(lambda: _has_logged(scene, "ledger.outcome_held"))
        await until(lambda: _has_logged(scene, "ledger.unavailable"))
        states = [action.state for action in await scene.actions()]
        proxy.restore()
        return await _survived(scene, states=states)


_FAULTS: Final = [
    ("charging", "cut"),
    ("charging", "freeze_answers"),
    ("mailing", "cut"),
    ("mailing", "freeze"),
]


_AT_THE_RECORD: Final[Scripts] = {
    "a big outcome": _away_with_a_big_outcome,
    "breaking, cut": _away_at_the_record("breaking", "cut"),
    **{f"{app}, {fault}": _away_at_the_record(app, fault) for app, fault in _FAULTS},
}


@pytest.mark.parametrize(("app", "fault"), _FAULTS)
def test_an_outcome_that_the_ledger_does_not_take_goes_through_the_run_and_is_not_produced_again(
    played: Played[Survived], app: str, fault: str
) -> None:
    left = played[f"{app}, {fault}"]
    tool = _TOOL[app]

    assert left.activities == [OPEN_RUN, CALL_MODEL, tool, RECORD_OUTCOME, CALL_MODEL, CLOSE_RUN]
    _assert_sent_once(left, app)
    assert left.after.row(tool).tries == 1


def test_a_record_whose_answer_was_lost_is_made_once(played: Played[Survived]) -> None:
    left = played["charging, freeze_answers"]
    row = left.after.row("charge_card")

    assert left.then["states"] == [("ok", row.done_at)]


def test_an_end_that_says_nothing_is_recorded_later_with_the_try_that_it_was(
    played: Played[Survived],
) -> None:
    left = played["breaking, cut"]
    row = left.after.row("mail_and_break")

    assert left.then["states"] == [("dispatched", None)]
    assert RECORD_OUTCOME in left.activities
    assert len(left.after.sent["mail"]) == 1
    assert (row.state, row.tries, row.failures) == ("unknown", 1, 1)


def test_an_outcome_too_big_for_history_is_held_until_the_ledger_is_back(
    played: Played[Survived],
) -> None:
    left = played["a big outcome"]
    row = left.after.row("charge_and_tell_a_lot")

    assert left.then["states"] == ["dispatched"]
    assert RECORD_OUTCOME not in left.activities
    assert len(left.after.sent["charge"]) == 1
    assert (row.state, row.tries, len(row.result or "")) == ("ok", 1, _BIG + 2)
    assert '"truncated":true' in left.after.told("charge_and_tell_a_lot").content
    assert not left.retried


# --- the claim's answer is lost


def _claim_without_an_answer(app: str, afterwards: str) -> Script[Survived]:
    async def play(scene: Scene) -> Survived:
        async with (
            Gate(scene) as gate,
            _behind_a_proxy(scene, app, statement_seconds="2") as proxy,
        ):
            await scene.start()
            await gate.reached()
            proxy.freeze_answers()
            await gate.open()
            await until(lambda: _has_logged(scene, "ledger.unavailable"))
            (row,) = await scene.actions()
            requests = scene.provider.requests(_SENT[app][0])
            if afterwards == "drop":
                proxy.drop()
            proxy.thaw()
            return await _survived(scene, state=row.state, requests=requests)

    return play


_UNANSWERED: Final = [("charging", "drop"), ("mailing", "drop"), ("mailing", "thaw")]


_WITHOUT_AN_ANSWER: Final[Scripts] = {
    f"{app}, unanswered, {then}": _claim_without_an_answer(app, then) for app, then in _UNANSWERED
}


@pytest.mark.parametrize(("app", "afterwards"), _UNANSWERED)
def test_an_attempt_knows_its_own_claim_again_whose_answer_was_lost(
    played: Played[Survived], app: str, afterwards: str
) -> None:
    left = played[f"{app}, unanswered, {afterwards}"]

    assert (left.then["state"], left.then["requests"]) == ("dispatched", 0)
    _assert_sent_once(left, app)
    assert left.after.row(_TOOL[app]).tries == 1
    assert left.after.output == "done"


# --- a failover loses what was committed, while the tool is at work

_LOST: Final = {
    "action": ["agent_actions"],
    "everything but what was said": ["agent_actions", "agent_domain_keys", "agent_runs"],
}
_LOSSES: Final = [
    ("charging", "action"),
    ("charging", "everything but what was said"),
    ("mailing", "action"),
]


def _lose_while_at_work(app: str, tables: list[str]) -> Script[Survived]:
    async def play(scene: Scene) -> Survived:
        scene.hold.touch()
        await scene.start()
        async with _behind_a_proxy(scene, app):
            await until(lambda: _arrived(scene, _SENT[app][0]))
            for table in tables:
                await _query(scene, f"delete from {table}")
            scene.hold.unlink()
            return await _survived(scene)

    return play


_FAILED_OVER: Final[Scripts] = {
    f"{app}, lost {lost}": _lose_while_at_work(app, _LOST[lost]) for app, lost in _LOSSES
}


@pytest.mark.parametrize(("app", "lost"), _LOSSES)
def test_a_row_that_is_lost_while_the_tool_is_at_work_is_written_anew_with_its_outcome(
    played: Played[Survived], app: str, lost: str
) -> None:
    left = played[f"{app}, lost {lost}"]
    kind, key, body = _SENT[app]
    row = left.after.row(_TOOL[app])

    assert left.after.sent[kind] == [(key, body)]
    assert (row.state, left.after.told(row.tool).status) == ("ok", "ok")
    assert key is None or row.idempotency_key == key
    assert left.after.turns == [0, 1]
    assert left.after.output == "done"


# --- errors that pass

_PASSING: Final = {"a serialization failure": "40001", "a deadlock": "40P01", "a shutdown": "57P01"}
_FAILING: Final = """
create sequence failing_{moment};
create function fail_{moment}() returns trigger language plpgsql as $$
begin
    if nextval('failing_{moment}') <= 3 then
        raise exception 'as arranged' using errcode = '{code}';
    end if;
    return new;
end $$;
create trigger fail_{moment} before {moment} on agent_actions
   for each row execute function fail_{moment}();
"""


def _fail_at_first_with(code: str) -> Script[Survived]:
    async def play(scene: Scene) -> Survived:
        for moment in ("insert", "update"):
            await _query(scene, _FAILING.format(moment=moment, code=code))
        await scene.start()
        async with _behind_a_proxy(scene, "charging", statement_seconds="10"):
            left = await _survived(scene)
        ((inserts,),) = await _query(scene, "select last_value from failing_insert")
        ((updates,),) = await _query(scene, "select last_value from failing_update")
        return replace(left, then={"inserts": inserts, "updates": updates})

    return play


_PASSING_BY: Final[Scripts] = {error: _fail_at_first_with(code) for error, code in _PASSING.items()}


@pytest.mark.parametrize("error", _PASSING)
def test_errors_that_pass_are_seen_through_at_the_intent_and_at_the_record(
    played: Played[Survived], error: str
) -> None:
    left = played[error]

    assert left.then == {"inserts": 4, "updates": 4}
    assert left.activities == _USUAL
    assert not left.retried
    _assert_sent_once(left, "charging")
    assert left.after.row("charge_card").tries == 1


# --- a crowd

_IDLE_IN_TRANSACTION: Final = """
select count(*) from pg_stat_activity
 where datname = current_database() and state like 'idle in transaction%'
   and clock_timestamp() - state_change > interval '0.5 s'
"""


async def test_twenty_runs_share_two_connections_while_twenty_others_are_cancelled(
    scene: Scene,
) -> None:
    chance = random.Random(4821)

    async def run(id: str) -> str:
        started = await scene.client.start("support", "Work.", id=f"{scene.run_id}-{id}")
        return (await started.result()).output

    async def run_and_cancel(id: str) -> str:
        started = await scene.client.start("support", "Work.", id=f"{scene.run_id}-{id}")
        await asyncio.sleep(chance.uniform(0, 4))
        await scene.temporal.get_workflow_handle(started.id).cancel()
        try:
            return (await started.result()).output
        except RunFailed:
            return (await started.status()).state

    with scene.worker(f"{_HERE}:crowd", COMMITLINE_POOL_SIZE="2"):
        kept, cancelled = await asyncio.gather(
            asyncio.gather(*(run(f"kept-{number}") for number in range(20))),
            asyncio.gather(*(run_and_cancel(f"cancelled-{number}") for number in range(20))),
        )
        ((idle,),) = await _query(scene, _IDLE_IN_TRANSACTION)

    log = scene.log.read_text()
    kept_rows = await _query(
        scene,
        "select outcome, count(*) from agent_actions where run_key like '%-kept-%' group by 1",
    )
    effects = scene.provider.stats()["effects"]
    assert kept == ["done"] * 20
    assert set(cancelled) <= {"done", "canceled"}
    assert "canceled" in cancelled
    assert kept_rows == [("ok", 20)]
    assert len([subject for subject in effects if "-kept-" in subject]) == 20
    assert set(effects.values()) == {1}
    assert idle == 0
    assert "ledger.unavailable" not in log
    assert "pool" not in log.lower()


# --- all scenes, side by side


@pytest.fixture(scope="module")
def played(stage: Stage) -> Played[Survived]:
    """What became of each run; the long scenes begin first."""
    return stage.play(
        {
            **_AT_THE_INTENT,
            **_THINKING,
            **_AT_THE_RECORD,
            **_WITHOUT_AN_ANSWER,
            **_DEMOTED,
            **_FAILED_OVER,
            **_PASSING_BY,
        }
    )
