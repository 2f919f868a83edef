"""The base of `AgentRun` and `PlanRun`: what every run can do, and how every run ends.

A run shows its progress, takes a person's decisions and answers, and keeps its deadline. When it
fails or is stopped, what it did is undone if it must be, and the run is closed in the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import NoneType
from typing import Any, Final, NoReturn, TypeVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
)

from ..activities.contract.approvals import DECIDE, Decide, WordGiven
from ..activities.contract.encoding import from_plain, pack, unpack
from ..activities.contract.questions import ANSWER, Answer
from ..activities.contract.runs import CLOSE_RUN, LOOK, STOP_RUN, CloseRun, StopRun
from ..canonical import scrub
from ..errors import (
    AnswerRefused,
    ApprovalRefused,
    PayloadUnreadable,
    RunDeadlineExceeded,
    ScheduleUnsupported,
)
from ..identity import RunKey
from ..ledger.undo_rules import UndoReport
from ..shown import markdown_line
from .action_headers import this_run
from .activity_calls import (
    cancelled,
    despite_cancellation,
    failure,
    may_be_made_anew,
    run_ledger_activity,
)
from .list_state import ListState, show
from .progress import Progress
from .run_end import final_error, is_refused, is_stop, is_undoing, run_failure, undo_reason
from .tool_calls import ToolCalls
from .undo import Undo, with_report
from .undo_run import undo_in_child

T = TypeVar("T")

DECISION: Final = "decide"
ANSWERED: Final = "answer"
WORD_GIVEN: Final = "word_given"


class BaseRun:
    """A workflow that is a run; see the module."""

    def __init__(self) -> None:
        self._progress = Progress(agent="", prompt="")
        self._list = ListState(is_run=True)
        """What Temporal's list shows of it."""
        self._calls: ToolCalls | None = None
        """Makes its calls, once the run is open."""
        self._undone: UndoReport | None = None
        """What was undone, and what stands; None if the run was not undone."""

    @workflow.query(name="status", description="The progress of the run, as JSON")
    def status(self) -> RawValue:
        """Return the run's `Progress` as JSON."""
        return pack(self._progress)

    @workflow.update(
        name=DECISION,
        description="A person approves or rejects a call: commitline approve, commitline reject",
    )
    async def decide(self, raw: RawValue) -> RawValue:
        """Record a person's decision (`Decide`) in the ledger; then the call goes on.

        Safe to repeat: the first decision counts.
        """
        said = unpack(Decide, raw)
        did = "approves" if said.approve else "rejects"
        changed = ", with other arguments" if said.arguments is not None else ""
        why = f": {said.reason}" if said.reason else ""
        summary = markdown_line(f"{said.by} {did} {said.position}{changed}{why}")
        decision = await _record(str, DECIDE, said, summary)
        if self._calls is not None:
            self._calls.decided.add(said.position)
        return pack(decision)

    @workflow.update(
        name=ANSWERED, description="A person answers the question of a call: commitline answer"
    )
    async def answer(self, raw: RawValue) -> RawValue:
        """Record a person's answer (`Answer`) in the ledger; then the call goes on.

        Safe to repeat: the first answer counts.
        """
        said = unpack(Answer, raw)
        summary = markdown_line(f"{said.by} answers {said.position}")
        number = await _record(int, ANSWER, said, summary)
        if self._calls is not None:
            self._calls.answered.add((said.position, said.number))
        return pack(number)

    @answer.validator
    def _check_answer(self, raw: RawValue) -> None:
        """Refuse, without an event in history, what surely does not count."""
        said = unpack(Answer, raw)
        if said.run_key != this_run():
            raise failure(AnswerRefused(_of_another_run(said.run_key)))
        if self._calls is not None and (said.position, said.number) in self._calls.answered:
            raise failure(
                AnswerRefused(f"question {said.number} of {said.position} was answered before")
            )

    @decide.validator
    def _check_decision(self, raw: RawValue) -> None:
        """Refuse, without an event in history, what surely does not count."""
        said = unpack(Decide, raw)
        if said.run_key != this_run():
            raise failure(ApprovalRefused(_of_another_run(said.run_key)))
        about = (said.position, said.generation)
        if self._calls is not None and about in self._calls.settled:
            raise failure(ApprovalRefused(f"{said.position} waits for no decision any more"))

    @workflow.signal(
        name=WORD_GIVEN, description="A decision or an answer is in the ledger: read it and go on"
    )
    def word_given(self, *sent: Any) -> None:
        """Go on with a call whose decision or answer (`WordGiven`) is in the ledger by now.

        Safe to repeat: the ledger is read, and nothing else counts. Anybody may send a signal, and
        an error here would fail the workflow task for ever, so what cannot be read is dropped.
        """
        try:
            given = from_plain(WordGiven, sent[0] if sent else None)
        except ValueError:
            return
        if self._calls is None or given.run_key != this_run():
            return
        if given.number is None:
            self._calls.decided.add(given.position)
        else:
            self._calls.answered.add((given.position, given.number))

    @workflow.signal(name=LOOK, description="Look into the ledger now")
    def look(self, *sent: Any) -> None:
        """Look into the ledger now, for whatever a person is waited for. Safe to repeat.

        The relay sends it to a run that the ledger does not know any more: it ends by that name.
        """
        if self._calls is not None:
            self._calls.look()

    async def _within_deadline(self, ends_at: float | None, work: Coroutine[Any, Any, T]) -> T:
        """Do the run's work within its deadline; after it, the run stops itself.

        Args:
            ends_at: The deadline by the workflow's clock; None is no limit.
            work: Cancelled when the deadline has passed.
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
            stop = StopRun(this_run(), reason)
            await despite_cancellation(
                run_ledger_activity(NoneType, STOP_RUN, stop, "Stop: the deadline has passed")
            )
            running.cancel()
        await despite_cancellation(workflow.wait([running]))
        if passed:
            raise failure(RunDeadlineExceeded(reason))
        return running.result()

    async def _end(
        self, error: BaseException, *, may_undo: bool, unless: Sequence[str] = ()
    ) -> NoReturn:
        """End a run that failed or was stopped: undo what must be undone, and close the run.

        Raises the error that the run ends with. It is decided before the undo begins: a stop that
        comes during the undo does not turn a failure into a cancellation.

        Args:
            error: How its work ended.
            may_undo: Whether one of its tools can be undone.
            unless: As for `Undo.run`.
        """
        final = await final_error(error)
        if may_undo:
            await self._undo(error, unless)
        if self._undone is None:
            await self._close()
        if final is error:
            raise final
        raise final from error

    async def _undo(self, error: BaseException, unless: Sequence[str] = ()) -> None:
        """Undo what the run did, if it must be undone."""
        why = undo_reason(error)
        if why is None:
            return
        undo = Undo(this_run(), self._progress, elsewhere=undo_in_child)
        self._undone = await despite_cancellation(
            undo.run(why, failed=not is_stop(error), unless=unless)
        )

    async def _end_unopened(self, error: BaseException) -> None:
        """End a run that could not be opened, where it was open before and did something.

        That was an earlier execution, or a first task whose worker died.
        """
        first = workflow.info().run_id == workflow.info().first_execution_run_id
        ordered = is_stop(error) or is_undoing(error)
        if first and not (ordered and may_be_made_anew()):
            return
        await self._undo(error)
        if self._undone is None and cancelled():
            await self._close()

    async def _close(self) -> None:
        """Close the run.

        Raises:
            ActivityError: The workflow had begun to undo the run, and was then reset to before
                that. The undo has been brought to its end.
        """
        if cancelled():
            self._show("stopping")
        open_ends = self._progress.open_ends()
        summary = f"Close the run; {open_ends}" if open_ends else "Close the run"
        try:
            await despite_cancellation(
                run_ledger_activity(NoneType, CLOSE_RUN, CloseRun(this_run()), summary)
            )
        except ActivityError as err:
            if is_undoing(err):
                await self._undo(err)
            raise

    async def _error_of(self, error: BaseException) -> BaseException:
        """Return the error that the run ends with."""
        return with_report(await final_error(error), self._undone)

    def _show_end(self, error: BaseException | None = None) -> None:
        """Show in Temporal's list how the run ends."""
        refused = error is not None and is_refused(error)
        self._list.end(self._progress, self._undone, refused=refused)

    def _show(self, state: str) -> None:
        self._progress.state = state
        show(self._progress)


def read_input(kind: type[T], raw: RawValue) -> T:
    """Return the input of a run.

    Raises:
        ApplicationError: The input is of another kind, or the run has a cron schedule; final.
        PayloadUnreadable: This worker lacks the codec. The task fails, and another worker has it.
    """
    info = workflow.info()
    try:
        given = unpack(kind, raw)
    except PayloadUnreadable:
        raise
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


def _of_another_run(run_key: RunKey) -> str:
    return f"it is about a call of {run_key}, and this is the workflow of {this_run()}"


async def _record(kind: type[T], activity: str, said: Decide | Answer, summary: str) -> T:
    """Record what a person decided or answered; return the ledger's answer."""
    try:
        return await run_ledger_activity(kind, activity, said, summary)
    except ActivityError as err:
        raise run_failure(err) from err


async def handlers_finished() -> None:
    """Wait until all callers that wait for this run have their answers."""
    if not workflow.all_handlers_finished():
        await despite_cancellation(workflow.wait_condition(workflow.all_handlers_finished))
