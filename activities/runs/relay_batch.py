"""How much one look of the relay takes on: so many rows at a time, so many side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

AT_ONCE: Final = 20
"""Actions, or runs, that one query takes: it locks and writes so many rows."""
LONGEST_SECONDS: Final = 60.0
"""After this time a look ends; the next one goes on with the rest."""
_SIDE_BY_SIDE: Final = 20


async def side_by_side(work: Sequence[Coroutine[Any, Any, bool]]) -> list[bool]:
    """Do all of the work, a few at a time; then raise the first error."""
    gate = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def one(item: Coroutine[Any, Any, bool]) -> bool:
        async with gate:
            return await item

    done = await asyncio.gather(*(one(item) for item in work), return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in done if isinstance(outcome, bool)]
