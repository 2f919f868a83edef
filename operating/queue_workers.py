"""Which workers poll a task queue, and which of them have `LedgerPlugin`: it signs their identity.

A worker without it takes a guarded call over and makes it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from ..identity import PLUGIN_MARK

_TYPES: Final = (
    TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
)


@dataclass(frozen=True)
class QueueWorkers:
    """The workers that have polled a queue within the last minutes."""

    guarded: Sequence[str]
    """Identities of those with the plugin."""
    unguarded: Sequence[str]
    """Identities of those without."""


async def queue_workers(client: Client, task_queue: str) -> QueueWorkers:
    """Return who polls a queue. The server names a worker for some minutes after it has gone.

    Raises:
        RPCError: The server does not say.
    """
    seen: set[str] = set()
    for kind in _TYPES:
        described = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=task_queue),
                task_queue_type=kind,
            )
        )
        seen |= {poller.identity for poller in described.pollers}
    guarded = {one for one in seen if one.endswith(PLUGIN_MARK)}
    return QueueWorkers(sorted(guarded), sorted(seen - guarded))
