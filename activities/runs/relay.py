"""The relay's activities: take what is due, look at one action, find runs that are gone.

It calls no tool itself. Each action that needs somebody gets a workflow of its own,
``settle:<action key>``: so many relays are safe, and one action that keeps failing holds up no
other. What is sent goes through the guard, as an agent's calls do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...canonical import scrub
from ...errors import LedgerError
from ...identity import ActionKey, settle_workflow, undo_workflow
from ...ledger import Action, ActionLedger, Queued, Run
from ..app.app import App
from ..app.tool import Tool
from ..contract.activity_failure import as_failure
from ..contract.deadlines import CallLimits
from ..contract.relay import LOOK_AT, SCAN, SETTLE_ACTION, SETTLED, SWEEP, Settled, Settling
from ..contract.undo import UndoStep
from ..contract.wire import pack, unpack
from ..guard.heartbeat import beating
from .served import let_others_try
from .undo import UndoSteps, own_header, own_limits

log = structlog.get_logger("commitline")

_AT_ONCE: Final = 100
"""Actions, or runs, that are taken at a time."""
_LONGEST: Final = 60.0
"""Seconds after which a look ends; the next one goes on with the rest."""
_SIDE_BY_SIDE: Final = 20
_NOT_FOUND_AFTER: Final = timedelta(hours=1)
"""How old a run is before it counts that Temporal does not know its workflow. A replica that
lags, or another cluster, does not know it either."""
_DAY: Final = 86_400.0
_BETWEEN_TRIES: Final = 600.0
_PREFIX: Final = "WORKFLOW_EXECUTION_STATUS_"
_AWAY: Final = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.CANCELLED,
)
"""Of Temporal itself, not of what it was asked."""


class Relay:
    """What every worker can do for actions that nobody sees to.

    Args:
        app: Whose tools it serves.
        ledger: Over an open pool.
        temporal: Where settlings are started, and runs are asked about.
        task_queue: Of the settlings.
        tries: How often what it sends may fail.
        heartbeat_seconds: How soon a dead worker is noticed.
    """

    def __init__(
        self,
        app: App,
        ledger: ActionLedger,
        temporal: Client,
        *,
        task_queue: str,
        tries: int,
        heartbeat_seconds: float,
    ) -> None:
        self._tools = {made.name: made for made in app.tools}
        self._ledger = ledger
        self._temporal = temporal
        self._task_queue = task_queue
        self._tries = tries
        self._heartbeat_seconds = heartbeat_seconds
        self._undo = UndoSteps(app)

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.scan_once, self.look_at, self.settled, self.sweep)

    async def scan(self) -> int:
        """Start a settling of each action that is due; return of how many. Safe to repeat.

        Raises:
            LedgerUnavailable: No answer within the deadline.
            RPCError: Temporal is away; what was not started is due again soon.
        """
        started = 0
        ends_at = time.monotonic() + _LONGEST
        while True:
            due = await self._ledger.relay.take_due(
                list(self._tools), limit=_AT_ONCE, namespace=self._temporal.namespace
            )
            begun = await _side_by_side([self._start(queued) for queued in due])
            started += sum(begun)
            if len(due) < _AT_ONCE or time.monotonic() > ends_at:
                return started

    async def _start(self, queued: Queued) -> bool:
        try:
            await self._temporal.start_workflow(
                SETTLE_ACTION,
                pack(queued.key),
                id=settle_workflow(queued.key),
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                static_summary=scrub(f"{queued.why}: {queued.tool}", limit=150),
            )
        except WorkflowAlreadyStartedError:
            return False  # one is at it
        except RPCError as err:
            # It is due again soon; the others need not wait for it.
            log.warning("relay.start_failed", action_key=queued.key, reason=err.message[:200])
            if err.status in _AWAY:
                raise
            return False
        await self._ledger.relay.count_start(queued)
        log.info("relay.settling_started", action_key=queued.key, why=queued.why)
        return True

    @activity.defn(name=SCAN)
    async def scan_once(self) -> int:
        """Start a settling of each action that is due; return of how many. Safe to repeat."""
        try:
            async with beating():
                return await self.scan()
        except LedgerError as err:
            raise as_failure(err) from err

    @activity.defn(name=LOOK_AT)
    async def look_at(self, raw: RawValue) -> RawValue:
        """Say what is to be done about an action. Safe to repeat.

        Where this worker lacks the tool, others are given the time to say it instead.
        """
        key = ActionKey(unpack(str, raw))
        try:
            settling = await self._settling(key)
        except LedgerError as err:
            raise as_failure(err) from err
        if settling.step is not None and settling.step.lacking:
            let_others_try(settling.step.tool)
        return pack(replace(settling, heartbeat_seconds=self._heartbeat_seconds))

    @activity.defn(name=SETTLED)
    async def settled(self, raw: RawValue) -> None:
        """Take an action that has an end out of the queue. Safe to repeat."""
        done = unpack(Settled, raw)
        relay = self._ledger.relay
        try:
            if done.failed:
                log.warning("relay.settling_failed", action_key=done.key, reason=done.failed)
                found = await relay.queued(done.key)
                if found is not None and found[0].starts >= self._tries:
                    await relay.give_up(done.key, f"the relay gave it up: {done.failed}")
            await relay.leave_if_settled(done.key)
        except LedgerError as err:
            raise as_failure(err) from err

    async def _settling(self, key: ActionKey) -> Settling:
        """Say what is to be done, by what the ledger and Temporal say now."""
        queued = await self._ledger.relay.queued(key)
        found = await self._ledger.get(key)
        run = None if found is None else await self._ledger.get_run(found.run_key)
        if queued is None or found is None or run is None:
            return Settling(why="nothing is to be done about it")
        if queued[0].why == "undo":
            return await self._undoing(found, run)
        if (why := await self._why_not(found, run, *queued)) is not None:
            return Settling(why=why)
        if found.leased:
            left = found.lease_until - found.now if found.lease_until else timedelta()
            return Settling(wait_seconds=left.total_seconds() + 0.1, why="it may be at work")
        return Settling(self._call(found, queued[0], sends=run.stopped_at is None))

    async def _why_not(
        self, found: Action, run: Run, queued: Queued, first_in_order: bool
    ) -> str | None:
        """Say why an action is not to be seen to now; None where it is."""
        if found.status == "done" or found.parked:
            return f"it is {found.state}"
        if not first_in_order:
            return "another one is before it in order"
        if queued.why == "ask" and await self._goes_on(run):
            return "its run goes on"
        if found.dispatched_at is None and run.stopped_at is not None:
            why = f"its run was stopped before it was sent: {run.stop_reason}"
            await self._ledger.relay.call_off(found.key, why)
            return why
        return None

    async def _undoing(self, found: Action, run: Run) -> Settling:
        if run.state == "undoing":
            return Settling(why="its run is being undone, and this with it")
        due = await self._ledger.undo.plan_one(found)
        if due is None:
            return Settling(why="it is undone, or its undo had no effect")
        return Settling(self._undo.undo_of(due))

    def _call(self, found: Action, queued: Queued, *, sends: bool) -> UndoStep:
        made = self._tools.get(found.tool)
        if made is None:  # during a deploy another worker has it, and knows what it may do
            problem = f"no worker of this task queue was found that serves {found.tool!r}"
            return UndoStep(found.key, found.tool, problem=problem, lacking=True)
        # A state only its run could give it.
        resends = made.relay == "resend" or queued.why != "ask"
        lookup_only = not sends or not resends or made.state is not None
        limits = self._limits(made)
        header = replace(
            own_header(found, limits, "relay"), lookup_only=lookup_only, tries=self._tries
        )
        what = "Find out what became of" if lookup_only else "Call"
        summary = scrub(f"{what} {found.tool}: {found.args}", limit=150)
        return UndoStep(found.key, found.tool, found.args, limits, summary, header)

    def _limits(self, made: Tool) -> CallLimits:
        """Return the deadlines of a call that nobody waits for, with time for all of its tries."""
        attempt = own_limits(made).attempt_seconds
        assert attempt is not None, "such a call has a deadline"
        tries = self._tries * (attempt + _BETWEEN_TRIES)
        return CallLimits(attempt, max(_DAY, tries))

    # --- runs that are gone ---------------------------------------------------------------

    @activity.defn(name=SWEEP)
    async def sweep(self) -> int:
        """End the runs whose workflows have ended without a word; return how many.

        Safe to repeat. What they left dispatched is queued, to be asked about. A run that cannot
        be looked at now is the next sweep's.
        """
        try:
            async with beating():
                return await self._sweep()
        except LedgerError as err:
            raise as_failure(err) from err

    async def _sweep(self) -> int:
        relay = self._ledger.relay
        gone = 0
        ends_at = time.monotonic() + _LONGEST
        began = await relay.now()
        while True:
            runs = await relay.take_runs(
                limit=_AT_ONCE, before=began, namespace=self._temporal.namespace
            )
            gone += sum(await _side_by_side([self._end_if_gone(run) for run in runs]))
            if len(runs) < _AT_ONCE or time.monotonic() > ends_at:
                return gone

    async def _end_if_gone(self, run: Run) -> bool:
        try:
            end = await self._end_of(run)
        except RPCError as err:
            log.warning("relay.look_failed", run_key=run.run_key, reason=err.message[:200])
            return False
        if end is None:
            return False
        ended = await self._ledger.relay.end_gone(
            run,
            gone_as=end.how,
            ended_at=end.at,
            # Activities of a workflow that is not ours: the relay has no tool of theirs.
            asks=run.spec is not None or run.parent_key is not None,
        )
        if ended:
            log.warning("relay.run_gone", run_key=run.run_key, gone_as=end.how)
        return ended

    async def _goes_on(self, run: Run) -> bool:
        return await self._end_of(run) is None

    async def _end_of(self, run: Run) -> _End | None:
        """Return how a run's workflow ended; None while the run goes on, or may."""
        if run.namespace not in (None, self._temporal.namespace):
            return None
        current = await self._describe(run.workflow_id)
        if current is not None and _is_of(current, run):
            end = _ended(current)
        else:
            end = await self._earlier_end(run)
        if end is None or run.state != "undoing":
            return end
        if await self._is_undone_now(run):
            return None
        # It had ended well, and was being taken back: that is what nobody goes on with.
        return replace(end, how="undo lost") if end.how == "completed" else end

    async def _earlier_end(self, run: Run) -> _End | None:
        """Return how a run ended whose id is another run's by now, or nobody's."""
        first = None
        if run.parent_key is None:  # a sub-agent's key names no execution
            first = await self._describe(run.workflow_id, run.run_key.rpartition("/")[2])
        if first is not None:
            # Its chain of executions has ended, or its id were not free. How is known of the
            # first one only, which may have gone on in others.
            end = _ended(first)
            return end if end is not None else _End("ended", run.now)
        return _End("not found", run.now) if run.now - run.created_at > _NOT_FOUND_AFTER else None

    async def _is_undone_now(self, run: Run) -> bool:
        """Whether a workflow takes back what an ended run did, or the run that it worked for."""
        at: Run | None = run
        while at is not None:
            undoing = await self._describe(undo_workflow(at.run_key))
            if undoing is not None and _ended(undoing) is None:
                return True
            at = None if at.parent_key is None else await self._ledger.get_run(at.parent_key)
            if at is not None:
                theirs = await self._describe(at.workflow_id)
                if theirs is not None and _is_of(theirs, at) and _ended(theirs) is None:
                    return True
        return False

    async def _describe(self, workflow_id: str, run_id: str = "") -> WorkflowExecutionInfo | None:
        """Return an execution, by default the *current* one of a workflow id.

        After a reset the first one reads as terminated while the run lives on.
        """
        try:
            answer = await self._temporal.workflow_service.describe_workflow_execution(
                # Not the client's own: it does not know every status.
                DescribeWorkflowExecutionRequest(
                    namespace=self._temporal.namespace,
                    execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
                ),
                retry=True,
            )
        except RPCError as err:
            if err.status is RPCStatusCode.NOT_FOUND and "namespace" not in err.message.lower():
                return None
            raise
        return answer.workflow_execution_info


@dataclass(frozen=True)
class _End:
    """How a workflow ended, and when."""

    how: str
    at: datetime


def _ended(found: WorkflowExecutionInfo) -> _End | None:
    """Return how an execution ended; None where it goes on, in this execution or in another."""
    if not found.HasField("close_time"):
        return None
    name = WorkflowExecutionStatus.Name(found.status).removeprefix(_PREFIX).lower()
    if name == "continued_as_new":
        return None
    return _End(name, found.close_time.ToDatetime().replace(tzinfo=UTC))


def _is_of(found: WorkflowExecutionInfo, run: Run) -> bool:
    """Whether a workflow is the run's, and not a later one under its id."""
    if run.parent_key is not None:
        return True  # its workflow's id names the parent's execution
    first = found.first_run_id or found.execution.run_id
    return run.run_key == f"{found.execution.workflow_id}/{first}"


async def _side_by_side(work: Sequence[Coroutine[Any, Any, bool]]) -> list[bool]:
    """Do all of it, a few at a time; then raise what one of it raised."""
    gate = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def one(item: Coroutine[Any, Any, bool]) -> bool:
        async with gate:
            return await item

    done = await asyncio.gather(*(one(item) for item in work), return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in done if isinstance(outcome, bool)]
