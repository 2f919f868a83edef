"""`RunHandle` and `PlanHandle`: one run, for application code. `AgentClient` makes them.

Where a run is, its workflow says; what it did, the ledger. A stop is committed in the ledger before
the workflow is told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from pydantic import ValidationError
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.approvals import Decide
from ..activities.contract.questions import Answer
from ..activities.contract.undo import UndoAgain
from ..activities.contract.wire import from_text, pack, unpack
from ..activities.model.model import over_limit
from ..canonical import dumps, scrub, storable
from ..errors import (
    AnswerRefused,
    ApprovalRefused,
    InvalidArguments,
    ResetRefused,
    RunFailed,
    UndoRefused,
)
from ..identity import (
    THREAD_PREFIX,
    Position,
    RunKey,
    action_key,
    check_any_workflow_id,
    parent_of,
    run_key,
    undo_workflow,
)
from ..ledger import Action, Approval, Question, Request, UndoReport
from ..workflows import UNDO_RUN, PlanResult, RunResult
from ..workflows.action_headers import MEMO_RUN_KEY
from ..workflows.base_run import ANSWERED, DECISION
from ..workflows.progress import Progress
from .reset import Reset, reset_run
from .temporal_failure import ended_badly, refused
from .thread import ThreadHandle

if TYPE_CHECKING:
    from ..client import AgentClient

T = TypeVar("T")

STOP_SECONDS: Final = 30.0
"""How long `AnyRun.stop` waits for a run's end by default."""
MAX_ANSWER: Final = 256 * 1024
"""Characters of an answer, as JSON; it travels through Temporal."""
_MAY_GO_ON: Final = (
    WorkflowExecutionStatus.RUNNING,
    WorkflowExecutionStatus.TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT,
)
"""Of what a reset would start again, or the relay see to: to be stopped in the ledger, too."""

RunState = Literal[
    "running",
    "stopping",
    "completed",
    "failed",
    "canceled",
    "terminated",
    "timed_out",
    "continued_as_new",
]


@dataclass(frozen=True)
class RunStatus:
    """A run as Temporal sees it now."""

    id: str
    run_key: RunKey
    state: RunState
    """``stopping``: its stop or cancellation is under way, or no worker is there to finish it."""
    progress: Progress | None
    """Where it is; None while no worker is there to say."""


