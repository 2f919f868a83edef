"""The threads that an async tool starts with `asyncio.to_thread`: one each, and waited for.

A thread cannot be stopped. So a tool whose thread goes on has not ended, and may still send.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

tool_threads: ContextVar[list[Future[Any]]] = ContextVar("commitline_tool_threads")
"""The threads that the running tool has started so far."""


class ThreadForEach(ThreadPoolExecutor):
    """Gives every `asyncio.to_thread` of a tool a thread of its own.

    asyncio's own pool has a few threads more than the machine has cores. Calls that hang would
    use it up, and every other async tool would wait behind them.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See base class."""
        future: Future[T] = Future()
        threads = tool_threads.get(None)
        if threads is not None:
            threads.append(future)

        def body() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as err:
                future.set_exception(err)
            else:
                future.set_result(result)

        threading.Thread(target=body, name="commitline-to-thread", daemon=True).start()
        return future


async def all_ended(threads: Iterable[Future[Any]]) -> None:
    """Wait until the threads have ended, however often this is cancelled."""
    waiting = {asyncio.wrap_future(one) for one in threads if not one.done()}
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting)
        except asyncio.CancelledError:
            waiting = {one for one in waiting if not one.done()}
    for one in threads:
        if not one.cancelled():
            one.exception()
