"""Workflows that are left: they go on, and no worker polls their task queue any more.

A task queue that is renamed leaves its workflows behind, and Temporal moves none to another queue.
What they did is in the ledger, so that another workflow can go on with it. Temporal remembers for
five minutes that a worker has polled.
"""

from __future__ import annotations

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
)
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode


async def described(
    temporal: Client, workflow_id: str, run_id: str = ""
) -> DescribeWorkflowExecutionResponse | None:
    """Return an execution, by default the *current* one of a workflow id; None if there is none.

    After a reset the first one reads as terminated while the run lives on.

    Raises:
        RPCError: Temporal does not say.
    """
    try:
        return await temporal.workflow_service.describe_workflow_execution(
            # Not the client's own: it does not know every status.
            DescribeWorkflowExecutionRequest(
                namespace=temporal.namespace,
                execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
            ),
            retry=True,
        )
    except RPCError as err:
        if err.status is RPCStatusCode.NOT_FOUND and "namespace" not in err.message.lower():
            return None
        raise


async def left(temporal: Client, workflow_id: str) -> WorkflowHandle[object, object] | None:
    """Return the execution of a workflow that is left; None if there is none, or it is not left.

    Where one of its activities is at work still, on a worker that is shutting down, it is not.

    Raises:
        RPCError: Temporal does not say.
    """
    found = await described(temporal, workflow_id)
    if found is None or found.workflow_execution_info.HasField("close_time"):
        return None
    at_work = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    if any(one.state == at_work for one in found.pending_activities):
        return None
    if await is_polled(temporal, found.workflow_execution_info.task_queue):
        return None
    execution = found.workflow_execution_info.execution
    return temporal.get_workflow_handle(workflow_id, run_id=execution.run_id)


async def is_polled(temporal: Client, task_queue: str) -> bool:
    """Whether a worker polls a task queue, or did within the last five minutes.

    Raises:
        RPCError: Temporal does not say.
    """
    answer = await temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=temporal.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        retry=True,
    )
    return bool(answer.pollers)
