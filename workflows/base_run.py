"""What the runs of agents and of plans have in common: what holds them, however they end.

Their deadline, a person's decisions, what they show; and the end: what is to be undone is, the
run is closed in the ledger, and what it failed by is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.activity_failure import ErrorFields
    from ..activities.contract.approvals import DECIDE, Decide
    from ..activities.contract.questions import ANSWER, Answer
    from ..activities.contract.runs import CLOSE_RUN, STOP_RUN, CloseRun, StopRun
    from ..activities.contract.turns import RUN_LOST
    from ..activities.contract.wire import pack, unpack
    from ..canonical import scrub
    from ..errors import (
        Fenced,
        RunDeadlineExceeded,
        RunNotRunning,
        ScheduleUnsupported,
        StaleThread,
    )
    from ..identity import parent_of
    from ..ledger.undo_rules import UndoReport
    from .action_headers import this_run
    from .activity_calls import call_ledger, cancelled, ended, failure, see_through
    from .progress import Progress
    from .run_failure import run_failure
    from .tool_calls import Calls
    from .undo import Undo, with_report

T = TypeVar("T")

DECISION: Final = "decide"
ANSWERED: Final = "answer"

_STOP_WAIT: Final = timedelta(seconds=10)
"""How long a run that may start nothing waits for the cancellation that follows a stop."""


class RunFrame:
    """The base of a workflow that is a run."""

    def __init__(self) -> None:
        self._progress = Progress(agent="", prompt="")
        self._calls: Calls | None = None
        """What carries out its calls, once it is open."""
        self._undone: UndoReport | None = None
        """What of the run was taken back, and what stands."""

    @workflow.query(name="status")
    def status(self) -> RawValue:
        """Return the run's `Progress` as JSON."""
        return pack(self._progress)

    @workflow.update(name=DECISION)
    async def decide(self, raw: RawValue) -> RawValue:
        """Take a person's decision (`Decide`) down in the ledger; then the call goes on.

        Safe to repeat: the first decision counts.
        """
        said = unpack(Decide, raw)
        summary = scrub(f"{said.by} decides about {said.position}", limit=150)
        answer = await _taken_down(DECIDE, said, summary)
        if self._calls is not None:
            self._calls.decided.add(said.position)
        return answer

    @workflow.update(name=ANSWERED)
    async def answer(self, raw: RawValue) -> RawValue:
        """Take a person's answer (`Answer`) down in the ledger; then the call goes on.

        Safe to repeat: the first answer counts.
        """
        said = unpack(Answer, raw)
        summary = scrub(f"{said.by} answers {said.position}", limit=150)
        number = await _taken_down(ANSWER, said, summary)
        if self._calls is not None:
            self._calls.answered.add((said.position, said.number))
        return number

    @answer.validator
    def _check_answer(self, raw: RawValue) -> None:
        unpack(Answer, raw)

    @decide.validator
    def _check_decision(self, raw: RawValue) -> None:
        unpack(Decide, raw)

    async def _within_deadline(self, ends_at: float | None, work: Coroutine[Any, Any, T]) -> T:
        """Do the run's work within its deadline, which is a stop from within.

        Args:
            ends_at: When it passes, by the workflow's clock; None is no limit.
            work: Cancelled when it has.
        """
        if ends_at is None:
            return await work
        running = asyncio.ensure_future(work)
        try:
            await workflow.wait([running], timeout=max(ends_at - workflow.time(), 0.001))
        except asyncio.CancelledError:
            running.cancel()
        reason = "its run_deadline has passed"
        passed = not running.done() and not cancelled()
        if passed:
            await see_through(
                call_ledger(STOP_RUN, StopRun(this_run(), reason), "Stop: the deadline has passed")
            )
            running.cancel()
        await see_through(ended(running))
        if passed:
            raise failure(RunDeadlineExceeded(reason))
        return running.result()

    async def _end(
        self, error: BaseException, *, may_undo: bool, unless: Sequence[str] = ()
    ) -> None:
        """End a run that has not ended well: take back what is to be, and close it.

        Args:
            error: How it ended.
            may_undo: Whether anything that it does can be taken back.
            unless: As `Undo.run` takes it.
        """
        if may_undo:
            await self._unwind(error, unless)
        if self._undone is None:
            await self._close()

    async def _unwind(self, error: BaseException, unless: Sequence[str] = ()) -> None:
        """Take back what the run did, if it is to be taken back."""
        # As `_ended_by` takes it: what an activity makes of a cancellation is no failure.
        stops = is_cancelled_exception(error) or _is_stopping(error)
        stops = stops or (isinstance(error, ActivityError) and cancelled())
        if parent_of(this_run()) is not None and not stops:
            return  # its parent's undo reaches it; but a stop may have been its own
        if not stops and (
            # A fault of this code fails the workflow task, and is mended: the run goes on then.
            not isinstance(error, FailureError) or _goes_on_elsewhere(error) or _is_retried(error)
        ):
            return
        why = "it was stopped" if stops else f"it failed: {_words(error)}"
        unwinding = Undo(this_run(), self._progress)
        self._undone = await see_through(unwinding.run(why, failed=not stops, unless=unless))

    async def _close(self) -> None:
        if cancelled():
            self._show("stopping")
        await see_through(call_ledger(CLOSE_RUN, CloseRun(this_run()), "Close the run"))

    async def _told(self, error: BaseException) -> BaseException:
        """Return what the run ends with."""
        return with_report(await _ended_by(error), self._undone)

    def _show(self, state: str) -> None:
        self._progress.state = state
        workflow.set_current_details(self._progress.markdown())


