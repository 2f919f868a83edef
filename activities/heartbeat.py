"""Heartbeats beside the work, so that a dead worker is noticed and a busy one is not.

The task beats whatever the work does, as long as the worker's event loop turns: it tells
"this worker lives", not "this tool makes progress".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Heartbeat three times per heartbeat timeout while the body runs."""
    timeout = activity.info().heartbeat_timeout
    if not timeout:
        yield
        return
    task = asyncio.create_task(_beat(timeout / 3))
    try:
        yield
    finally:
        task.cancel()


async def _beat(every: timedelta) -> None:
    # The details are carried on: they are what the attempt before left for this one.
    details = activity.info().heartbeat_details
    while True:
        activity.heartbeat(*details)
        await asyncio.sleep(every.total_seconds())
