"""`AnyRun`: one run, of an agent or of a plan, for application code.

Its workflow says where the run is; the ledger says what it did. What an agent's run returns, and
its conversation, are in `thread`; what a plan's run returns is in `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from temporalio.client import WorkflowExecutionDescription

from ..errors import ResetRefused
from ..identity import Position, RunKey, parent_of
from ..ledger import Action, Approval, Question, UndoReport
from ..workflows.progress import Progress
from . import decision, stop
from .connection import Connection
from .reset import Reset, reset_run
from .run_workflow import RunState, RunWorkflow, run_key_of, state_of

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
    """``stopping``: its stop or cancellation is under way, or no worker is there to finish it."""
    progress: Progress | None
    """Where it is; None while no worker is there to say."""


class AnyRun:
    """One run, of an agent or of a plan.

    Args:
        connection: Of the client that made it.
        id: The workflow id.
        first: The id of the run's first execution; None is the newest run that has the
            workflow id, at each call anew.
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
        self, *, reason: str = "", compensate: bool = False, wait_seconds: float = STOP_SECONDS
    ) -> RunStatus:
        """Stop the run for good, and wait until its tools have really ended.

        First the stop is committed in the ledger: from then on none of the run's actions is
        claimed, anywhere, by any attempt, and no reset and no retry opens the run again. Then
        the workflow is cancelled, which cancels the tools at work. What they did stands, unless
        it is undone; what is not known of them stays visible as unknown. Safe to repeat.

        Of a run that was terminated, or timed out, only the stop is committed: nothing of it is
        sent again, by nobody.

        Args:
            reason: For people; kept with the run.
            compensate: Whether what it did is taken back, by the tools that say how, before it
                ends, or after it if it is just ending; see `undo_report`. Of a run that has
                ended, `undo` does that.
            wait_seconds: How long to wait for the end. Where no worker is alive to finish, the
                state is ``stopping`` then.

        Returns:
            The true final state: ``canceled``, or how it ended just before.

        Raises:
            InvalidRunId: The id cannot be a run's.
            RunNotFound: No run has this id.
            LedgerUnavailable: Nothing has been stopped; stop it again.
            ConfigurationError: No database is configured.
        """
        stopped = await stop.stop(
            self._connection,
            self._workflow,
            reason=reason,
            compensate=compensate,
            wait_seconds=wait_seconds,
        )
        return await _status(stopped)

    async def undo(self, *, reason: str = "") -> UndoReport:
        """Take back what the run did, after it has ended; return what is undone and what stands.

        Each undo is an action of its own, in the ledger. Safe to repeat, and after a part could
        not be undone it tries that part again; one such undo is at work at a time, and this
        waits for it. Nothing opens the run again afterwards.

        Args:
            reason: For people; kept with the run.

        Raises:
            RunNotFound: No run has this id.
            UndoRefused: It has not ended: stop it with ``compensate=True``.
            LedgerUnavailable: No answer within the deadline.
            ConfigurationError: No database is configured.
        """
        return await stop.undo(self._connection, self._workflow, reason=reason)

    async def undo_report(self) -> UndoReport:
        """Return what of the run is undone, and what stands. Safe to repeat; it only reads.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        ledger = await self._connection.ledger()
        return await ledger.undo.report(await self._workflow.run_key())

    async def reset(self, *, to_step: int, fork: bool = False, reason: str = "") -> Reset:
        """Take the run back to just before a model turn, and let it go on from there.

        Without ``fork`` its plan is replayed: what the model said is read back, and a call that
        is done returns what it returned. With ``fork`` the model is asked anew from that turn
        on, and told what already took effect; what it had said from there on is taken back.

        Args:
            to_step: The model turn, or a plan's stage, as in positions: 0 is the first.
            fork: Whether to go another way.
            reason: For people; kept in history.

        Raises:
            RunNotFound: No run has this id, in Temporal or in the ledger.
            ResetRefused: It was stopped for good, or has no such turn.
            StaleThread: Another run has written its conversation since.
        """
        run_key = await self._workflow.run_key()
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
        """Return what waits for a person, longest first. Safe to repeat; it only reads.

        Args:
            only_waiting: False returns what was decided, too.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        run_key = await self._workflow.run_key()
        ledger = await self._connection.ledger()
        return await ledger.approvals.list(run_key, only_waiting=only_waiting)

    async def decide(
        self,
        position: str,
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
            position: Where the call stands, as in `approvals`.
            approve: Whether it is carried out.
            by: Who decides; kept on the row, and asked about by the client's ``authorize``. What
                Postgres cannot hold of it (a NUL, half a character) is ``?`` in both.
            reason: Why, kept the same way; the model is told of a rejection's.
            args: Other arguments than were asked about: all of them, 256 KiB at most. They are
                validated as the model's are, and are what is carried out and kept.

        Raises:
            ApprovalRefused: Another decision stands, it has expired, nothing was asked, or the run
                has ended; the message says how.
            InvalidArguments: The edited arguments do not fit the tool, or are too large; nothing
                is decided.
            NotAuthorized: This person may not decide this.
            RunNotFound: No run has this id.
        """
        await decision.decide(
            self._connection,
            self._workflow,
            Position(position),
            approve=approve,
            by=by,
            reason=reason,
            args=args,
        )

    async def questions(self, *, only_waiting: bool = True) -> Sequence[Question]:
        """Return what the run's calls ask a person midway, longest waiting first; only reads.

        Args:
            only_waiting: False returns what was answered, has expired or was replaced, too.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        run_key = await self._workflow.run_key()
        ledger = await self._connection.ledger()
        return await ledger.questions.list(run_key, only_waiting=only_waiting)

    async def answer(self, question: str | Question, value: Any, *, by: str) -> None:
        """Answer what a call asks midway; it is made again, with the answer.

        The first answer counts. It is committed before this returns, and outlives a reset and a
        retry of the run. Safe to repeat: the same answer by the same person changes nothing.

        Args:
            question: As it was seen, from `questions`. Or the position of its call: what that
                asks at this moment, which need not be what somebody has read.
            value: JSON data but for None, which says nothing.
            by: Who answers; kept on the row, and asked about by the client's ``authorize``. What
                Postgres cannot hold of it (a NUL, half a character) is ``?`` in both.

        Raises:
            AnswerRefused: Another answer stands, it has expired, the call asks something else
                by now, nothing was asked, the run has ended (the message says how), or there is
                no value, or one of over 256 KiB.
            UnrepresentableValue: The value has no JSON form.
            NotAuthorized: This person may not answer this.
            RunNotFound: No run has this id.
        """
        await decision.answer(self._connection, self._workflow, question, value, by=by)


async def _status(workflow: RunWorkflow) -> RunStatus:
    described = await workflow.describe()
    return RunStatus(
        id=workflow.id,
        run_key=await run_key_of(described),
        state=state_of(described),
        progress=await workflow.progress(),
    )
