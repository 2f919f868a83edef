"""The undo of a run: unknown actions are settled, what stands is undone, the latest first.

The ledger says what is due, the guard makes each call as it makes any call, and every outcome is
recorded before the next step. An undo cannot be stopped: a cancellation waits until it has
finished. So it ends whatever the tools do, and reports what stands.

A run may have done more than one history has room for. Then the undo goes on in the next execution
of `UndoRun`: a failed run starts that as its child, and waits for its report.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio.exceptions import ActivityError, ApplicationError

from ..activities.contract.activity_failure import ErrorFields
from ..activities.contract.reply import Reply
from ..activities.contract.search_attributes import Listing
from ..activities.contract.undo import (
    BEGIN_UNDO,
    FINISH_UNDO,
    PLAN_UNDO,
    BeginUndo,
    FinishUndo,
    PlanUndo,
    UndoOutcome,
    UndoPlan,
    UndoRequest,
    UndoSoFar,
    UndoStep,
)
from ..canonical import scrub
from ..identity import ActionKey, RunKey, split_action_key, undo_workflow
from ..ledger.undo_rules import UndoReport
from .activity_calls import history_is_full, run_ledger_activity
from .finished_call import state_of, step_reply
from .list_state import ListState, list_state, show
from .progress import Progress

_TRY_AGAIN: Final = "`commitline undo RUN` tries again what stands."
_ALL_UNDONE: Final = "What can be undone of it is undone."
_MAX_REASONS: Final = 200
"""How many reasons travel to the report, which lists no more actions."""


class Undo:
    """Undoes what one run, and the runs of its sub-agents, did.

    Args:
        run_key: The run.
        progress: Shows the undo to people.
        elsewhere: Goes on with the undo where there is room for it, and returns the report; None
            where it cannot, and the undo goes on here.
        so_far: What an undo knows that has begun.
        own: What Temporal's list shows of a workflow that only undoes.
    """

    def __init__(
        self,
        run_key: RunKey,
        progress: Progress,
        *,
        elsewhere: Callable[[UndoRequest], Awaitable[UndoReport | None]],
        so_far: UndoSoFar | None = None,
        own: ListState | None = None,
    ) -> None:
        known = so_far or UndoSoFar()
        self._run_key = run_key
        self._progress = progress
        self._elsewhere = elsewhere
        self._own = own
        self._passed: list[ActionKey] = list(known.passed)
        self._reasons: dict[ActionKey, str] = dict(known.reasons)
        self._unserved: set[str] = set(known.unserved)
        self._stays = False
        """It could not go on elsewhere."""

    async def run(
        self, why: str, *, failed: bool, again: bool = False, unless: Sequence[str] = ()
    ) -> UndoReport | None:
        """Undo the run if it must be undone; return the report, or None if it was not undone.

        Args:
            why: For people.
            failed: The run failed. A run that was cancelled is undone only if its stop said so.
            again: A person has started the undo, of a run that has ended.
            unless: Names of tools. A run that failed is not undone once a call of one of them
                took effect, or may have taken effect.
        """
        begin = BeginUndo(self._run_key, scrub(why, limit=1_000), failed, again, list(unless))
        if not await run_ledger_activity(bool, BEGIN_UNDO, begin, "Must the run be undone?"):
            return None
        return await self.go_on(why)

    async def go_on(self, why: str, *, after: str = "") -> UndoReport | None:
        """Undo the run, whose undo has begun; as for `run`.

        Args:
            why: For people.
            after: The workflow that hands the undo over to this one; empty where none does.
        """
        if after:
            handed_over = BeginUndo(self._run_key, why, after=after)
            await run_ledger_activity(bool, BEGIN_UNDO, handed_over, "Go on with the undo")
        if (listed := list_state.get(None)) is not None:
            listed.stage = "undoing"
        self._show("undoing what it did")
        while True:
            if not await self._take_steps():
                self._show(f"undoing what it did, in {undo_workflow(self._run_key)}")
                so_far = UndoSoFar(self._passed, self._reasons, sorted(self._unserved))
                report = await self._elsewhere(UndoRequest(self._run_key, why, so_far))
                if report is not None:
                    return report
                self._stays = True
                continue
            finish = FinishUndo(self._run_key, self._passed, self._reasons)
            outcome = await run_ledger_activity(
                UndoOutcome, FINISH_UNDO, finish, "Report what is undone"
            )
            if outcome.finished:
                if outcome.report is not None:
                    self._show(outcome.report.state)
                return outcome.report

    async def _take_steps(self) -> bool:
        """Take the steps that are due, until there is none; False where history is full."""
        while True:
            request = PlanUndo(self._run_key, self._passed, sorted(self._unserved))
            plan = await run_ledger_activity(UndoPlan, PLAN_UNDO, request, "What is to be undone?")
            if plan.listed and self._own is not None:
                self._own.begin(Listing(self._progress.agent))
                self._show(self._progress.state)
            # The activity has given other workers the time to plan them.
            self._unserved |= {step.tool for step in plan.steps if step.unserved}
            if not plan.steps:
                return True
            for step in plan.steps:
                if history_is_full() and not self._stays:
                    return False
                await self._take_step(step, plan.heartbeat_seconds)

    async def _take_step(self, step: UndoStep, heartbeat_seconds: float) -> None:
        """Take one step; if that is not possible, skip it and keep the reason for the report."""
        if step.header is None:
            self._skip(step, step.problem)
            return
        call = self._progress.begin(step.header.position, step.summary)
        self._show(self._progress.state)
        try:
            reply = await step_reply(step, step.header, heartbeat_seconds=heartbeat_seconds)
        except ActivityError as err:
            # It must not keep the other actions from being undone.
            self._skip(step, str(err.cause or err))
            call.state = "error"
        else:
            call.state = state_of(reply)
            if step.header.undoes is not None and reply.status == "ok":
                self._show_undone(step.header.undoes)
            if reply.action_key is None:
                self._skip(step, _reason(reply))
        self._show(self._progress.state)

    def _show_undone(self, key: ActionKey) -> None:
        run, at = split_action_key(key)
        for call in self._progress.calls:
            if run == self._run_key and call.position == at:
                call.state = "undone"

    def _skip(self, step: UndoStep, why: str) -> None:
        self._passed.append(step.passes or step.key)
        if len(self._reasons) < _MAX_REASONS:
            self._reasons[step.key] = scrub(why, limit=300)

    def _show(self, state: str) -> None:
        self._progress.state = state
        show(self._progress)


def _reason(reply: Reply) -> str:
    """Return why a call was not made."""
    content: Any = reply.content
    error = content.get("error", {}) if isinstance(content, dict) else {}
    return str(error.get("message") or content)


def with_report(error: BaseException, report: UndoReport | None) -> BaseException:
    """Return the error of a run, with what of it was undone, and what stands."""
    if report is None or not isinstance(error, ApplicationError):
        return error
    fields = ErrorFields.read(error)
    what = error.message if fields is None else fields.message
    message = scrub(f"{what}. {in_words(report)}", limit=4_000)
    if fields is None:
        return ApplicationError(message, type=error.type, non_retryable=True)
    # The error's own remedy says that all of it stands.
    remedy = _TRY_AGAIN if report.state == "partly compensated" else _ALL_UNDONE
    undone = replace(fields, message=message, remedy=remedy)
    return undone.as_failure(error.type, non_retryable=True)


def in_words(report: UndoReport) -> str:
    """Say what of a run was undone, and what stands."""
    undone = [fate for fate in report.actions if fate.fate == "undone"]
    more = f", {report.left_out} more not listed" if report.left_out else ""
    nothing = report.state == "nothing to undo"
    state = "It left nothing to undo" if nothing else f"The run is {report.state}"
    words = [f"{state}: {len(undone)} undone{more}"]
    words += [
        f"{fate.tool} at {fate.at} {'is unknown' if fate.fate == 'unknown' else 'stands'} "
        f"({fate.why})"
        for fate in report.standing
    ]
    return scrub("; ".join(words), limit=3_000)
