"""A deadline that does not depend on the work's co-operation.

``asyncio.wait_for`` waits until the work has taken its cancellation, and a driver on a
frozen connection may never do so. Here the caller goes on at the deadline, whatever the
work does. The other way round, a cancelled caller does not tear a statement apart: the statement
is brought to its end, within the same deadline, and then the cancellation goes on. So a cancelled
caller knows whether the statement took effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the work's result, or raise its error, within ``seconds``.

    Raises:
        TimeoutError: The deadline passed. The work is cancelled and left behind.
        asyncio.CancelledError: The caller was cancelled, after the work ended.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as err:
            cancelled = err
    if not task.done():
        task.cancel()
        task.add_done_callback(_forget)
        raise cancelled or TimeoutError
    if cancelled is not None:
        _forget(task)
        raise cancelled
    return task.result()


def _forget(task: asyncio.Task[Any]) -> None:
    """Take the error of a task that no caller waits for any more."""
    if not task.cancelled():
        task.exception()