def read_input(kind: type[T], raw: RawValue) -> T:
    """Return what a run was started with.

    Raises:
        ApplicationError: It is something else, or the run has a cron schedule; final.
    """
    info = workflow.info()
    try:
        given = unpack(kind, raw)
    except Exception as err:
        # An input that cannot be read never can be: fail the run, do not retry the task.
        raise ApplicationError(
            scrub(f"not the input of an {info.workflow_type}: {err}"),
            type="InvalidInput",
            non_retryable=True,
        ) from err
    if info.cron_schedule:
        raise failure(ScheduleUnsupported(f"{info.workflow_id} has a cron schedule"))
    return given


async def _taken_down(activity: str, said: Decide | Answer, summary: str) -> RawValue:
    """Have the ledger take down what a person said; return its answer."""
    try:
        return await call_ledger(activity, said, summary)
    except ActivityError as err:
        raise run_failure(err) from err


async def handlers_finished() -> None:
    """Wait until who waits for an answer of the run has it."""
    if not workflow.all_handlers_finished():
        await see_through(workflow.wait_condition(workflow.all_handlers_finished))


async def _ended_by(error: BaseException) -> BaseException:
    if not isinstance(error, ActivityError):
        return error
    if is_cancelled_exception(error) or cancelled():
        return asyncio.CancelledError()
    if _is_stopping(error):
        # A stop is committed before the cancellation is sent: it is on its way.
        try:
            await workflow.sleep(_STOP_WAIT)
        except asyncio.CancelledError as stopped:
            return stopped
    return run_failure(error)


def _is_stopping(error: BaseException) -> bool:
    """Whether an activity found the run stopped; the cancellation is on its way."""
    fields = ErrorFields.read(error.cause) if isinstance(error, ActivityError) else None
    return fields is not None and fields.stopping


def _words(error: BaseException) -> str:
    """Say what happened, without the remedy: it says that all of it stands."""
    cause = (error.cause if isinstance(error, ActivityError) else None) or error
    fields = ErrorFields.read(cause)
    if fields is None or not isinstance(cause, ApplicationError):
        return scrub(str(cause), limit=500)
    return scrub(f"{cause.type}: {fields.message}", limit=500)


def _goes_on_elsewhere(error: BaseException) -> bool:
    """Whether somebody else has the run, or its conversation: what it did is theirs."""
    cause = error.cause if isinstance(error, ActivityError) else error
    kind = cause.type if isinstance(cause, ApplicationError) else None
    return kind in (StaleThread.__name__, Fenced.__name__, RunNotRunning.__name__, RUN_LOST)


def _is_retried(error: BaseException) -> bool:
    """Whether the workflow's retry policy lets the run go on after this failure."""
    policy, attempt = workflow.info().retry_policy, workflow.info().attempt
    if policy is None or (policy.maximum_attempts and attempt >= policy.maximum_attempts):
        return False
    ends = run_failure(error) if isinstance(error, ActivityError) else error
    if not isinstance(ends, ApplicationError):
        return True
    return not (ends.non_retryable or ends.type in (policy.non_retryable_error_types or ()))
