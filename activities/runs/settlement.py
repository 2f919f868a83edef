"""The activities of one settlement: plan the relay's next step for an action, and finish.

A settlement sends an action of the outbox or a detached one, finds out how an action of a run
that is gone ended, or calls the compensator that a late success needs. What it sends goes through
the guard, as an agent's calls do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client
from temporalio.common import RawValue

from ...identity import ActionKey, is_of_outbox
from ...ledger import Action, ActionLedger, RelayEntry, Run
from ...logs import Log
from ...shown import markdown_line
from ..contract.deadlines import CallLimits
from ..contract.encoding import pack, unpack
from ..contract.relay import FINISH_SETTLEMENT, PLAN_SETTLEMENT, FinishSettlement, SettlementPlan
from ..contract.search_attributes import Listing
from ..contract.undo import UndoStep
from .intent_check import IntentCheck
from .run_executions import RunExecutions
from .search_attributes import are_registered
from .served import leave_to_other_workers
from .step_tools import StepTool, StepTools
from .undo_steps import UndoSteps, step_header, step_limits

log = Log()

_DAY: Final = 86_400.0
_BETWEEN_TRIES: Final = 600.0


class SettlementActivities:
    """The activities of `SettleAction`.

    Args:
        app: The tools that this worker serves.
        ledger: Over an open pool.
        temporal: The cluster that says whether a run goes on.
        tries: How often a call that the relay sends may fail.
        heartbeat_seconds: How soon Temporal notices a dead worker.
        intents: Checks what the outbox sends; None: the tools are another framework's, and of
            their actions only those of its own runs are settled.
        bare: As `UndoSteps` takes it.
    """

    def __init__(
        self,
        app: StepTools,
        ledger: ActionLedger,
        temporal: Client,
        *,
        tries: int,
        heartbeat_seconds: float,
        intents: IntentCheck | None,
        bare: bool = False,
    ) -> None:
        self._tools = {made.name: made for made in app.tools}
        self._ledger = ledger
        self._executions = RunExecutions(temporal, ledger)
        self._tries = tries
        self._heartbeat_seconds = heartbeat_seconds
        self._bare = bare
        self._undo = UndoSteps(app, bare=bare)
        self._intents = intents

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.plan_settlement, self.finish_settlement)

    @activity.defn(name=PLAN_SETTLEMENT)
    async def plan_settlement(self, raw: RawValue) -> RawValue:
        """Return the `SettlementPlan` of an action. Safe to repeat.

        If this worker lacks the tool, other workers get the time to plan it.
        """
        key = ActionKey(unpack(str, raw))
        plan = await self._plan(key)
        if plan.step is not None and plan.step.unserved:
            leave_to_other_workers(plan.step.tool)
        if plan.step is not None or plan.wait_seconds:
            await self._ledger.relay.show_no_more(key)
        beat, listing = self._heartbeat_seconds, await self._listing(key)
        return pack(replace(plan, heartbeat_seconds=beat, listing=listing))

    @activity.defn(name=FINISH_SETTLEMENT)
    async def finish_settlement(self, raw: RawValue) -> RawValue:
        """Take an action out of the queue if it is settled; return whether it waits for a person.

        Safe to repeat.
        """
        finished = unpack(FinishSettlement, raw)
        relay = self._ledger.relay
        if finished.failed:
            log.warning("relay.settlement_failed", action_key=finished.key, reason=finished.failed)
            found = await relay.entry(finished.key)
            if found is not None and found[0].starts >= self._tries:
                await relay.leave_to_person(
                    finished.key, f"the relay gave it up: {finished.failed}"
                )
        waits = await relay.dequeue_if_settled(finished.key, shown=not finished.cancelled)
        return pack(waits)

    async def _listing(self, key: ActionKey) -> Listing | None:
        """Return what the list shows of an action's settlement; None where it shows nothing."""
        if not await are_registered():
            return None
        found = await self._ledger.get(key)
        run = None if found is None else await self._ledger.runs.get(found.run_key)
        if found is None or run is None:
            return None
        # A conversation of a run's own has the run's key.
        named = found.thread_id not in (None, run.run_key)
        return Listing(run.agent, found.thread_id or "" if named else "")

    async def _plan(self, key: ActionKey) -> SettlementPlan:
        """Return what to do, by what the ledger and Temporal say now."""
        queued = await self._ledger.relay.entry(key)
        found = await self._ledger.get(key)
        run = None if found is None else await self._ledger.runs.get(found.run_key)
        if queued is None or found is None or run is None:
            return SettlementPlan(why="nothing is to be done about it")
        if self._intents is None and (run.spec or is_of_outbox(run.run_key) or found.adopted):
            return SettlementPlan(why="it is of another application, with a tool of the same name")
        if queued[0].why == "undo":
            return await self._undo_plan(found, run)
        if found.state == "intent" and run.stopped_at is not None and not found.adopted:
            stopped = f"its run was stopped before it was sent: {run.stop_reason}"
            found = await self._ledger.relay.give_up(key, stopped)
        why = await self._why_not(found, run, *queued)
        if why is None and self._intents is not None:
            why = await self._intents.refusal_of(found)
        if why is not None:
            return SettlementPlan(why=why)
        if found.leased:
            left = found.lease_until - found.now if found.lease_until else timedelta()
            return SettlementPlan(wait_seconds=left.total_seconds() + 0.1, why="it may be at work")
        sends = run.stopped_at is None or found.adopted
        return SettlementPlan(self._call(found, queued[0], sends=sends))

    async def _why_not(
        self, found: Action, run: Run, queued: RelayEntry, first_in_order: bool
    ) -> str | None:
        """Return why the relay does nothing about an action now; None if it does."""
        if found.status == "done" or found.parked:
            return f"it is {found.state}"
        if not first_in_order:
            return "another one is before it in order"
        if queued.why == "lookup" and await self._executions.end_of(run) is None:
            return "its run goes on"
        return None

    async def _undo_plan(self, found: Action, run: Run) -> SettlementPlan:
        if run.state == "undoing":
            return SettlementPlan(why="its run is being undone, and this with it")
        due = await self._ledger.undo.plan_one(found)
        if due is None:
            return SettlementPlan(why="it is undone, or its undo had no effect")
        return SettlementPlan(self._undo.undo_of(due))

    def _call(self, found: Action, queued: RelayEntry, *, sends: bool) -> UndoStep:
        made = self._tools.get(found.tool)
        if made is None:
            problem = f"no worker of this task queue was found that serves {found.tool!r}"
            return UndoStep(found.key, found.tool, problem=problem, unserved=True)
        # Only its run could give a tool the state, so the relay never calls such a tool.
        resends = made.relay == "resend" or queued.why != "lookup"
        lookup_only = not sends or not resends or made.state is not None
        limits = self._limits(made)
        header = replace(
            step_header(found, limits, "relay"), lookup_only=lookup_only, tries=self._tries
        )
        what = "Find out what became of" if lookup_only else "Call"
        summary = markdown_line(f"{what} {found.tool}: {found.args}")
        return UndoStep(found.key, found.tool, limits, summary, header, bare=self._bare)

    def _limits(self, made: StepTool) -> CallLimits:
        """Return the deadlines of a call for which no run waits, with time for all of its tries."""
        attempt = step_limits(made).attempt_seconds
        assert attempt is not None, "such a call has a deadline"
        tries = self._tries * (attempt + _BETWEEN_TRIES)
        return CallLimits(attempt, max(_DAY, tries))
