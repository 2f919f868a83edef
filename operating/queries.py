"""What an operator asks of runs and actions: the questions behind the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

from rich.console import Console
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from ..activities.runs.relay_schedule import schedule_id
from ..canonical import Json, dumps, parse
from ..client import AgentClient
from ..config import DevAddresses, Settings
from ..errors import (
    AmbiguousAction,
    AnswerRefused,
    ConfigurationError,
    RunNotFound,
    UnrepresentableValue,
)
from ..handles.thread import RunHandle
from ..handles.thread_message import ThreadMessage
from ..identity import ActionKey, RunKey, action_key_within
from ..ledger import (
    Action,
    ActionLedger,
    Approval,
    GoneRun,
    Outcome,
    Question,
    Run,
    Waiting,
    ledger_pool,
)
from ..workflows import AGENT_RUN, PLAN_RUN, RunResult
from . import tables as printing

T = TypeVar("T")

_POLL_SECONDS: Final = 0.5
_NAMED: Final = 5
"""How many actions an error names of those that may be meant."""
_RUNS: Final = 1_000
"""Of one id at most, the newest; only a conversation, and the outbox, have so many."""


async def with_ledger(work: Callable[[ActionLedger], Awaitable[T]]) -> T:
    """Do something with the ledger that the settings name; Temporal is not needed.

    Raises:
        ConfigurationError: No database is configured.
        LedgerUnavailable: It does not answer.
    """
    settings = Settings.load()
    async with ledger_pool(settings.require_database(), size=1) as pool:
        return await work(ActionLedger(pool, statement_seconds=settings.statement_seconds))


async def find_actions(
    ledger: ActionLedger, *, run: str | None, parked: bool, limit: int
) -> Sequence[Action]:
    """Return actions of one run; else the parked, longest waiting first; else the newest.

    Those of a run's sub-agents are among its own, and by its id those of all runs that had it.

    Raises:
        RunNotFound: The ledger knows no run of this id.
    """
    if run is not None:
        found: list[Action] = []
        for one in await _runs(ledger, run):
            left = limit - len(found)
            if left == 0:
                break
            found += await ledger.sub_runs.actions(one.run_key, only_parked=parked, limit=left)
        return found
    return await ledger.list(only_parked=parked, newest_first=not parked, limit=limit)


async def find_action(ledger: ActionLedger, key: str) -> Action:
    """Return the action of a whole key, or of ``<run id>:<position>``.

    A sub-agent's is at ``2.0/0.1``, say, of the run that was started.

    Raises:
        RunNotFound: There is none; the message says what was looked for.
    """
    found = await find_record(ledger, key)
    if not isinstance(found, Action):
        raise RunNotFound(f"{key!r} is a read: the ledger has its result, and no action")
    return found


async def find_record(ledger: ActionLedger, key: str) -> Action | Json:
    """Return an action; or of a read, which has no row, the large result that was kept (JSON).

    Raises:
        RunNotFound: There is neither; the message says what was looked for.
        AmbiguousAction: Several runs have had that id, and more than one of them such a call.
    """
    found = await _record(ledger, ActionKey(key))
    if found is not None:
        return found
    run_id, _, at = key.rpartition(":")
    meant: dict[ActionKey, Action | Json] = {}
    for run in await _runs(ledger, run_id or key):
        one = action_key_within(run.run_key, at)
        record = await _record(ledger, one)
        if record is not None:
            meant[one] = record
        if len(meant) > _NAMED:
            break
    if not meant:
        raise RunNotFound(f"the ledger has no action {key!r}")
    if len(meant) > 1:
        # Whichever were taken, it might be the other one that somebody settles, for good.
        named = [*meant][:_NAMED]
        more = ", or another" if len(meant) > _NAMED else ""
        raise AmbiguousAction(f"{key!r} may be {', '.join(named)}{more}")
    return next(iter(meant.values()))


async def find_approvals(
    ledger: ActionLedger, *, run: str | None, all: bool, limit: int
) -> Sequence[Approval]:
    """Return what waits for a person, of one run or of all; with ``all`` what was decided too.

    Raises:
        RunNotFound: The ledger knows no run of this id.
    """
    run_key = await _only_of(ledger, run)
    return await ledger.approvals.list(run_key, only_waiting=not all, limit=limit)


async def find_questions(
    ledger: ActionLedger, *, run: str | None, all: bool, limit: int
) -> Sequence[Question]:
    """Return what waits for an answer, of one run or of all; with ``all`` what else was asked too.

    Raises:
        RunNotFound: The ledger knows no run of this id.
    """
    run_key = await _only_of(ledger, run)
    return await ledger.questions.list(run_key, only_waiting=not all, limit=limit)


async def answer(client: AgentClient, call: str, value: str, *, by: str) -> None:
    """Answer what a call asks; ``call`` is ``<run id>:<position>`` or that and ``/number``.

    Raises:
        AnswerRefused: It does not count.
    """
    asking, _, number = call.rpartition("/")
    if not number.isdigit():  # without a number it is what the call asks now
        asking, number = call, ""
    if not value.strip():
        raise AnswerRefused("an answer needs a value")
    run, position = await call_named(client, asking)
    if not number:
        return await run.answer(position, _as_json(value), by=by)
    for asked in await run.questions(only_waiting=False):
        if (asked.position, str(asked.number)) == (position, number):
            return await run.answer(asked, _as_json(value), by=by)
    raise AnswerRefused(f"{asking} has asked no question {number}")


async def call_named(client: AgentClient, call: str) -> tuple[RunHandle, str]:
    """Return the run of a call that is named ``<run id>:<position>``, and its position there.

    A sub-agent's is at ``2.0/0.1``, say, of the run that was started.

    Raises:
        RunNotFound: It is named otherwise, or the ledger has no such run.
    """
    run_id, _, within = call.rpartition(":")
    path, _, position = within.rpartition("/")
    if not run_id:
        raise RunNotFound(f"a call is named as RUN:AT, not {call!r}")
    if not path:
        return client.run(run_id), position
    ledger = await client.ledger()
    above = await _newest(ledger, run_id)
    below = await ledger.get_run(RunKey(f"{above.run_key}/{path}"))
    if below is None:
        raise RunNotFound(f"the run {run_id!r} has no sub-agent at {path}")
    return client.run(below.workflow_id), position


async def conversation(ledger: ActionLedger, id: str) -> tuple[Sequence[ThreadMessage], str]:
    """Return what was said in a conversation, and what its tools share, as JSON text.

    Args:
        ledger: The ledger.
        id: The conversation's, or a run's.

    Raises:
        ThreadNotFound: There is none.
        ThreadDeleted: It was deleted.
    """
    thread = await thread_id(ledger, id)
    messages = await ledger.threads.messages(thread)
    state = await ledger.threads.state(thread)
    return [ThreadMessage.from_stored(one) for one in messages], state


async def thread_id(ledger: ActionLedger, id: str) -> str:
    """Return a conversation's id, by itself or by the id of its newest run."""
    if await ledger.threads.get(id) is None:
        newest = await ledger.list_runs(workflow_id=id, limit=1)
        if newest and newest[0].thread_id is not None:
            return newest[0].thread_id
    return id


