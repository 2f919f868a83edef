"""Serves a workflow in this process, starts it once, and prints its answer.

The servers are those of `commitline dev`, or those that the environment names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from temporalio.client import Plugin
from temporalio.worker import Worker

from ..config import connect_temporal, core_runtime
from ..log_output import configure_logging
from ..process import leave

PROMPT = "Please charge my order and mail me the receipt."


def run_once(
    workflow: type[Any],
    plugins: Sequence[Plugin],
    *,
    activities: Sequence[Callable[..., Any]] = (),
    worker_plugins: Sequence[Any] = (),
) -> None:
    """Run the workflow of an example; its plugins end with `LedgerPlugin`."""
    configure_logging()
    asyncio.run(_run_once(workflow, plugins, activities, worker_plugins))
    leave(0)  # the SDK's threads may abort an interpreter that finalizes


async def _run_once(
    workflow: type[Any],
    plugins: Sequence[Plugin],
    activities: Sequence[Callable[..., Any]],
    worker_plugins: Sequence[Any],
) -> None:
    client = await connect_temporal({"runtime": core_runtime(), "plugins": plugins})
    queue = f"example-{uuid4()}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[workflow],
        activities=activities,
        plugins=worker_plugins,
    ):
        answer = await client.execute_workflow(
            workflow.__name__, PROMPT, id=queue, task_queue=queue, result_type=str
        )
        print(answer)  # noqa: T201
        print(f"Look: commitline actions list --run {queue}")  # noqa: T201
