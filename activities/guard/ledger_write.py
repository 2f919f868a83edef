"""Writes to the ledger that must finish: through a cancellation, an outage, and any other error.

An outcome that is in hand must not be lost because its activity is cancelled, because Postgres
does not answer, or because of what it answers. It is written, or the workflow records it later,
or this attempt goes on trying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ...errors import CommitlineError, LedgerUnavailable, StatementRefused
from ...ledger.result_codec import error_text
from ...logs import Log
from ..runner.bounded_call import despite_cancellation

T = TypeVar("T")
H = TypeVar("H")

log = Log()

UNAVAILABLE_SECONDS: Final = 0.5
"""Between two calls of a ledger that does not answer."""


_LONGEST_SECONDS: Final = 10.0
"""Between two tries of a write that Postgres refuses, at most."""


async def finish(
    write: Callable[[], Coroutine[Any, Any, T]],
    *,
    hand_over: Callable[[Exception], H | None] = lambda _: None,
) -> T | H:
    """Write to the ledger; return what the write, or the hand-over, returns.

    A cancellation does not interrupt the first try: it is bounded by itself, and the cancellation
    is dropped. Safe to repeat as far as ``write`` is: it may be called several times.

    Args:
        write: One ledger call. It raises what `is_final` says to be an answer.
        hand_over: Called once when nothing was written. It returns what the workflow is to
            record, or None where it cannot: then ``write`` is repeated until it succeeds.
    """
    try:
        return await despite_cancellation(write())
    except Exception as err:
        if is_final(err):
            raise
        handed_over = hand_over(err)
    if handed_over is not None:
        return handed_over
    return await hold(write)


async def persist(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Repeat a *ledger call* until the ledger answers; never the tool or the model."""
    while True:
        try:
            return await work()
        except LedgerUnavailable as err:
            log.warning("ledger.unavailable", reason=err.message)
            await asyncio.sleep(UNAVAILABLE_SECONDS)


async def hold(write: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Repeat a write until it succeeds: what it records would be lost without it."""
    seconds = UNAVAILABLE_SECONDS
    while True:
        try:
            return await persist(write)
        except Exception as err:
            if is_final(err):
                raise
            log.error("ledger.write_refused", reason=error_text(err))
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _LONGEST_SECONDS)


def is_final(error: Exception) -> bool:
    """Whether what a write raised is the ledger's answer: another attempt has the row, say.

    All else says that nothing was written, and why: an outage, a grant or a trigger in the way, a
    fault of ours. None of it is a reason to lose what is in hand.
    """
    nothing_written = (LedgerUnavailable, StatementRefused)
    return isinstance(error, CommitlineError) and not isinstance(error, nothing_written)
