"""`Pace`: time in ledger calls: a busy machine makes fewer of them, and all the rest with them."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Final

_STALLED_SECONDS: Final = 0.2
"""After which somebody goes on, if nobody has made a call: all of them rest."""


class Pace:
    """Counts the ledger calls of all actors, and wakes who has rested for long enough."""

    def __init__(self) -> None:
        self._calls = 0
        self._over = False
        self._numbers = count()
        self._resting: list[tuple[float, int, asyncio.Future[None]]] = []

    def call(self) -> None:
        """Count a ledger call."""
        self._calls += 1
        while self._resting and self._resting[0][0] <= self._calls:
            self._wake()

    async def rest(self, calls: float) -> None:
        """Wait until so many calls were made."""
        if self._over:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._resting, (self._calls + calls, next(self._numbers), woken))
        while not woken.done():
            before = self._calls
            await asyncio.wait([woken], timeout=_STALLED_SECONDS)
            if not woken.done() and before == self._calls:
                self._wake()

    def end(self) -> None:
        """Wake everybody: nobody rests any more."""
        self._over = True
        while self._resting:
            self._wake()

    def _wake(self) -> None:
        _, _, woken = heapq.heappop(self._resting)
        if not woken.done():
            woken.set_result(None)
