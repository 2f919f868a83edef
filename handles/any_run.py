"""`AnyRun`: one run, of an agent or of a plan, for application code.

Its workflow says where the run is; the ledger says what it did. What an agent's run returns, and
its conversation, are in `thread`; what a plan's run returns is in `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from temporalio.client import WorkflowExecutionDescription

from ..canonical import storable
from ..errors import ResetRefused, RunGone, RunUnrecorded
from ..identity import RunKey, parent_of
from ..ledger import Action, Approval, Question, UndoReport
from ..workflows.progress import Progress
from .connection import Connection
from .decision import answer, decide
from .executions import is_paused
from .intervention import Intervention, Verb
from .reset import Reset, reset_run
from .run_workflow import RunState, RunWorkflow, run_key_of, state_of
from .stop import stop
from .undo import undo

STOP_SECONDS: Final = 30.0
"""How long `AnyRun.stop` waits for a run's end by default."""


@dataclass(frozen=True)
class RunStatus:
    """A run as Temporal sees it now."""

    id: str
    """The workflow id."""
    run_key: RunKey
    """The run's name in the ledger."""
    state: RunState
    """``stopping``: its stop or cancellation is under way, or no worker is there to finish it.
    ``paused``: an operator has paused its workflow, and it goes on when that is over.
    ``gone``: Temporal has no workflow of it any more; the ledger has what it did."""
    progress: Progress | None
    """Where it is; None while no worker is there to say."""


