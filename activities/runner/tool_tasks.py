"""The tasks that an async tool starts, so that none of them outlives the question that ends it.

The row of a call that waits for an answer says that nothing was sent, and the call is made again.
A task that goes on beside the question may send meanwhile, and again the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

tool_tasks: ContextVar[set[asyncio.Task[Any]]] = ContextVar("commitline_tool_tasks")
"""The tasks that the running tool has started, and that have not ended."""


def noted_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T] | Generator[Any, None, T],
    **options: Any,
) -> asyncio.Task[T]:
    """Make a task, and note it with the tool that starts it; a task factory."""
    task: asyncio.Task[T] = asyncio.Task(work, loop=loop, **options)
    tasks = tool_tasks.get(None)
    if tasks is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return task


async def ended_with_question(tasks: set[asyncio.Task[Any]]) -> bool:
    """End what goes on of a tool that has raised its question; return whether anything did."""
    await asyncio.sleep(0)  # another question beside the first one ends by itself
    left = set(tasks)
    for task in left:
        task.cancel()
    while waiting := {task for task in left if not task.done()}:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError:
            continue
    for task in left:
        if not task.cancelled():
            task.exception()
    return bool(left)
