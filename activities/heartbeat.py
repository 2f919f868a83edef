"""Heartbeats beside the work, so that a dead worker is noticed and a busy one is not.

The task beats whatever the work does, as long as the worker's event loop turns: it tells
"this worker lives", not "this tool makes progress".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeAlias

from temporalio import activity

Heartbeat: TypeAlias = Callable[..., None]


@asynccontextmanager
async def beating(heartbeat: Heartbeat = activity.heartbeat) -> AsyncIterator[None]:
    """Heartbeat three times per heartbeat timeout while the body runs.

    Args:
        heartbeat: An interceptor passes its outbound one. For a plain function the SDK puts
            another into the activity's context, which waits for the event loop that calls it.
    """
    timeout = activity.info().heartbeat_timeout
    if not timeout:
        yield
        return
    task = asyncio.create_task(_beat(heartbeat, timeout / 3))
    try:
        yield
    finally:
        task.cancel()


async def _beat(heartbeat: Heartbeat, every: timedelta) -> None:
    # The details are carried on: they are what the attempt before left for this one.
    details = activity.info().heartbeat_details
    while True:
        await asyncio.sleep(every.total_seconds())
        heartbeat(*details)
