"""Heartbeats beside the work, so that a dead worker is noticed and a busy one is not.

It beats whatever the work does, as long as the worker's event loop turns: it tells
"this worker lives", not "this tool makes progress".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityOutboundInterceptor


class Heartbeats(ActivityOutboundInterceptor):
    """The way out of an activity's heartbeats, which remembers what the activity said last.

    `again` does not go through `activity.heartbeat`: while a plain function runs in a thread,
    the SDK makes that wait for the event loop, and the event loop is where we are.
    """

    def __init__(self, next: ActivityOutboundInterceptor) -> None:
        super().__init__(next)
        # Until the activity says something: what the attempt before left for this one.
        self._details: Sequence[Any] = activity.info().heartbeat_details

    def heartbeat(self, *details: Any) -> None:
        """See base class. A local activity has no heartbeat, and its tool need not know."""
        if activity.info().is_local:
            return
        self._details = details
        super().heartbeat(*details)

    def again(self) -> None:
        """Beat with the details of the last beat."""
        super().heartbeat(*self._details)


def beat_with_earlier_details() -> None:
    """Beat as an activity does that has no details of its own."""
    activity.heartbeat(*activity.info().heartbeat_details)


@asynccontextmanager
async def beating(beat: Callable[[], None] = beat_with_earlier_details) -> AsyncIterator[None]:
    """Heartbeat three times per heartbeat timeout while the body runs."""
    timeout = activity.info().heartbeat_timeout
    if not timeout:
        yield
        return
    loop, every = asyncio.get_running_loop(), timeout.total_seconds() / 3
    timer: asyncio.TimerHandle

    def beat_on() -> None:
        nonlocal timer
        timer = loop.call_later(every, beat_on)
        beat()

    timer = loop.call_later(every, beat_on)  # no task, which would cost each activity more
    try:
        yield
    finally:
        timer.cancel()
