"""`Gauges`: what waits, and how the pool is used, looked at every few seconds.

A worker looks beside the relay's own look, so nothing is asked when the metrics are read. Every
worker reports the same of one ledger: take the largest, not the sum.
"""

from __future__ import annotations

import time
from typing import Final

from ...errors import CommitlineError
from ...ledger import ActionLedger
from ...ledger.waiting import WaitingLedger
from ...metrics import (
    LEDGER_UP,
    POOL_CONNECTIONS,
    POOL_LIMIT,
    POOL_WAITING,
    WAITING,
    WAITING_OLDEST,
    is_reporting,
    set_to,
)

EVERY_SECONDS: Final = 15.0
"""Between two looks: as often as Prometheus reads by default, or oftener."""


class Gauges:
    """The gauges of one worker.

    Args:
        ledger: Over an open pool.
    """

    def __init__(self, ledger: ActionLedger) -> None:
        self._ledger = WaitingLedger.beside(ledger)
        self._due_at = 0.0

    async def look(self) -> None:
        """Set the gauges, if the last look is long enough ago, and anything reads them.

        Safe to repeat. An outage is shown by a gauge; what waited before it is left as it was.
        """
        if not is_reporting() or time.monotonic() < self._due_at:
            return
        self._due_at = time.monotonic() + EVERY_SECONDS
        self._show_pool()
        try:
            found = await self._ledger.look()
        except CommitlineError:  # the call counts and names it
            set_to(LEDGER_UP, 0)
            return
        set_to(LEDGER_UP, 1)
        for waiting in found:
            set_to(WAITING, waiting.number, waiting.kind)
            set_to(WAITING_OLDEST, waiting.oldest_seconds, waiting.kind)

    def _show_pool(self) -> None:
        use = self._ledger.pool_use()
        set_to(POOL_CONNECTIONS, use.used, "used")
        set_to(POOL_CONNECTIONS, use.idle, "idle")
        set_to(POOL_LIMIT, use.limit)
        set_to(POOL_WAITING, use.waiting)
