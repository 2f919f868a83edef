"""A run's workflow in Temporal: which execution is the run's, and what it says and returns.

Runs may have one workflow id one after the other, as the runs of a conversation do. A handle
that was made for one run must never act on the next: `RunWorkflow` keeps them apart by the id
of the first execution, which stays the same over resets, retries and continue-as-new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeVar

from pydantic import ValidationError
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.encoding import unpack
from ..activities.contract.runs import AGENT_RUN, PLAN_RUN
from ..activities.runs.run_executions import makes_calls_of
from ..canonical import scrub
from ..errors import CommitlineError, RunFailed, RunGone, RunNotFound, RunUnrecorded
from ..identity import RunKey, first_execution, run_key
from ..ledger import Run
from ..workflows.action_headers import MEMO_RUN_KEY
from ..workflows.progress import Progress
from .connection import Connection
from .executions import check_readable, describe_execution, is_paused, memo_text, naming_codec
from .temporal_failure import only_the_wait_ended, refused

T = TypeVar("T")

RunState = Literal[
    "running",
    "stopping",
    "paused",
    "completed",
    "failed",
    "canceled",
    "terminated",
    "timed_out",
    "continued_as_new",
    "gone",
]

LIVE: Final[tuple[RunState, ...]] = ("running", "stopping", "paused")
"""Of a run that has not ended."""

_NAMED: Final = 20
"""How many runs of one id are looked at, the newest, for one of this namespace."""
_QUERY_SECONDS = 2.0
"""How long a worker may take to say where a run is. Without one a query waits for its time-out."""


class RunWorkflow:
    """The workflow of one run.

    Args:
        connection: Where Temporal is.
        id: The workflow id.
        first: The id of the run's first execution; None is the newest run that has the
            workflow id, looked up at each call.
    """

    def __init__(self, connection: Connection, id: str, *, first: str | None = None) -> None:
        self.id = id
        self._connection = connection
        self._newest = connection.workflow(id)
        self._first = first

    async def describe(self) -> WorkflowExecutionDescription:
        """Return what Temporal knows of the run now.

        Raises:
            RunGone: Nothing any more; the ledger has the run (`recorded`).
            RunNotFound: No run has this id.
        """
        try:
            described = await describe_execution(self._connection.temporal, self.id)
            if self._first is None or self._first == first_of(described):
                return described
            # Another run has the id by now.
            return await describe_execution(self._connection.temporal, self.id, self._first)
        except RPCError as err:
            raise await self._refused(err) from err

    async def recorded(self) -> Run | None:
        """Return what the ledger has of the run, or of the newest of its id in this namespace."""
        return next((run for run in await self._rows() if self._is_here(run)), None)

    async def _rows(self) -> Sequence[Run]:
        if not self._connection.settings.database_url:
            return []
        runs = (await self._connection.ledger()).runs
        if self._first is None:
            return await runs.list(workflow_id=self.id, limit=_NAMED)
        run = await runs.get(run_key(self.id, self._first))
        return [] if run is None else [run]

    def _is_here(self, run: Run) -> bool:
        return run.namespace in (None, self._connection.temporal.namespace)

    async def _refused(self, error: RPCError) -> CommitlineError:
        """Return what a failed call means for the run, of which the ledger may know more."""
        meant = refused(self.id, error)
        rows = await self._rows() if isinstance(meant, RunNotFound) else []
        if not rows:
            return meant
        if any(self._is_here(run) for run in rows):
            return RunGone(
                f"Temporal has no workflow of the run {self.id!r}; the ledger has what it did"
            )
        return RunNotFound(
            f"the run {self.id!r} is of the namespace {rows[0].namespace!r}, "
            f"and this is {self._connection.temporal.namespace!r}"
        )

    async def pinned(self) -> tuple[RunKey, RunWorkflow]:
        """Return the run's key, and its workflow: of this run, and of no later one of its id.

        Raises:
            RunNotFound: No run has this id.
        """
        try:
            described = await self.describe()
        except RunGone:
            key = await self.run_key()
            return key, RunWorkflow(self._connection, self.id, first=first_execution(key))
        return await run_key_of(described), self.only(described)

    def only(self, described: WorkflowExecutionDescription) -> RunWorkflow:
        """Return the workflow of the run that was described, and of no later one of its id."""
        return RunWorkflow(self._connection, self.id, first=first_of(described))

    def below(self, id: str | None) -> RunWorkflow:
        """Return a child workflow that makes calls of this run; by its own id, or None, itself."""
        return self if id in (None, self.id) else RunWorkflow(self._connection, id)

    async def own(self) -> WorkflowHandle[Any, Any]:
        """Return the handle of this run's newest execution, whatever run has its id by now."""
        if self._first is None:
            return self._newest
        return self._connection.workflow(self.id, run_id=(await self.describe()).run_id)

    async def run_key(self) -> RunKey:
        """Return the key under which the ledger has the run.

        Raises:
            RunNotFound: No run has this id, in Temporal or in the ledger.
        """
        try:
            return await run_key_of(await self.describe())
        except RunGone:
            run = await self.recorded()
            assert run is not None, "it is gone, and not unknown"
            return run.run_key

    async def readable_key(self) -> RunKey:
        """Return the run's key, to send the run a word.

        Raises:
            PayloadUnreadable: The run's payloads are encoded, and this process lacks the codec:
                the word would stand among them in plain text.
            RunNotFound: No run has this id, and the handle was made for none.
        """
        try:
            described = await self.describe()
        except RunNotFound:
            return await self.run_key()
        await check_readable(self._connection.temporal, described)
        return await run_key_of(described)

    async def check_recorded(self, run_key: RunKey) -> None:
        """Check that the ledger has the run, if that has begun at all.

        Raises:
            RunUnrecorded: It has begun, and the ledger has nothing of it.
        """
        known = await (await self._connection.ledger()).runs.get(run_key) is not None
        if not known and await self.has_begun():
            raise RunUnrecorded(f"the ledger has nothing of the run {self.id!r}")

    async def has_begun(self) -> bool:
        """Whether a worker has taken the run up; only then can it have done anything.

        Raises:
            RunNotFound: Temporal has no workflow of it.
        """
        described = await self.describe()
        if first_of(described) != described.run_id:
            return True
        own = self._connection.workflow(self.id, run_id=described.run_id)
        async for event in own.fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                return True
        return False

    async def is_foreign(self) -> bool:
        """Whether it is a workflow of another framework, which has other handlers than ours.

        A child of it may go on when it is gone; then its row says.

        Raises:
            RunNotFound: No run has this id.
        """
        try:
            return not is_ours(await self.describe())
        except RunGone:
            run = await self.recorded()
            return run is not None and not run.can_look_up

    async def makes_calls_of(self, run: RunKey) -> bool:
        """Whether it is this run's workflow, or a child below it, and not another of its id.

        Raises:
            RunNotFound: No run has this id.
        """
        found = (await self.describe()).raw_description.workflow_execution_info
        try:
            return await makes_calls_of(self._connection.temporal, found, run)
        except RPCError as err:
            raise refused(self.id, err) from err

    async def is_live(self) -> bool:
        """Whether the run has not ended.

        Raises:
            RunNotFound: No run has this id.
        """
        return state_of(await self.describe()) in LIVE

    async def cancel(self, reason: str) -> None:
        """Cancel whichever execution of this run is at work, and no other run of its id."""
        running = self._connection.temporal.get_workflow_handle(
            self.id, first_execution_run_id=self._first
        )
        await running.cancel(reason=scrub(reason, limit=1_000))

    async def ended_within(self, seconds: float) -> None:
        """Wait for the end, so long at most; how the run ended, `describe` says."""
        try:
            async with asyncio.timeout(seconds):
                await self._end()
        except (TimeoutError, WorkflowFailureError):
            pass
        except RPCError as err:
            raise refused(self.id, err) from err

    async def result(self, kind: type[T]) -> T:
        """Wait for the run's end and return its result, which is of this kind.

        Raises:
            RunFailed: The run returned something else.
            WorkflowFailureError: It failed.
            RunGone: Temporal has forgotten it, and its result.
            RPCError: As Temporal has it.
        """
        raw = await self._end()
        try:
            return unpack(kind, raw)
        except ValidationError as err:
            raise RunFailed(
                f"the run {self.id!r} returned no {kind.__name__}: an agent's run is had by "
                "`AgentClient.run`, a plan's by `AgentClient.plan`"
            ) from err

    async def _end(self) -> RawValue:
        """Wait for the end, over lost connections to a server that is there; return the result."""
        while True:
            try:
                own = await self.own()
                with naming_codec():
                    return await own.result()  # type: ignore[no-any-return]
            except RPCError as err:
                if err.status is RPCStatusCode.NOT_FOUND:
                    await self.describe()  # says why
                if not await self.only_the_wait_ended(err):
                    raise

    async def only_the_wait_ended(self, error: RPCError) -> bool:
        """Whether a wait for this run may begin anew after an error; see `temporal_failure`."""
        return await only_the_wait_ended(self._connection.temporal, self.id, error)

    async def progress(self) -> Progress | None:
        """Return where the run is; None while no worker is there to say."""
        try:
            async with asyncio.timeout(_QUERY_SECONDS):
                own = await self.own()
                return unpack(Progress, await own.query("status", result_type=RawValue))
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return None


async def run_key_of(described: WorkflowExecutionDescription) -> RunKey:
    """Return the key of a described run: a sub-agent's workflow carries its own in the memo.

    Raises:
        PayloadUnreadable: A codec that this process lacks has encoded what Temporal keeps of it.
    """
    below = await memo_text(described, MEMO_RUN_KEY)
    if below is not None:
        return RunKey(below)
    return run_key(described.id, first_of(described))


def is_ours(described: WorkflowExecutionDescription) -> bool:
    """Whether a described workflow is a run of ours, and not another framework's."""
    return described.workflow_type in {AGENT_RUN, PLAN_RUN}


def first_of(described: WorkflowExecutionDescription) -> str:
    """Return the id of the first execution of a run."""
    info = described.raw_description.workflow_execution_info
    return info.first_run_id or described.run_id


def state_of(described: WorkflowExecutionDescription) -> RunState:
    """Return the state of a described run: Temporal's word, or that it is being stopped."""
    if described.status is None or described.status is WorkflowExecutionStatus.RUNNING:
        cancelling = described.raw_description.workflow_extended_info.cancel_requested
        paused: RunState = "paused" if is_paused(described) else "running"
        return "stopping" if cancelling else paused
    return described.status.name.lower()  # type: ignore[return-value]