class AnyRun:
    """One run, of an agent or of a plan."""

    def __init__(
        self,
        client: AgentClient,
        workflow: WorkflowHandle[Any, Any],
        *,
        first: str | None = None,
    ) -> None:
        self._client = client
        self._workflow = workflow
        self._first = first
        """The id of its first execution; None is the newest run that has the workflow's id."""

    @property
    def id(self) -> str:
        """The workflow id."""
        return self._workflow.id

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
        check_any_workflow_id(self.id)
        described = await self.describe()
        if described.status not in _MAY_GO_ON:
            return await self.status()
        ledger = await self._client.ledger()
        run_key = await _run_key_of(described)
        await ledger.stop_run(
            run_key,
            workflow_id=self.id,
            agent="",
            reason=reason or "no reason given",
            attempt_at=described.start_time,
            compensate=compensate,
            namespace=self._client.temporal.namespace,
        )
        this = self._only(described)
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return await this.status()  # the relay starts nothing of it any more, nor a reset
        try:
            await this._cancel(reason)
        except RPCError as err:
            if err.status is not RPCStatusCode.NOT_FOUND:  # it has just ended
                raise refused(self.id, err) from err
        await this._ended_within(wait_seconds)
        status = await this.status()
        if compensate and status.state not in ("running", "stopping"):
            await this._undo_if_not_undone(status.run_key, reason)
        return status

    async def _undo_if_not_undone(self, run_key: RunKey, reason: str) -> None:
        """Undo a run that was about to end, in whichever way, as its stop asked for it."""
        ledger = await self._client.ledger()
        found = await ledger.get_run(run_key)
        if found is None or found.undo_ended_at is not None:
            return
        report = await ledger.undo.report(run_key)
        if report.state == "partly compensated":
            await self.undo(reason=reason)

    async def _cancel(self, reason: str) -> None:
        """Cancel whichever execution of this run is at work, and no other run of its id."""
        running = self._client.temporal.get_workflow_handle(
            self.id, first_execution_run_id=self._first
        )
        await running.cancel(reason=scrub(reason, limit=1_000))

    async def _ended_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await (await self._own()).result()
        except (TimeoutError, WorkflowFailureError):
            pass  # how it ended, or that it has not, is seen by who asks next
        except RPCError as err:
            raise refused(self.id, err) from err

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
        described = await self.describe()
        run_key = await _run_key_of(described)
        if described.status is WorkflowExecutionStatus.RUNNING:
            raise UndoRefused(f"the run {self.id!r} is running")
        ledger = await self._client.ledger()
        why = scrub(reason or "no reason given", limit=1_000)
        found = await ledger.get_run(run_key)
        if found is None:
            return await ledger.undo.report(run_key)  # it was never opened: it did nothing
        if found.state == "running":
            # It was terminated, or timed out, and could not say so; no reset takes it up now.
            await ledger.stop_run(
                run_key,
                workflow_id=self.id,
                agent="",
                reason=why,
                attempt_at=described.start_time,
            )
        told = await self._undo(run_key, why)
        return _with_reasons(await ledger.undo.report(run_key), told)

    async def _undo(self, run_key: RunKey, why: str) -> UndoReport:
        try:
            undoing = await self._client.temporal.start_workflow(
                UNDO_RUN,
                pack(UndoAgain(run_key, why)),
                id=undo_workflow(run_key),
                task_queue=self._client.task_queue,
                result_type=RawValue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=scrub(f"Undo {self.id}", limit=150),
            )
            return unpack(UndoReport, await undoing.result())
        except WorkflowFailureError as err:
            raise ended_badly(undo_workflow(run_key), err.cause) from err
        except RPCError as err:
            raise refused(self.id, err) from err

    async def undo_report(self) -> UndoReport:
        """Return what of the run is undone, and what stands. Safe to repeat; it only reads.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        ledger = await self._client.ledger()
        return await ledger.undo.report(await _run_key_of(await self.describe()))

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
        run_key = await _run_key_of(await self.describe())
        if parent_of(run_key) is not None:
            raise ResetRefused(f"{self.id!r} is a sub-agent's: reset the run that called it")
        return await reset_run(
            self._client.temporal,
            await self._client.ledger(),
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
        described = await self.describe()
        ledger = await self._client.ledger()
        return await ledger.approvals.list(await _run_key_of(described), only_waiting=only_waiting)

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
        run_key = await _run_key_of(await self.describe())
        ledger = await self._client.ledger()
        asked = await ledger.approvals.get(action_key(run_key, Position(position)))
        if asked is None:
            raise ApprovalRefused(f"nothing was asked about {position} of the run {self.id!r}")
        by = storable(by)  # who is asked about is who is kept
        await self._client.check_authorized(by, asked)
        said = Decide(
            run_key,
            Position(position),
            approve,
            by,
            storable(reason),
            None if args is None else _edited_text(asked.tool, args),
        )
        await self._tell(DECISION, said, late=ApprovalRefused)

    async def questions(self, *, only_waiting: bool = True) -> Sequence[Question]:
        """Return what the run's calls ask a person midway, longest waiting first; only reads.

        Args:
            only_waiting: False returns what was answered, has expired or was replaced, too.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        described = await self.describe()
        ledger = await self._client.ledger()
        return await ledger.questions.list(await _run_key_of(described), only_waiting=only_waiting)

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
        text = _answer_text(value)
        run_key = await _run_key_of(await self.describe())
        ledger = await self._client.ledger()
        if isinstance(question, Question):
            key, number = question.key, question.number
        else:
            key, number = action_key(run_key, Position(question)), None
        asked = await ledger.questions.get(key, number)
        if asked is None or asked.run_key != run_key:
            where = question if isinstance(question, str) else question.key
            raise AnswerRefused(f"nothing was asked at {where} of the run {self.id!r}")
        by = storable(by)  # who is asked about is who is kept
        await self._client.check_authorized(by, asked)
        said = Answer(run_key, asked.position, asked.number, by, text)
        await self._tell(ANSWERED, said, late=AnswerRefused)

    async def status(self) -> RunStatus:
        """Return where the run is. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
        """
        described = await self.describe()
        return RunStatus(
            id=self.id,
            run_key=await _run_key_of(described),
            state=_state(described),
            progress=await self._progress(),
        )

    async def actions(self) -> Sequence[Action]:
        """Return what the ledger holds of the run and its sub-agents, oldest first. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        described = await self.describe()
        ledger = await self._client.ledger()
        return await ledger.sub_runs.actions(await _run_key_of(described))

    async def describe(self) -> WorkflowExecutionDescription:
        """Return what Temporal knows of the run now. Safe to repeat; it only reads.

        Raises:
            RunNotFound: No run has this id.
        """
        try:
            described = await self._workflow.describe()
            if self._first is None or self._first == _first_of(described):
                return described
            # Another run has the id by now.
            return await self._execution(self._first).describe()
        except RPCError as err:
            raise refused(self.id, err) from err

    async def _own(self) -> WorkflowHandle[Any, Any]:
        """Return the handle of this run's newest execution, whatever has its id by now."""
        if self._first is None:
            return self._workflow
        return self._execution((await self.describe()).run_id)

    def _execution(self, run_id: str) -> WorkflowHandle[Any, Any]:
        temporal = self._client.temporal
        return temporal.get_workflow_handle(self.id, run_id=run_id, result_type=RawValue)

    def _only(self, described: WorkflowExecutionDescription) -> Self:
        """Return the handle of this run, and of none that has its id after it."""
        only = copy(self)
        only._first = _first_of(described)
        return only

    async def _tell(
        self, update: str, said: Decide | Answer, *, late: type[ApprovalRefused | AnswerRefused]
    ) -> None:
        """Have the run take down what a person said.

        Raises:
            CommitlineError: What the run refuses it with; ``late``, where it has ended.
            RunNotFound: No run has this id.
        """
        try:
            own = await self._own()
            await own.execute_update(update, pack(said), result_type=RawValue)
        except WorkflowUpdateFailedError as err:
            raise ended_badly(self.id, err.cause) from err
        except RPCError as err:
            if err.status is RPCStatusCode.NOT_FOUND:
                state = _state(await self.describe())  # an ended run takes no update, either
                if state not in ("running", "stopping"):
                    raise late(f"the run {self.id!r} has ended: {state}") from err
            raise refused(self.id, err) from err

    async def _progress(self) -> Progress | None:
        # A query needs a worker: without one it would wait for its time-out.
        try:
            async with asyncio.timeout(2):
                own = await self._own()
                return unpack(Progress, await own.query("status", result_type=RawValue))
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return None


