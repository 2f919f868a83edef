"""A call with a deadline that holds, whether the tool co-operates or not.

At the deadline the tool is cancelled and gets a moment to end. A tool that ignores its
cancellation (a thread, or a tool that catches `CancelledError`) is *abandoned*: the attempt goes
on without it. When the tool ends, however late, its end goes to ``on_late``, which records it.

What a tool returns or raises after its cancellation has reached its own code says nothing of what
it did: it may be "I was cancelled, sorry". So such an end is the cancellation itself. Who runs the
tool sees to that: `ToolRunner` for tools, `cancelled_if_told` for what runs on the worker's loop.
A tool that had ended before, and one that cannot be told (a thread), have their own end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

T = TypeVar("T")

CANCEL_GRACE_SECONDS: Final = 0.5
"""How long a cancelled tool may take to end (its ``finally`` runs) before it is abandoned."""


@dataclass(frozen=True)
class Returned:
    """The tool returned, perhaps after its deadline."""

    value: Any
    """What it returned."""


@dataclass(frozen=True)
class Raised:
    """The tool raised."""

    error: BaseException
    """What it raised."""


@dataclass(frozen=True)
class Abandoned:
    """The tool ignored its cancellation and goes on."""


@dataclass(frozen=True)
class CallEnd:
    """How a call ended."""

    how: Returned | Raised | Abandoned
    """By the tool's own end, or without it."""
    stopped_by: Literal["caller", "deadline"] | None = None
    """Who cancelled the call; None: it ended by itself."""


OnLate: TypeAlias = Callable[[Returned | Raised], Awaitable[None]]
"""Gets the end of a tool that was abandoned."""

_followers: set[asyncio.Task[Any]] = set()
"""The tasks that wait for abandoned tools: the event loop keeps only weak references."""


async def ignore_late_end(end: Returned | Raised) -> None:
    """Do nothing about the late end of an abandoned tool."""


async def call_within(
    seconds: float | None, work: Coroutine[Any, Any, Any], *, on_late: OnLate = ignore_late_end
) -> CallEnd:
    """Run ``work`` and return how it ended. Never raises, and ends soon after the deadline.

    Args:
        seconds: The deadline; None is none.
        work: The call.
        on_late: Gets the end of a tool that was abandoned; by default it is ignored.
    """
    task = asyncio.ensure_future(work)
    stopped_by: Literal["caller", "deadline"] | None = None
    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        stopped_by = "caller"
    if not task.done():
        stopped_by = stopped_by or "deadline"
        task.cancel()
        await _wait(task, CANCEL_GRACE_SECONDS)
    if not task.done():
        _abandon(task, on_late)
        return CallEnd(Abandoned(), stopped_by)
    return CallEnd(_end_of(task), stopped_by)


async def despite_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work`` however often the caller is cancelled; return or raise what it does.

    For work that must not be interrupted and ends by itself. The cancellations are dropped.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    return task.result()


async def cancelled_if_told(work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work``, which is cancelled with the caller; return or raise what it does.

    Raises:
        asyncio.CancelledError: It was cancelled before it had ended, whatever it made of that.
    """
    task, told = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            told = task.cancel() or told
    if told:
        if not task.cancelled():
            task.exception()  # else asyncio logs that nobody took it
        raise asyncio.CancelledError
    return task.result()


async def _wait(task: asyncio.Task[Any], seconds: float) -> None:
    """Wait for a task so long at most, however often the caller is cancelled."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            continue


def _abandon(task: asyncio.Task[Any], on_late: OnLate) -> None:
    async def follow() -> None:
        await asyncio.wait({task})
        await on_late(_end_of(task))

    follower = asyncio.ensure_future(follow())
    _followers.add(follower)
    follower.add_done_callback(_followers.discard)


def _end_of(task: asyncio.Task[Any]) -> Returned | Raised:
    if task.cancelled():
        return Raised(asyncio.CancelledError())
    error = task.exception()
    return Raised(error) if error is not None else Returned(task.result())
