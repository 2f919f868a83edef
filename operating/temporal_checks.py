"""What `commitline doctor` looks at in Temporal."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeWorkerDeploymentRequest,
    GetSystemInfoRequest,
    PollWorkflowTaskQueueRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ..config import Settings
from ..errors import ConfigurationError
from .check import START_DEV, Check, clock_check
from .command_client import command_temporal
from .queue_workers import queue_workers, workers_of

_NAMED: Final = 5
_CLOCK_QUEUE: Final = "commitline-doctor"
"""Always the same: the server keeps a row of each task queue that somebody has polled."""
_POLL: Final = timedelta(seconds=5)
"""The server refuses to wait for less than two; the poll is given up long before."""


async def temporal() -> Check:
    """Whether the server answers, and has the namespace."""
    try:
        client = await command_temporal(Settings.load())
    except ConfigurationError as err:
        found, _, reason = err.message.partition(": ")
        if "Connection refused" not in reason:  # which says nothing more, at length
            found = err.message
        return Check("Temporal", "missing", found, f"set TEMPORAL_ADDRESS, or {START_DEV}")
    address = client.service_client.config.target_host
    try:
        described = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace)
        )
        info = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    except RPCError as err:
        if err.status is RPCStatusCode.NOT_FOUND:
            create = f"temporal operator namespace create -n {client.namespace} --address {address}"
            return Check("Temporal", "wrong", f"no namespace {client.namespace!r}", f"`{create}`")
        return Check("Temporal", "wrong", f"{address}: {err.message}", "check the server's log")
    days = described.config.workflow_execution_retention_ttl.seconds / 86_400
    kept = f"namespace {client.namespace}, histories kept for {days:g} d"
    return Check("Temporal", "ok", f"{info.server_version} at {address}, {kept}")


async def workers() -> Check:
    """Who polls the task queue of the settings, and what of it nobody polls."""
    settings = Settings.load()
    name, queue = "workers", settings.task_queue
    try:
        found = await workers_of(await command_temporal(settings), queue)
    except (ConfigurationError, RPCError):
        return Check(name, "missing", "no Temporal to look at", needed=False)
    start = f"`commitline worker {settings.app or 'module:attribute'}`"
    if not found.workflows and not found.activities:
        return Check(name, "missing", f"none polls {queue}", start, needed=False)
    if not found.workflows or not found.activities:
        polled, not_polled = "workflows", "activities"
        if not found.workflows:
            polled, not_polled = not_polled, polled
        told = f"of {queue} they poll {polled}, and none polls {not_polled}"
        return Check(name, "wrong", told, start, needed=False)
    both = set(found.workflows) | set(found.activities)
    builds = f", builds {', '.join(found.builds)}" if found.builds else ""
    return Check(name, "ok", f"{len(both)} on {queue}{builds}", needed=False)


async def deployment() -> Check:
    """Whether new runs go to workers of the deployment that the settings name."""
    settings, name = Settings.load(), "deployment"
    if not settings.deployment:
        return Check(name, "ok", "none: workers have no versions", needed=False)
    asked = DescribeWorkerDeploymentRequest(deployment_name=settings.deployment)
    try:
        client = await command_temporal(settings)
        asked.namespace = client.namespace
        described = await client.workflow_service.describe_worker_deployment(asked)
    except (ConfigurationError, RPCError):
        told = f"Temporal has none of the name {settings.deployment}"
        return Check(name, "missing", told, "start a worker of it", needed=False)
    current = described.worker_deployment_info.routing_config.current_deployment_version
    if not current.build_id:
        remedy = (
            "temporal worker deployment set-current-version --deployment-name "
            f"{settings.deployment} --build-id {settings.build_id or 'BUILD'}"
        )
        told = f"no version of {settings.deployment} is current: runs do not go to its workers"
        return Check(name, "wrong", told, f"`{remedy}`", needed=False)
    return Check(name, "ok", f"{settings.deployment}, current {current.build_id}", needed=False)


async def plugins(queue: str) -> Check:
    """Whether all workers of a queue have `LedgerPlugin`."""
    name = f"queue {queue}"
    try:
        found = await queue_workers(await command_temporal(Settings.load()), queue)
    except (ConfigurationError, RPCError) as err:
        return Check(name, "missing", err.message, "see what is said of Temporal")
    if found.unguarded:
        named = ", ".join(found.unguarded[:_NAMED])
        remedy = "give their clients the plugin, or stop them; a stopped one is named for minutes"
        count = len(found.unguarded)
        return Check(name, "wrong", f"{count} without LedgerPlugin: {named}", remedy)
    if not found.guarded:
        return Check(name, "missing", "no worker polls it", "start one with LedgerPlugin")
    return Check(name, "ok", f"{len(found.guarded)} with LedgerPlugin, none without")


async def clock() -> Check:
    """What the server's clock shows: it notes when somebody polls, and tells that."""
    name = "Temporal clock"
    try:
        client = await command_temporal(Settings.load())
        began = time.time()
        seen = await _polled_at(client)
    except (ConfigurationError, RPCError):
        return Check(name, "missing", "no Temporal to look at", needed=False)
    if seen is None:
        return Check(name, "missing", "the server does not tell", needed=False)
    took = time.time() - began
    return clock_check(name, seen - began - took / 2, took / 2)


async def _polled_at(client: Client) -> float | None:
    """Poll a queue that nobody uses, and return when that was by the server's clock."""
    poll = PollWorkflowTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=_CLOCK_QUEUE),
        identity=client.identity,
    )
    asked = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=_CLOCK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    polling = asyncio.ensure_future(
        client.workflow_service.poll_workflow_task_queue(poll, timeout=_POLL)
    )
    try:
        for _ in range(_LOOKS):
            await asyncio.wait({polling}, timeout=_LOOK_SECONDS)
            described = await client.workflow_service.describe_task_queue(asked)
            for poller in described.pollers:
                if poller.identity == client.identity:
                    return poller.last_access_time.ToDatetime(UTC).timestamp()
        return None
    finally:
        polling.cancel()
        await asyncio.wait({polling})


_LOOKS: Final = 10
_LOOK_SECONDS: Final = 0.1