class RunHandle(AnyRun):
    """One run of an agent. Made by `AgentClient.start` and `AgentClient.run`."""

    def __init__(
        self,
        client: AgentClient,
        workflow: WorkflowHandle[Any, Any],
        *,
        request: Request | None = None,
        first: str | None = None,
    ) -> None:
        super().__init__(client, workflow, first=first)
        self._request = request

    async def result(self) -> RunResult:
        """Wait for the run's end and return its answer. Safe to repeat.

        Of a run that was started on a thread it is the answer to what it was started with,
        whatever else the run was asked meanwhile.

        Raises:
            RunError: It ended without an answer; by kind and code.
            LedgerError: It was refused by the ledger (`PlanDivergence`, …).
            RunNotFound: No run has this id.
        """
        try:
            result = _of_kind(RunResult, await (await self._own()).result(), self.id)
        except WorkflowFailureError as err:
            replied = await self._replied()
            if replied is None:
                raise ended_badly(self.id, err.cause) from err
            return replied
        except RPCError as err:
            raise refused(self.id, err) from err
        return await self._replied() or result

    async def _replied(self) -> RunResult | None:
        """Return the reply to the request that the run was started for, if there is one."""
        if self._request is None:
            return None
        threads = (await self._client.ledger()).threads
        found = await threads.request(self._request.thread_id, self._request.request_id)
        return None if found is None or found.reply is None else from_text(RunResult, found.reply)

    async def thread(self) -> ThreadHandle:
        """Return the run's conversation.

        Raises:
            RunNotFound: No run has this id.
        """
        run_key = await _run_key_of(await self.describe())
        if self.id.startswith(THREAD_PREFIX) and parent_of(run_key) is None:
            return self._client.thread(self.id.removeprefix(THREAD_PREFIX))
        return self._client.thread(run_key)


