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
class Pollers:
    """Who has polled a queue within the last minutes, by identity."""

    workflows: Sequence[str]
    """For workflow tasks."""
    activities: Sequence[str]
    """For activities."""
    builds: Sequence[str]
    """The builds that they name (COMMITLINE_BUILD_ID)."""


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
    found = await workers_of(client, task_queue)
    seen = {*found.workflows, *found.activities}
    guarded = {one for one in seen if one.endswith(PLUGIN_MARK)}
    return QueueWorkers(sorted(guarded), sorted(seen - guarded))


async def workers_of(client: Client, task_queue: str) -> Pollers:
    """Return who polls a queue for what. The server names a worker for minutes after it has gone.

    Raises:
        RPCError: The server does not say.
    """
    seen: list[set[str]] = []
    builds: set[str] = set()
    for kind in _TYPES:
        described = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=task_queue),
                task_queue_type=kind,
            )
        )
        seen.append({poller.identity for poller in described.pollers})
        builds |= {
            poller.deployment_options.build_id or poller.worker_version_capabilities.build_id
            for poller in described.pollers
        }
    workflows, activities = seen
    return Pollers(sorted(workflows), sorted(activities), sorted(builds - {""}))