class AnyRun:
    """One run, of an agent or of a plan.

    Args:
        connection: Of the client that made it.
        id: The workflow id.
        first: The id of the run's first execution; None is the newest run that has the
            workflow id, looked up at each call.
    """

    def __init__(self, connection: Connection, id: str, *, first: str | None = None) -> None:
        self._connection = connection
        self._workflow = RunWorkflow(connection, id, first=first)

    @property
    def id(self) -> str:
        """The workflow id."""
        return self._workflow.id

    async def status(self) -> RunStatus:
        """Return where the run is. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
        """
        return await _status(self._workflow)

    async def state(self) -> RunState:
        """Return the run's state alone, which no worker is needed for. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
        """
        return await _state(self._workflow)

    async def is_unrecorded(self) -> bool:
        """Whether the run has begun, and the ledger has nothing of it. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
        """
        try:
            await self._workflow.check_recorded(await self._workflow.run_key())
        except RunUnrecorded:
            return True
        return False

    async def describe(self) -> WorkflowExecutionDescription:
        """Return what Temporal knows of the run now. Safe to repeat; it only reads.

        Raises:
            RunNotFound: No run has this id.
        """
        return await self._workflow.describe()

    async def actions(self) -> Sequence[Action]:
        """Return what the ledger holds of the run and its sub-agents, oldest first. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        run_key = await self._workflow.run_key()
        return await (await self._connection.ledger()).sub_runs.actions(run_key)

    async def stop(
        self,
        *,
        reason: str = "",
        compensate: bool = False,
        wait_seconds: float = STOP_SECONDS,
        by: str = "",
    ) -> RunStatus:
        """Stop the run for good, and wait until its tools have really ended.

        First the stop is committed in the ledger: from then on none of the run's actions is
        claimed, anywhere, by any attempt, and no reset and no retry opens the run again. Then
        the workflow is cancelled, which cancels the tools at work. What they did stands, unless
        it is undone. An action whose outcome nobody knows stays in the ledger as unknown. Safe to
        repeat.

        Of a run that was terminated, timed out, or is gone, only the stop is committed: nothing
        sends its actions again. What was at work is settled by the relay. So it is of another
        framework's run that has ended, and whose child workflow goes on.

        Args:
            reason: For people; kept with the run.
            compensate: Whether to undo what the run did, before it ends, or right after where it
                is just ending. Only tools with a compensator can be undone: see `undo_report`.
                `undo` does the same to a run that has ended.
            wait_seconds: How long to wait for the end. If no worker lives that could finish the
                run, its state is ``stopping`` then.
            by: Who does: the client's ``authorize`` gets it.

        Returns:
            The true final state: ``canceled``, or how it ended just before; or ``gone``.

        Raises:
            InvalidRunId: The id cannot be a run's.
            RunNotFound: No run has this id.
            NotAuthorized: This person may not stop it, or not undo it; nothing was changed.
            LedgerUnavailable: Nothing has been stopped; stop it again.
            ConfigurationError: No database is configured.
        """
        workflow = await self._allowed(by, *_verbs_of_stop(compensate))
        stopped = await stop(
            self._connection,
            workflow,
            reason=reason,
            compensate=compensate,
            wait_seconds=wait_seconds,
        )
        return await _status(stopped)

    async def undo(self, *, reason: str = "", by: str = "") -> UndoReport:
        """Take back what the run did, after it has ended; return what is undone and what stands.

        Each undo is an action of its own, in the ledger. Safe to repeat, and after a part could
        not be undone it tries that part again; one such undo is at work at a time, and this
        waits for it. Nothing opens the run again afterwards. It is undone on its own task queue,
        or on the client's if no worker polls that one, or if Temporal has forgotten the run.

        Args:
            reason: For people; kept with the run.
            by: Who does: the client's ``authorize`` gets it.

        Raises:
            RunUnrecorded: The ledger has lost what it did; nothing was changed.
            RunNotFound: No run has this id.
            NotAuthorized: This person may not undo it; nothing was changed.
            UndoRefused: It has not ended: stop it with ``compensate=True``. A run that was stopped
                has ended, too, if no worker polls its task queue: its workflow is ended then. One
                that is gone, and open in the ledger, has to be stopped first.
            LedgerUnavailable: No answer within the deadline.
            ConfigurationError: No database is configured.
        """
        workflow = await self._allowed(by, "undo")
        return await undo(self._connection, workflow, reason=reason)

    async def undo_report(self) -> UndoReport:
        """Return what of the run is undone, and what stands. Safe to repeat; it only reads.

        Raises:
            RunUnrecorded: The ledger has lost what it did.
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        run_key = await self._workflow.run_key()
        await self._workflow.check_recorded(run_key)
        return await (await self._connection.ledger()).undo.report(run_key)

    async def reset(
        self, *, to_step: int, fork: bool = False, reason: str = "", by: str = ""
    ) -> Reset:
        """Take the run back to just before a model turn, and let it go on from there.

        Without ``fork`` its plan is replayed: the run reads back what the model said, and a call
        that is done returns what it returned. With ``fork`` the run makes new model requests from
        that turn on, in which the model reads what already took effect. What the model had said
        from there on is taken back.

        Args:
            to_step: The model turn, or a plan's stage, as in positions: 0 is the first.
            fork: Whether to go another way.
            reason: For people; kept in history.
            by: Who does: the client's ``authorize`` gets it.

        Raises:
            RunGone: Temporal has no history of it any more to go back in.
            RunUnrecorded: The ledger has lost what it did.
            RunNotFound: No run has this id, in Temporal or in the ledger.
            NotAuthorized: This person may not reset it, or not fork it; nothing was changed.
            ResetRefused: It was stopped for good, or has no such turn.
            StaleThread: Another run has written its conversation since.
        """
        workflow = await self._allowed(by, "fork" if fork else "reset", step=to_step)
        run_key = await run_key_of(await workflow.describe())
        await workflow.check_recorded(run_key)
        if parent_of(run_key) is not None:
            raise ResetRefused(f"{self.id!r} is a sub-agent's: reset the run that called it")
        return await reset_run(
            self._connection.temporal,
            await self._connection.ledger(),
            run_key,
            step=to_step,
            fork=fork,
            reason=reason or "no reason given",
        )

    async def approvals(self, *, only_waiting: bool = True) -> Sequence[Approval]:
        """Return the calls that wait for an approval, the longest waiting first.

        Safe to repeat; it only reads.

        Args:
            only_waiting: False returns those that were decided, too.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        run_key = await self._workflow.run_key()
        ledger = await self._connection.ledger()
        return await ledger.approvals.list(run_key, only_waiting=only_waiting)

    async def decide(
        self,
        call: str | Approval,
        *,
        approve: bool,
        by: str,
        reason: str = "",
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Approve a call, or reject it. The first decision counts.

        It is committed before this returns, and outlives a reset and a retry of the run. Safe
        to repeat: the same decision by the same person changes nothing.

        Args:
            call: One of `approvals`, or its name there (`Approval.at`): the position, and from
                the second approval of a call on its generation, ``1.0~2``. A decision counts for
                the arguments of that approval, and for no others.
            approve: Whether it is carried out.
            by: Who decides: the client's ``authorize`` gets it, and the row keeps it. In both a
                ``?`` stands for what Postgres cannot hold (a NUL, half a character).
            reason: Why, kept in the same way. The model reads the reason of a rejection.
            args: Arguments instead of the model's: all of them, 256 KiB at most. They are
                validated as the model's are. The call is carried out with them, and the row
                keeps them.

        Raises:
            ApprovalRefused: Another decision stands, the approval has expired, the call waits for
                none, or the run has ended; the message says how.
            InvalidArguments: The edited arguments do not fit the tool, or are too large; nothing
                is decided.
            NotAuthorized: This person may not decide this.
            RunNotFound: No run has this id.
        """
        await decide(
            self._connection,
            self._workflow,
            call,
            approve=approve,
            by=by,
            reason=reason,
            args=args,
        )

    async def questions(self, *, only_waiting: bool = True) -> Sequence[Question]:
        """Return the questions that the run's calls have, the longest waiting first.

        Safe to repeat; it only reads.

        Args:
            only_waiting: False returns those that were answered, expired or replaced, too.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        run_key = await self._workflow.run_key()
        ledger = await self._connection.ledger()
        return await ledger.questions.list(run_key, only_waiting=only_waiting)

    async def answer(self, question: str | Question, value: Any, *, by: str) -> None:
        """Answer a question of a call; the call is made again, with the answer.

        The first answer counts. It is committed before this returns, and outlives a reset and a
        retry of the run. Safe to repeat: the same answer by the same person changes nothing.

        Args:
            question: One of `questions`. Or the position of its call, for the question that is
                open at this moment: it may be another one than the person has read.
            value: JSON data, but not None, which is no answer.
            by: Who answers: the client's ``authorize`` gets it, and the row keeps it. In both a
                ``?`` stands for what Postgres cannot hold (a NUL, half a character).

        Raises:
            AnswerRefused: Another answer stands, the question has expired, the call has another
                question by now, or none, the run has ended (the message says how), or there is
                no value, or one of over 256 KiB.
            UnrepresentableValue: The value has no JSON form.
            NotAuthorized: This person may not answer this.
            RunNotFound: No run has this id.
        """
        await answer(self._connection, self._workflow, question, value, by=by)

    async def _allowed(self, by: str, *verbs: Verb, step: int | None = None) -> RunWorkflow:
        """Return the workflow of the run, once a person may do all of this to it.

        It is the run that was asked about: no later one of its id.
        """
        if not self._connection.authorizes:
            return self._workflow
        run_key, workflow = await self._workflow.pinned()
        ledger = await self._connection.ledger()
        for verb in verbs:
            report = await ledger.undo.report(run_key) if verb == "undo" else None
            wanted = Intervention(verb, run_key, run_key=run_key, step=step, about=report)
            await self._connection.check_authorized(storable(by), wanted)
        return workflow


def _verbs_of_stop(compensate: bool) -> tuple[Verb, ...]:
    return ("stop", "undo") if compensate else ("stop",)


async def _state(workflow: RunWorkflow) -> RunState:
    try:
        return state_of(await workflow.describe())
    except RunGone:
        return "gone"


async def _status(workflow: RunWorkflow) -> RunStatus:
    try:
        described = await workflow.describe()
    except RunGone:
        return RunStatus(workflow.id, await workflow.run_key(), "gone", progress=None)
    return RunStatus(
        id=workflow.id,
        run_key=await run_key_of(described),
        state=state_of(described),
        # Of a paused one the server refuses the query, in a way that the SDK cannot read.
        progress=None if is_paused(described) else await workflow.progress(),
    )
