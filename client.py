"""`AgentClient`: what application code uses to start runs and ask about them.

async with await AgentClient.connect() as client:
    run = await client.start("support", "Charge order 4821.", id="support-4821")
    print((await run.result()).output)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import ValidationError
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue, RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    WorkflowAlreadyStartedError,
)
from temporalio.service import RPCError, RPCStatusCode

from .activities.admission import Decide
from .activities.answering import Answered
from .activities.limits import UNSET, RunLimits
from .activities.plan import Plan
from .activities.undo_steps import UndoAgain
from .activities.wire import from_text, pack, unpack
from .canonical import dumps, scrub
from .config import Settings, connect_temporal
from .errors import (
    AnswerRefused,
    ApprovalRefused,
    InvalidRunId,
    NotAuthorized,
    ResetRefused,
    RunFailed,
    RunInputConflict,
    SettlementRefused,
    ThreadBusy,
    UndoRefused,
)
from .identity import (
    THREAD_PREFIX,
    ActionKey,
    Position,
    RunKey,
    action_key,
    check_any_workflow_id,
    check_run_id,
    parent_of,
    run_key,
    thread_workflow,
    undo_workflow,
)
from .ledger import (
    Action,
    ActionLedger,
    Approval,
    Outcome,
    Question,
    Request,
    UndoReport,
    ledger_pool,
)
from .ledger.pool import Pool
from .resetting import Reset, reset_run
from .temporal_errors import ended_badly, refused
from .thread_client import ThreadHandle
from .workflows import (
    AGENT_RUN,
    PLAN_RUN,
    UNDO_RUN,
    PlanInput,
    PlanResult,
    RunInput,
    RunResult,
)
from .workflows.action_headers import MEMO_RUN_KEY
from .workflows.progress import Progress
from .workflows.run_frame import ANSWERED, DECISION
from .workflows.run_input import TASK_TIMEOUT

T = TypeVar("T")

MEMO_INPUT: Final = "commitline_input"

STOP_SECONDS: Final = 30.0
"""How long `AnyRun.stop` waits for a run's end by default."""

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


Authorize: TypeAlias = Callable[[str, Approval | Question | Action], bool | Awaitable[bool]]
"""Says whether a person may decide about a call (`Approval`), answer what it asks (`Question`),
or settle an unknown one (`Action`)."""

MAX_ANSWER: Final = 256 * 1024
"""Characters of an answer, as JSON; it travels through Temporal."""


