"""The activities of a run's undo: begin it, plan its next steps, report what stands.

Each is safe to repeat: an undo that has begun stays begun, and a plan is made from the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Final

from temporalio import activity
from temporalio.common import RawValue

from ...canonical import scrub
from ...identity import ActionKey
from ...ledger import ActionFate, DueUndo, UndoLedger, UndoReport
from ...logs import Log
from ...metrics import UNDOS, count
from ..contract.encoding import pack, to_text, unpack
from ..contract.undo import (
    BEGIN_UNDO,
    FINISH_UNDO,
    PLAN_UNDO,
    BeginUndo,
    FinishUndo,
    PlanUndo,
    UndoOutcome,
    UndoPlan,
    UndoStep,
)
from ..runner.clock import began_at
from .search_attributes import are_registered
from .served import leave_to_other_workers
from .step_tools import StepTools
from .undo_steps import UndoSteps

log = Log()

_STEPS: Final = 100
"""How many steps are planned at a time."""
_LISTED: Final = 200
"""How many actions a report lists where it travels; the ledger has them all."""
_LISTED_CHARACTERS: Final = 300
"""Characters of an action's arguments, and of a reason, in a report. A character may escape to
twelve."""
_MAX_REPORT: Final = 1_500_000
"""Characters of a report that travels."""


class UndoActivities:
    """The activities of a workflow that undoes a run.

    Args:
        app: The tools that this worker serves.
        undo: Over an open pool.
        heartbeat_seconds: How soon Temporal notices a dead worker.
        bare: As `UndoSteps` takes it.
    """

    def __init__(
        self, app: StepTools, undo: UndoLedger, *, heartbeat_seconds: float, bare: bool = False
    ) -> None:
        self._steps = UndoSteps(app, bare=bare)
        self._undo = undo
        self._heartbeat_seconds = heartbeat_seconds

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.begin, self.plan, self.finish)

    @activity.defn(name=BEGIN_UNDO)
    async def begin(self, raw: RawValue) -> RawValue:
        """Commit that the run is being undone, if it must be; return whether. Safe to repeat."""
        request, by = unpack(BeginUndo, raw), activity.info().workflow_id or ""
        if request.after:
            await self._undo.take_over(request.run_key, by=by, after=request.after)
            return pack(True)
        began = await self._undo.begin(
            request.run_key,
            why=request.why,
            failed=request.failed,
            attempt_at=began_at(),
            by=by,
            again=request.again,
            unless=request.unless,
        )
        if began:
            log.info("undo.begun", run_key=request.run_key, why=request.why)
        return pack(began)

    @activity.defn(name=PLAN_UNDO)
    async def plan(self, raw: RawValue) -> RawValue:
        """Return the steps that are due now; open a parked action again for its lookup.

        Safe to repeat. If this worker lacks the tool of the first step, other workers get the
        time to plan it.
        """
        request = unpack(PlanUndo, raw)
        passed, unserved = frozenset(request.passed), frozenset(request.unserved)
        by = activity.info().workflow_id
        found = await self._undo.plan(request.run_key, by=by, passed=passed)
        steps = [await self._step(one) for one in found[:_STEPS]]
        served = list(takewhile(lambda one: not one.unserved or one.tool in unserved, steps))
        if steps and not served:
            leave_to_other_workers(steps[0].tool)
            served = steps[:1]
        return pack(UndoPlan(served, self._heartbeat_seconds, listed=await are_registered()))

    @activity.defn(name=FINISH_UNDO)
    async def finish(self, raw: RawValue) -> RawValue:
        """Commit that the undo is finished; return what stands. Safe to repeat."""
        request = unpack(FinishUndo, raw)
        finished = await self._undo.finish(
            request.run_key,
            attempt_at=began_at(),
            by=activity.info().workflow_id,
            passed=frozenset(request.passed),
        )
        report = await self._undo.report(request.run_key)
        if not finished:
            return pack(UndoOutcome(finished=False))
        count(UNDOS, report.state)
        log.info("undo.finished", run_key=request.run_key, state=report.state)
        return pack(UndoOutcome(finished=True, report=_short_report(report, request.reasons)))

    async def _step(self, due: DueUndo) -> UndoStep:
        steps = self._steps
        step = steps.settlement_of(due) if due.at is None else steps.undo_of(due)
        if due.parked and not step.problem and not await self._undo.reopen(due.reopens):
            step = replace(step, header=None, problem="an attempt may be at work on it")
        return replace(step, passes=due.passes)


def _short_report(report: UndoReport, reasons: Mapping[ActionKey, str]) -> UndoReport:
    """Return the report with the reason for each skipped action, shortened so that it travels."""
    kept: set[ActionKey] = set()
    room = _MAX_REPORT
    short = [_shortened(fate, reasons) for fate in report.actions]
    for fate in sorted(short, key=lambda fate: fate.fate == "undone")[:_LISTED]:
        room -= len(to_text(fate))
        if room < 0:
            break
        kept.add(fate.key)
    actions = [fate for fate in short if fate.key in kept]
    return replace(report, actions=actions, left_out=len(short) - len(actions))


def _shortened(fate: ActionFate, reasons: Mapping[ActionKey, str]) -> ActionFate:
    why = reasons.get(fate.key, fate.why) if fate.fate == "stands" else fate.why
    args, why = (scrub(text, limit=_LISTED_CHARACTERS) for text in (fate.args, why))
    return replace(fate, args=args, why=why)
