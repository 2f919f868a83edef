"""How a run is started: what every start says to Temporal, and how a repeated one is recognised.

The digest of the input lies in the ledger and in the workflow's memo. A start whose id is taken
joins the run there if the digests are the same, and is refused if they are not. The ledger is asked
first: Temporal forgets a run after the namespace's retention, or when its history is deleted, and
would begin it anew.
"""

from __future__ import annotations

from typing import Any, Final

from temporalio.client import WorkflowExecutionDescription, WorkflowHandle
from temporalio.common import RawValue, RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from ..activities.contract.encoding import pack
from ..errors import RunInputConflict, ThreadBusy
from ..identity import first_execution
from ..ledger import Run
from ..shown import markdown_line
from ..workflows import AGENT_RUN, PLAN_RUN, PlanInput, RunInput
from ..workflows.run_input import TASK_TIMEOUT
from .connection import Connection
from .executions import memo_text
from .run_workflow import RunWorkflow
from .temporal_failure import refused

MEMO_INPUT: Final = "commitline_input"


def start_options(
    given: RunInput | PlanInput, *, id: str, task: str, task_queue: str
) -> dict[str, Any]:
    """Return what every start of a run says to Temporal.

    Args:
        given: The run's input.
        id: The workflow id.
        task: What the run is to do, for people who see it in Temporal's UI.
        task_queue: Of the workers that serve it.
    """
    is_plan = isinstance(given, PlanInput)
    summary = task if isinstance(given, PlanInput) else f"{given.agent}: {task}"
    return {
        "workflow": PLAN_RUN if is_plan else AGENT_RUN,
        "arg": pack(given),
        "id": id,
        "task_queue": task_queue,
        "result_type": RawValue,
        "task_timeout": TASK_TIMEOUT,
        "memo": {MEMO_INPUT: given.digest},
        "static_summary": markdown_line(summary),
    }


async def start_or_join(
    connection: Connection,
    options: dict[str, Any],
    digest: str,
    retry_policy: RetryPolicy | None = None,
) -> str | None:
    """Start a run of its own id, or join the one that has this id and the same input.

    Returns:
        The id of the first execution of the run that the ledger has; None if it had none.

    Raises:
        RunInputConflict: A run with this id was started with other input.
        LedgerUnavailable: The ledger cannot say whether it has this run. Nothing was started.
        CommitlineError: Temporal refuses it, or does not answer.
    """
    workflow_id = options["id"]
    namespace = connection.temporal.namespace
    begun = await (await connection.ledger()).runs.begun(workflow_id, namespace=namespace)
    if begun is not None:
        if not _may_be_of(begun, digest):
            raise _conflict(workflow_id)
        return first_execution(begun.run_key)
    try:
        await connection.temporal.start_workflow(
            **options,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            retry_policy=retry_policy,
        )
    except WorkflowAlreadyStartedError:
        pass  # it has ended: whether it was this very run is seen below
    except RPCError as err:
        raise refused(workflow_id, err) from err
    if await _digest_of(await RunWorkflow(connection, workflow_id).describe()) != digest:
        raise _conflict(workflow_id)
    return None


def _may_be_of(begun: Run, digest: str) -> bool:
    """Whether a run may have this input; of one that was stopped before it opened no one knows."""
    never_opened = begun.stopped_at is not None and not begun.input_digest
    return never_opened or begun.input_digest == digest


def _conflict(workflow_id: str) -> RunInputConflict:
    return RunInputConflict(f"the run {workflow_id!r} exists and was started with other input")


async def start_on_thread(
    connection: Connection,
    options: dict[str, Any],
    given: RunInput,
    retry_policy: RetryPolicy | None,
) -> str | None:
    """Start a run of a conversation, or join the one under way for the same request.

    Returns:
        The id of the first execution of the run that was started; None if one was joined.

    Raises:
        ThreadBusy: A run is under way for another request.
        CommitlineError: Temporal refuses it, or does not answer.
    """
    workflow_id = options["id"]
    try:
        started: WorkflowHandle[Any, Any] = await connection.temporal.start_workflow(
            **options,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            retry_policy=retry_policy,
        )
    except WorkflowAlreadyStartedError as err:
        if await _digest_of(await RunWorkflow(connection, workflow_id).describe()) != given.digest:
            raise ThreadBusy(f"the thread {given.thread_id!r} has a run under way") from err
        return None
    except RPCError as err:
        raise refused(workflow_id, err) from err
    return started.first_execution_run_id


async def _digest_of(described: WorkflowExecutionDescription) -> str | None:
    """Return what a run was started with, as `RunInput.digest`."""
    return await memo_text(described, MEMO_INPUT)