class AnyRun:
    """One run, of an agent or of a plan."""

    def __init__(self, client: AgentClient, workflow: WorkflowHandle[Any, Any]) -> None:
        self._client = client
        self._workflow = workflow

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
                ends; see `undo_report`. Of a run that has ended, `undo` does that.
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
        await ledger.stop_run(
            await _run_key_of(described),
            workflow_id=self.id,
            agent="",
            reason=reason or "no reason given",
            attempt_at=described.start_time,
            compensate=compensate,
            namespace=self._client.temporal.namespace,
        )
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return await self.status()  # the relay starts nothing of it any more, nor a reset
        try:
            await self._workflow.cancel(reason=scrub(reason, limit=1_000))
        except RPCError as err:
            if err.status is not RPCStatusCode.NOT_FOUND:  # it has just ended
                raise refused(self.id, err) from err
        await self._ended_within(wait_seconds)
        status = await self.status()
        if compensate and status.state == "completed":
            # It ended well at this very moment; what it did is to be taken back all the same.
            await self.undo(reason=reason)
        return status

    async def _ended_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._workflow.result()
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
            by: Who decides; kept on the row, and asked about by the client's ``authorize``.
            reason: Why; the model is told of a rejection's.
            args: Other arguments than were asked about: all of them. They are validated as the
                model's are, and are what is carried out and kept.

        Raises:
            ApprovalRefused: Another decision stands, it has expired, or nothing was asked.
            InvalidArguments: The edited arguments do not fit the tool; nothing is decided.
            NotAuthorized: This person may not decide this.
            RunNotFound: No run has this id, or it has ended.
        """
        run_key = await _run_key_of(await self.describe())
        ledger = await self._client.ledger()
        asked = await ledger.approvals.get(action_key(run_key, Position(position)))
        if asked is None:
            raise ApprovalRefused(f"nothing was asked about {position} of the run {self.id!r}")
        await self._client.check_authorized(by, asked)
        said = Decide(
            run_key, Position(position), approve, by, reason, None if args is None else dumps(args)
        )
        await self._tell(DECISION, said)

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
            by: Who answers; kept on the row, and asked about by the client's ``authorize``.

        Raises:
            AnswerRefused: Another answer stands, it has expired, the call asks something else
                by now, nothing was asked, or there is no value, or one of over 256 KiB.
            UnrepresentableValue: The value has no JSON form.
            NotAuthorized: This person may not answer this.
            RunNotFound: No run has this id, or it has ended.
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
        await self._client.check_authorized(by, asked)
        said = Answered(run_key, asked.position, asked.number, by, text)
        await self._tell(ANSWERED, said)

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
            return await self._workflow.describe()
        except RPCError as err:
            raise refused(self.id, err) from err

    async def _tell(self, update: str, said: Decide | Answered) -> None:
        """Have the run take down what a person said.

        Raises:
            CommitlineError: What the run refuses it with.
            RunNotFound: No run has this id, or it has ended.
        """
        try:
            await self._workflow.execute_update(update, pack(said), result_type=RawValue)
        except WorkflowUpdateFailedError as err:
            raise ended_badly(self.id, err.cause) from err
        except RPCError as err:
            raise refused(self.id, err) from err

    async def _progress(self) -> Progress | None:
        # A query needs a worker: without one it would wait for its time-out.
        try:
            async with asyncio.timeout(2):
                return unpack(Progress, await self._workflow.query("status", result_type=RawValue))
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
    ) -> None:
        super().__init__(client, workflow)
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
            result = _of_kind(RunResult, await self._workflow.result(), self.id)
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


class AgentClient:
    """Starts runs and finds them again.

    Args:
        temporal: A connected client; any data converter and codec.
        settings: Where the ledger is, and the task queue.
        authorize: Who may decide, answer or settle what: called with the person and the
            `Approval`, the `Question`, or the unknown `Action`; False, or what it raises,
            refuses. By default everybody may.
    """

    def __init__(
        self, temporal: Client, settings: Settings, *, authorize: Authorize | None = None
    ) -> None:
        self.temporal = temporal
        self._settings = settings
        self._authorize = authorize
        self._pool: Pool | None = None

    @classmethod
    async def connect(cls, settings: Settings | None = None) -> Self:
        """Connect as the environment says, else to ``commitline dev``.

        Raises:
            ConfigurationError: A setting is unusable, or no Temporal server answers.
        """
        return cls(await connect_temporal(), settings or Settings.load())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the ledger's connections back; runs go on. A second call does nothing."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def start(
        self,
        agent: str,
        prompt: str,
        *,
        id: str | None = None,
        thread: str | None = None,
        request_id: str | None = None,
        retry_policy: RetryPolicy | None = None,
        tool_timeout: Any = UNSET,
        node_timeout: Any = UNSET,
        model_timeout: Any = UNSET,
        run_deadline: Any = UNSET,
        tool_timeouts: Mapping[str, Any] | None = None,
    ) -> RunHandle:
        """Start a run, or join the one that has this id and the same input. Safe to repeat.

        Args:
            agent: An agent's name in the worker's app.
            prompt: What it is asked to do.
            id: The workflow id: choose it from your domain, so that a lost reply can be
                answered by starting again. Either this or ``thread``.
            thread: A conversation to go on with, or to begin: the run is the workflow
                ``thread:<thread>``, one at a time.
            request_id: With ``thread``: makes the start safe to repeat. By default a new one.
            retry_policy: Of the workflow. A retry is the same run: what was done stays done.
            tool_timeout: Seconds, or a ``timedelta``, for one attempt of a tool that sets none
                itself; None, zero and less are no limit, here and below. By default the agent's.
            node_timeout: For a model request or a tool call, each with its retries.
            model_timeout: For one model request.
            run_deadline: For the whole run, its retries and resets included.
            tool_timeouts: ``tool_timeout`` by tool; wins over everything.

        Raises:
            InvalidRunId: The id cannot be a run's.
            RunInputConflict: A run with this id was started with other input.
            ThreadBusy: The conversation has another run under way.
            ThreadDeleted: The conversation was deleted.
            RequestConflict: The request's id was used for another text.
            RunFailed: Temporal refuses it (a prompt over its payload limit).
            ConfigurationError: No server answers, or the namespace is missing.
        """
        limits = RunLimits(
            tool_timeout=tool_timeout,
            node_timeout=node_timeout,
            model_timeout=model_timeout,
            run_deadline=run_deadline,
            tool_timeouts=tool_timeouts or {},
        )
        kept = RunLimits(**limits.given)
        if thread is not None and id is None:
            received = await self.thread(thread).receive(prompt, agent=agent, request_id=request_id)
            given = RunInput(
                agent=agent, limits=kept, thread_id=thread, request_id=received.request_id
            )
            return await self._start_on_thread(given, received, prompt, retry_policy)
        if id is None or thread is not None or request_id is not None:
            raise InvalidRunId("a run needs either an id, or a thread and perhaps a request_id")
        given = RunInput(agent=agent, prompt=prompt, limits=kept)
        check_run_id(id)
        options = self.start_options(given, id=id, told=prompt)
        handle = RunHandle(self, self._workflow(id))
        await self._start_or_join(handle, options, given.digest, retry_policy)
        return handle

    async def start_plan(
        self,
        plan: Plan,
        *,
        id: str,
        tool_timeout: Any = UNSET,
        node_timeout: Any = UNSET,
        run_deadline: Any = UNSET,
        tool_timeouts: Mapping[str, Any] | None = None,
    ) -> PlanHandle:
        """Start a plan, or join the run that has this id and the same plan. Safe to repeat.

        The worker checks it once more, by the tools that it serves, before anything is called.

        Args:
            plan: Its steps.
            id: The workflow id: choose it from your domain, so that a lost reply can be
                answered by starting again.
            tool_timeout: As `start` takes it, and so are those below.
            node_timeout: For a step's call with its retries.
            run_deadline: For the whole run. When it passes, the run stops, and fails.
            tool_timeouts: ``tool_timeout`` by tool.

        Raises:
            InvalidRunId: The id cannot be a run's.
            RunInputConflict: A run with this id was started with another plan.
            ConfigurationError: No server answers, or the namespace is missing.
        """
        limits = RunLimits(
            tool_timeout=tool_timeout,
            node_timeout=node_timeout,
            run_deadline=run_deadline,
            tool_timeouts=tool_timeouts or {},
        )
        given = PlanInput(plan.name, plan.stages, RunLimits(**limits.given))
        check_run_id(id)
        names = ", ".join(one.name for stage in plan.stages for one in stage)
        options = self._options(PLAN_RUN, given, id=id, told=f"{plan.name}: {names}")
        handle = self.plan(id)
        await self._start_or_join(handle, options, given.digest)
        return handle

    async def _start_or_join(
        self,
        handle: AnyRun,
        options: dict[str, Any],
        digest: str,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        try:
            await self.temporal.start_workflow(
                **options,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                retry_policy=retry_policy,
            )
        except WorkflowAlreadyStartedError:
            pass  # it has ended: whether it was this very run is seen below
        except RPCError as err:
            raise refused(handle.id, err) from err
        if await _digest_of(await handle.describe()) != digest:
            raise RunInputConflict(f"the run {handle.id!r} exists and was started with other input")

    async def _start_on_thread(
        self, given: RunInput, request: Request, prompt: str, retry_policy: RetryPolicy | None
    ) -> RunHandle:
        assert given.thread_id is not None, "asked before"
        workflow_id = thread_workflow(given.thread_id)
        handle = RunHandle(self, self._workflow(workflow_id), request=request)
        try:
            await self.temporal.start_workflow(
                **self.start_options(given, id=workflow_id, told=prompt),
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                retry_policy=retry_policy,
            )
        except WorkflowAlreadyStartedError as err:
            if await _digest_of(await handle.describe()) != given.digest:
                raise ThreadBusy(f"the thread {given.thread_id!r} has a run under way") from err
        except RPCError as err:
            raise refused(workflow_id, err) from err
        return handle

    async def send(
        self, thread: str, text: str, *, agent: str | None = None, request_id: str | None = None
    ) -> RunResult:
        """Say something in a conversation, and wait for the answer.

        Starts a run of the conversation, or joins the one under way, which answers its requests
        one after the other. Safe to repeat with the same ``request_id``, at any time: it counts
        once, and has one reply. Without one it is a new request every time.

        Args:
            thread: The conversation's id.
            text: What is said; 256 KiB at most.
            agent: Who answers; a run under way of another agent is waited for. By default
                whoever is at it, else the agent that began the conversation; to begin one,
                name it.
            request_id: The caller's, unique within the conversation.

        Raises:
            ThreadNotFound: No such conversation, and no agent was named.
            ThreadDeleted: It was deleted.
            RequestConflict: The request's id was used for another text.
            ConversationTooLarge: The text is too large.
            RunError: The run ended without an answer. Sent again, it goes on from where it
                stands: what was done is not done again.
            StaleThread: The same, because another run came between.
        """
        return await self.thread(thread).send(text, agent=agent, request_id=request_id)

    def thread(self, id: str) -> ThreadHandle:
        """Return the handle of a conversation, without asking whether it exists."""
        return ThreadHandle(self, id)

    def run(self, id: str) -> RunHandle:
        """Return the handle of a run by its workflow id, without asking whether it exists."""
        return RunHandle(self, self._workflow(id))

    def plan(self, id: str) -> PlanHandle:
        """Return the handle of a plan's run, without asking whether it exists."""
        return PlanHandle(self, self._workflow(id))

    @property
    def task_queue(self) -> str:
        """The queue of the workers that serve its runs."""
        return self._settings.task_queue

    async def settle(self, key: ActionKey, outcome: Outcome, *, by: str) -> Sequence[Action]:
        """Record a person's word about an unknown action; see `ActionLedger.settle`.

        Safe to repeat: the same word by the same person changes nothing; another is refused.

        Args:
            key: Of the action.
            outcome: What the person found: `Outcome.ok` with what it returned (JSON text), or
                `Outcome.error` with ``effect_possible=False``: it did not happen.
            by: Who says so; kept on the row, and asked about by the client's ``authorize``.

        Returns:
            The rows that were settled: it, and the calls that were answered with it.

        Raises:
            SettlementRefused: No such action, or it may not be settled, or not now.
            NotAuthorized: This person may not settle it; nothing was changed.
            LedgerUnavailable: No answer within the deadline; settle again.
            ConfigurationError: No database is configured.
        """
        ledger = await self.ledger()
        found = await ledger.get(key)
        if found is None:
            raise SettlementRefused(f"there is no action {key}")
        await self.check_authorized(by, found)
        return await ledger.settle(key, outcome, by=by)

    async def check_authorized(self, by: str, what: Approval | Question | Action) -> None:
        """Raise where a person may not decide, answer or settle.

        Raises:
            NotAuthorized: The client's ``authorize`` says no.
        """
        if self._authorize is None:
            return
        allowed = self._authorize(by, what)
        if inspect.isawaitable(allowed):
            allowed = await allowed
        if not allowed:
            raise NotAuthorized(f"{by!r} may not decide about {what.key}")

    async def ledger(self) -> ActionLedger:
        """Return the ledger; connects on first use.

        Raises:
            ConfigurationError: No database is configured.
        """
        if self._pool is None:
            self._pool = ledger_pool(
                self._settings.require_database(), size=self._settings.pool_size
            )
        await self._pool.open()  # nothing, if it is open
        return ActionLedger(self._pool, statement_seconds=self._settings.statement_seconds)

    def start_options(self, given: RunInput, *, id: str, told: str) -> dict[str, Any]:
        """Return what every start of a run says to Temporal; for this package's own use."""
        return self._options(AGENT_RUN, given, id=id, told=f"{given.agent}: {told}")

    def _options(
        self, workflow: str, given: RunInput | PlanInput, *, id: str, told: str
    ) -> dict[str, Any]:
        return {
            "workflow": workflow,
            "arg": pack(given),
            "id": id,
            "task_queue": self._settings.task_queue,
            "result_type": RawValue,
            "task_timeout": TASK_TIMEOUT,
            "memo": {MEMO_INPUT: given.digest},
            "static_summary": scrub(told, limit=150),
        }

    def _workflow(self, id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(id, result_type=RawValue)


def _answer_text(value: Any) -> str:
    if value is None:
        raise AnswerRefused("an answer needs a value, and None says nothing")
    text = dumps(value)
    if len(text) > MAX_ANSWER:
        raise AnswerRefused(f"an answer of {len(text)} characters is over {MAX_ANSWER}")
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


async def _digest_of(described: WorkflowExecutionDescription) -> str | None:
    """Return what a run was started with, as `RunInput.digest`."""
    return await described.memo_value(MEMO_INPUT, None, type_hint=str)


async def _run_key_of(described: WorkflowExecutionDescription) -> RunKey:
    below = await described.memo_value(MEMO_RUN_KEY, None, type_hint=str)
    if below is not None:
        return RunKey(below)
    first = described.raw_description.workflow_execution_info.first_run_id
    return run_key(described.id, first or described.run_id)


def _state(described: WorkflowExecutionDescription) -> RunState:
    if described.status is None or described.status is WorkflowExecutionStatus.RUNNING:
        asked = described.raw_description.workflow_extended_info.cancel_requested
        return "stopping" if asked else "running"
    return described.status.name.lower()  # type: ignore[return-value]