async def settle(
    ledger: ActionLedger, key: str, *, happened: str | None, by: str
) -> Sequence[Action]:
    """Record an operator's word about an unknown action; see `ActionLedger.settle`.

    Args:
        ledger: The ledger.
        key: As `find_action` takes it.
        happened: What it returned, as JSON or plain text; None says that it did not happen.
        by: Who says so.

    Raises:
        SettlementRefused: It may not be settled, or not now.
    """
    found = await find_action(ledger, key)
    if happened is None:
        outcome = Outcome.error(
            kind="DidNotHappen",
            message=f"{by} looked at the downstream system: it did not happen",
            effect_possible=False,
        )
    else:
        outcome = Outcome.ok(dumps(_as_json(happened)))
    return await ledger.settle(found.key, outcome, by=by)


async def reopen(ledger: ActionLedger, key: str) -> Action:
    """Have an action tried again that waits for a person; see `RelayLedger.reopen`.

    Raises:
        ReopenRefused: It cannot be; the message says why.
    """
    found = await find_action(ledger, key)
    return await ledger.relay.reopen(found.key)


@dataclass(frozen=True)
class RelayReport:
    """What the relay has to do, and when it looks."""

    schedule: str
    state: Literal["on", "paused", "missing"]
    """``missing``: no worker of this task queue has run with a relay yet."""
    last: datetime | None
    next: datetime | None
    waiting: Sequence[Waiting]
    gone: Sequence[GoneRun]


async def relay_report(client: AgentClient, *, limit: int) -> RelayReport:
    """Return what the relay has to do. Safe to repeat; it only reads."""
    named = schedule_id(client.task_queue)
    ledger = await client.ledger()
    waiting = await ledger.relay.list(limit=limit)
    gone = await ledger.relay.list_gone(limit=limit)
    try:
        described = await client.temporal.get_schedule_handle(named).describe()
    except RPCError as err:
        if err.status is not RPCStatusCode.NOT_FOUND:
            raise
        return RelayReport(named, "missing", None, None, waiting, gone)
    info = described.info
    last = max((one.started_at for one in info.recent_actions), default=None)
    following = min(info.next_action_times, default=None)
    paused = described.schedule.state.paused
    return RelayReport(named, "paused" if paused else "on", last, following, waiting, gone)


async def trigger_relay(client: AgentClient) -> str:
    """Have the relay look now; return its schedule's id. Safe to repeat.

    Raises:
        ConfigurationError: No worker of this task queue has run with a relay yet.
    """
    named = schedule_id(client.task_queue)
    try:
        await client.temporal.get_schedule_handle(named).trigger()
    except RPCError as err:
        if err.status is RPCStatusCode.NOT_FOUND:
            raise ConfigurationError(
                f"no schedule {named!r}: a worker makes it, unless COMMITLINE_RELAY_SECONDS is 0"
            ) from err
        raise
    return named