class PlanHandle(AnyRun):
    """One run of a plan. Made by `AgentClient.start_plan` and `AgentClient.plan`."""

    async def result(self) -> PlanResult:
        """Wait for the run's end and return what its steps returned. Safe to repeat.

        Raises:
            PlanFailed: A step ended for good without success; the message names it, and says
                what was undone and what stands.
            PlanInvalid: By the tools that are served the plan cannot work. Nothing was called.
            ToolNotServed: No worker serves one of its tools. Nothing was called.
            RunError: It ended in another way; by kind and code.
            LedgerError: It was refused by the ledger (`PlanDivergence`, …).
            RunNotFound: No run has this id.
        """
        try:
            return _of_kind(PlanResult, await self._workflow.result(), self.id)
        except WorkflowFailureError as err:
            raise ended_badly(self.id, err.cause) from err
        except RPCError as err:
            raise refused(self.id, err) from err


def _answer_text(value: Any) -> str:
    if value is None:
        raise AnswerRefused("an answer needs a value, and None says nothing")
    text = dumps(value)
    if len(text) > MAX_ANSWER:
        raise AnswerRefused(f"an answer of {len(text)} characters is over {MAX_ANSWER}")
    return text


def _edited_text(tool: str, args: Mapping[str, Any]) -> str:
    text = dumps(args)
    if problem := over_limit(tool, len(text)):
        raise InvalidArguments(problem)  # the run would say so, too, but Temporal may not carry it
    return text


def _with_reasons(report: UndoReport, told: UndoReport) -> UndoReport:
    """Say of what stands what kept the unwinding from undoing it, which only that knows."""
    why = {fate.key: fate.why for fate in told.standing}
    actions = [
        replace(fate, why=why.get(fate.key, fate.why)) if fate.fate == "stands" else fate
        for fate in report.actions
    ]
    return replace(report, actions=actions)


def _of_kind(kind: type[T], raw: RawValue, id: str) -> T:
    """Return a run's result, where it is of this kind."""
    try:
        return unpack(kind, raw)
    except ValidationError as err:
        raise RunFailed(
            f"the run {id!r} returned no {kind.__name__}: an agent's run is had by "
            "`AgentClient.run`, a plan's by `AgentClient.plan`"
        ) from err


async def _run_key_of(described: WorkflowExecutionDescription) -> RunKey:
    below = await described.memo_value(MEMO_RUN_KEY, None, type_hint=str)
    if below is not None:
        return RunKey(below)
    return run_key(described.id, _first_of(described))


def _first_of(described: WorkflowExecutionDescription) -> str:
    """Return the id of the first execution of a run."""
    info = described.raw_description.workflow_execution_info
    return info.first_run_id or described.run_id


def _state(described: WorkflowExecutionDescription) -> RunState:
    if described.status is None or described.status is WorkflowExecutionStatus.RUNNING:
        asked = described.raw_description.workflow_extended_info.cancel_requested
        return "stopping" if asked else "running"
    return described.status.name.lower()  # type: ignore[return-value]
