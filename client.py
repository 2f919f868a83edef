"""`AgentClient`: what application code uses to start runs and ask about them.

async with await AgentClient.connect() as client:
    run = await client.start("support", "Charge order 4821.", id="support-4821")
    print((await run.result()).output)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, Self

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import RawValue, RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.exceptions import (
    TimeoutError as TimedOutError,
)
from temporalio.service import RPCError, RPCStatusCode

from . import errors
from .activities.limits import UNSET, RunLimits
from .activities.wire import pack, unpack
from .canonical import scrub
from .config import Settings, connect_temporal
from .errors import CommitlineError, ConfigurationError, RunFailed, RunInputConflict, RunNotFound
from .identity import RunKey, check_workflow_id, run_key
from .ledger import Action, ActionLedger, ledger_pool
from .ledger.pool import Pool
from .workflows.agent_run import AGENT_RUN, RunInput, RunResult
from .workflows.progress import Progress

MEMO_INPUT: Final = "commitline_input"

_TASK_TIMEOUT: Final = timedelta(seconds=5)
"""How long a run waits for a worker that died *inside* a workflow task; 10 s by default."""

STOP_SECONDS: Final = 30.0
"""How long `RunHandle.stop` waits for a run's end by default."""

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


class RunHandle:
    """One run. Made by `AgentClient.start` and `AgentClient.run`."""

    def __init__(self, client: AgentClient, workflow: WorkflowHandle[Any, Any]) -> None:
        self._client = client
        self._workflow = workflow

    @property
    def id(self) -> str:
        """The workflow id."""
        return self._workflow.id

    async def result(self) -> RunResult:
        """Wait for the run's end and return its answer. Safe to repeat.

        Raises:
            RunError: It ended without an answer; by kind and code.
            LedgerError: It was refused by the ledger (`PlanDivergence`, …).
            RunNotFound: No run has this id.
        """
        try:
            return unpack(RunResult, await self._workflow.result())
        except WorkflowFailureError as err:
            raise _ended_badly(self.id, err.cause) from err
        except RPCError as err:
            raise _refused(self.id, err) from err

    async def stop(self, *, reason: str = "", wait_seconds: float = STOP_SECONDS) -> RunStatus:
        """Stop the run for good, and wait until its tools have really ended.

        First the stop is committed in the ledger: from then on none of the run's actions is
        claimed, anywhere, by any attempt, and no reset and no retry opens the run again. Then
        the workflow is cancelled, which cancels the tools at work. What they did stands; what
        is not known of them stays visible as unknown. Safe to repeat.

        Args:
            reason: For people; kept with the run.
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
        check_workflow_id(self.id)
        described = await self.describe()
        if described.status is not WorkflowExecutionStatus.RUNNING:
            return await self.status()
        ledger = await self._client.ledger()
        await ledger.stop_run(
            _run_key_of(described),
            workflow_id=self.id,
            agent="",
            reason=reason or "no reason given",
            attempt_at=described.start_time,
        )
        try:
            await self._workflow.cancel(reason=scrub(reason, limit=1_000))
        except RPCError as err:
            if err.status is not RPCStatusCode.NOT_FOUND:  # it has just ended
                raise _refused(self.id, err) from err
        await self._ended_within(wait_seconds)
        return await self.status()

    async def _ended_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._workflow.result()
        except (TimeoutError, WorkflowFailureError):
            pass  # how it ended, or that it has not, is seen by who asks next
        except RPCError as err:
            raise _refused(self.id, err) from err

    async def status(self) -> RunStatus:
        """Return where the run is. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
        """
        described = await self.describe()
        return RunStatus(
            id=self.id,
            run_key=_run_key_of(described),
            state=_state(described),
            progress=await self._progress(),
        )

    async def actions(self) -> Sequence[Action]:
        """Return what the ledger holds of the run, oldest first. Safe to repeat.

        Raises:
            RunNotFound: No run has this id.
            ConfigurationError: No database is configured.
        """
        described = await self.describe()
        ledger = await self._client.ledger()
        return await ledger.list(_run_key_of(described))

    async def describe(self) -> WorkflowExecutionDescription:
        """Return what Temporal knows of the run now. Safe to repeat; it only reads.

        Raises:
            RunNotFound: No run has this id.
        """
        try:
            return await self._workflow.describe()
        except RPCError as err:
            raise _refused(self.id, err) from err

    async def _progress(self) -> Progress | None:
        # A query needs a worker: without one it would wait for its time-out.
        try:
            async with asyncio.timeout(2):
                return unpack(Progress, await self._workflow.query("status", result_type=RawValue))
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return None


class AgentClient:
    """Starts runs and finds them again.

    Args:
        temporal: A connected client; any data converter and codec.
        settings: Where the ledger is, and the task queue.
    """

    def __init__(self, temporal: Client, settings: Settings) -> None:
        self.temporal = temporal
        self._settings = settings
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
        id: str,
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
                answered by starting again.
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
        given = RunInput(agent=agent, prompt=prompt, limits=RunLimits(**limits.given))
        check_workflow_id(id)
        try:
            await self.temporal.start_workflow(
                AGENT_RUN,
                pack(given),
                id=id,
                task_queue=self._settings.task_queue,
                result_type=RawValue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                retry_policy=retry_policy,
                task_timeout=_TASK_TIMEOUT,
                memo={MEMO_INPUT: given.digest},
                static_summary=scrub(f"{agent}: {prompt}", limit=150),
            )
        except WorkflowAlreadyStartedError:
            pass  # it has ended: whether it was this very run is seen below
        except RPCError as err:
            raise _refused(id, err) from err
        handle = RunHandle(self, self._workflow(id))
        described = await handle.describe()
        if await described.memo_value(MEMO_INPUT, None, type_hint=str) != given.digest:
            raise RunInputConflict(f"the run {id!r} exists and was started with other input")
        return handle

    def run(self, id: str) -> RunHandle:
        """Return the handle of a run by its workflow id, without asking whether it exists."""
        return RunHandle(self, self._workflow(id))

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

    def _workflow(self, id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(id, result_type=RawValue)


def _run_key_of(described: WorkflowExecutionDescription) -> RunKey:
    first = described.raw_description.workflow_execution_info.first_run_id
    return run_key(described.id, first or described.run_id)


def _state(described: WorkflowExecutionDescription) -> RunState:
    if described.status is None or described.status is WorkflowExecutionStatus.RUNNING:
        asked = described.raw_description.workflow_extended_info.cancel_requested
        return "stopping" if asked else "running"
    return described.status.name.lower()  # type: ignore[return-value]


def _refused(id: str, error: RPCError) -> CommitlineError:
    """Return what a failed call to the Temporal server means for a run."""
    if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
        return RunNotFound(f"no run has the id {id!r}")
    text = scrub(error.message, limit=300)
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return RunFailed(f"Temporal refused the run {id!r}: {text}")
    return ConfigurationError(f"Temporal did not answer for the run {id!r}: {text}")


def _ended_badly(id: str, cause: BaseException) -> CommitlineError:
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        text = cause.message
        if isinstance(kind, type) and issubclass(kind, CommitlineError):
            # The message carries code and remedy already; the class adds its own.
            return kind(text.split(f" [{kind.code}]")[0])
        return RunFailed(f"the run {id!r} failed: {cause.type}: {text}")
    told = {
        CancelledError: "was canceled",
        TerminatedError: "was terminated",
        TimedOutError: "timed out",
    }
    for kind, text in told.items():
        if isinstance(cause, kind):
            return RunFailed(f"the run {id!r} {text}")
    return RunFailed(f"the run {id!r} failed: {cause}")