def _as_json(text: str) -> Json:
    """Return what somebody typed: JSON, else the text itself."""
    try:
        return parse(text)
    except UnrepresentableValue:
        return text


async def earlier_runs(client: AgentClient, id: str) -> Sequence[RunKey]:
    """Return the keys of the runs that had a workflow's id before its newest, newest first."""
    found = await (await client.ledger()).list_runs(workflow_id=id, limit=_RUNS)
    return [run.run_key for run in found[1:]]


async def newest_runs(client: AgentClient, *, limit: int) -> list[dict[str, Any]]:
    """Return the newest runs: their state by Temporal, their agent, or plan, by the ledger.

    Temporal's visibility leads, since it knows runs that no worker has begun and those that
    ended without a worker (terminated, timed out). It lags behind by up to a second or so.
    """
    query = f"WorkflowType IN ('{AGENT_RUN}', '{PLAN_RUN}')"
    found = [run async for run in client.temporal.list_workflows(query, limit=limit)]
    ledger = await client.ledger()
    known = await _newest_of(ledger, found)
    return [
        {
            "id": run.id,
            "agent": known[run.id].agent if run.id in known else None,
            "state": "unknown" if run.status is None else run.status.name.lower(),
            "undone": await _undone(ledger, known.get(run.id)),
            "started": run.start_time,
            "ended": run.close_time,
            "run_id": run.run_id,
        }
        for run in found
    ]


async def look_up(client: AgentClient, id: str) -> WorkflowExecutionDescription:
    """Return Temporal's description of a run that was started."""
    return await client.temporal.get_workflow_handle(id).describe()


def ui_link(client: AgentClient, run: WorkflowExecution) -> str | None:
    """Return where the UI of `commitline dev` shows the run, if it runs on that server."""
    dev = DevAddresses.find()
    address = client.temporal.service_client.config.target_host
    if dev is None or not dev.ui_url or dev.temporal_address != address:
        return None
    namespace = quote(client.temporal.namespace, safe="")
    return f"{dev.ui_url}/namespaces/{namespace}/workflows/{quote(run.id, safe='')}/{run.run_id}"


async def follow(run: RunHandle, console: Console) -> RunResult:
    """Wait for a run's result; on a terminal show where it is, elsewhere only if it is stuck.

    Raises:
        CommitlineError: As `RunHandle.result`.
    """
    result = asyncio.ensure_future(run.result())
    told = False
    with console.status(f"{run.id}: started") as shown:
        while not (await asyncio.wait({result}, timeout=_POLL_SECONDS))[0]:
            progress = (await run.status()).progress
            shown.update(printing.progress(run.id, progress))
            if progress is None and not told and not console.is_terminal and not result.done():
                told = True
                console.print(printing.progress(run.id, None))
    return result.result()


async def _record(ledger: ActionLedger, key: ActionKey) -> Action | Json | None:
    found = await ledger.get(key)
    if found is not None:
        return found
    value = await ledger.get_value(key)
    return None if value is None else parse(value)


async def _only_of(ledger: ActionLedger, run: str | None) -> RunKey | None:
    """Return the key of the run that a list is narrowed to, if it is."""
    return None if run is None else (await _newest(ledger, run)).run_key


async def _newest(ledger: ActionLedger, id: str) -> Run:
    return (await _runs(ledger, id))[0]


async def _runs(ledger: ActionLedger, id: str) -> Sequence[Run]:
    """Return the run of a key, or those of a workflow's id, the newest first."""
    one = await ledger.get_run(RunKey(id))
    found = [one] if one is not None else await ledger.list_runs(workflow_id=id, limit=_RUNS)
    if not found:
        raise RunNotFound(f"the ledger has no run {id!r}")
    return found


async def handle_of(client: AgentClient, id: str) -> RunHandle:
    """Return the run of a workflow's id, the newest; or by a run's key that one and no other."""
    run = await (await client.ledger()).get_run(RunKey(id))
    return client.run(id) if run is None else client.run(run.workflow_id, run_key=run.run_key)


async def _newest_of(ledger: ActionLedger, runs: Sequence[WorkflowExecution]) -> dict[str, Run]:
    newest = await asyncio.gather(*(ledger.list_runs(workflow_id=run.id, limit=1) for run in runs))
    return {run.id: rows[0] for run, rows in zip(runs, newest, strict=True) if rows}


async def _undone(ledger: ActionLedger, run: Run | None) -> str | None:
    """Say in a word whether what a run did was taken back; None where nobody tried."""
    if run is None or run.undo_began_at is None:
        return None
    if run.state == "undoing":
        return "under way"
    report = await ledger.undo.report(run.run_key)
    return {"nothing to undo": None, "compensated": "yes", "partly compensated": "partly"}[
        report.state
    ]
