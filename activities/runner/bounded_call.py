"""Calling a tool with a deadline that holds whether the tool co-operates or not.

At the deadline the tool is cancelled and given a moment to end. One that takes no notice (a
thread, a swallowed cancellation) is left behind: the attempt goes on without it, and what it
ends with, however late, is handed to ``on_late``, which records it on its row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar

T = TypeVar("T")

CANCEL_GRACE_SECONDS: Final = 0.5
"""How long a cancelled tool may take to end (its ``finally`` runs) before it is left behind."""


@dataclass(frozen=True)
class Returned:
    """The tool returned, perhaps after its deadline."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """The tool raised."""

    error: BaseException


@dataclass(frozen=True)
class Abandoned:
    """The tool took no notice of its cancellation and goes on."""


@dataclass(frozen=True)
class CallEnd:
    """How a call ended."""

    how: Returned | Raised | Abandoned
    stopped_by: Literal["caller", "deadline"] | None = None
    """Who cancelled it, if anybody did."""


OnLate: TypeAlias = Callable[[Returned | Raised], Awaitable[None]]

_left_behind: set[asyncio.Task[Any]] = set()


async def ignore_late_end(end: Returned | Raised) -> None:
    """Let a late end be."""


async def call_within(
    seconds: float | None, work: Coroutine[Any, Any, Any], *, on_late: OnLate = ignore_late_end
) -> CallEnd:
    """Run ``work`` and say how it ended; never raises, and takes little longer than it may.

    Args:
        seconds: The deadline; None is none.
        work: The call.
        on_late: Told of the end of a tool that was left behind; by default nobody is.
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
        _leave(task, on_late)
        return CallEnd(Abandoned(), stopped_by)
    return CallEnd(_how(task), stopped_by)


async def despite_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work`` however often the caller is cancelled; return or raise what it does.

    For what must not be torn apart, and is bounded by itself. The cancellation is gone then.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue
    return task.result()


async def _wait(task: asyncio.Task[Any], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            continue


def _leave(task: asyncio.Task[Any], on_late: OnLate) -> None:
    async def follow() -> None:
        await asyncio.wait({task})
        await on_late(_how(task))

    follower = asyncio.ensure_future(follow())
    _left_behind.add(follower)  # the loop keeps only weak references
    follower.add_done_callback(_left_behind.discard)


def _how(task: asyncio.Task[Any]) -> Returned | Raised:
    if task.cancelled():
        return Raised(asyncio.CancelledError())
    error = task.exception()
    return Raised(error) if error is not None else Returned(task.result())
