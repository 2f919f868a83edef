"""Writes to the ledger that must finish: through a cancellation, and through an outage.

An outcome that is in hand must not be lost because its activity is cancelled, or because Postgres
does not answer. It is written, or the workflow records it later, or this attempt goes on trying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog

from ...errors import LedgerUnavailable
from ..runner.bounded_call import despite_cancellation

T = TypeVar("T")
H = TypeVar("H")

log = structlog.get_logger("commitline")

UNAVAILABLE_SECONDS: Final = 0.5
"""Between two calls of a ledger that does not answer."""


async def finish(
    write: Callable[[], Coroutine[Any, Any, T]],
    *,
    hand_over: Callable[[LedgerUnavailable], H | None] = lambda _: None,
) -> T | H:
    """Write to the ledger; return what the write, or the hand-over, returns.

    A cancellation does not interrupt the first try: it is bounded by itself, and the cancellation
    is dropped. Safe to repeat as far as ``write`` is: it may be called several times.

    Args:
        write: One ledger call. What it raises, other than `LedgerUnavailable`, is raised.
        hand_over: Called once when the ledger does not answer. It returns what the workflow is
            to record, or None where it cannot: then ``write`` is repeated until it succeeds.
    """
    try:
        return await despite_cancellation(write())
    except LedgerUnavailable as err:
        handed_over = hand_over(err)
    if handed_over is not None:
        return handed_over
    return await persist(write)


async def persist(write: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Repeat a *ledger call* until the ledger answers; never the tool or the model."""
    while True:
        try:
            return await write()
        except LedgerUnavailable as err:
            log.warning("ledger.unavailable", reason=err.message)
            await asyncio.sleep(UNAVAILABLE_SECONDS)
