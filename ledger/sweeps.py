"""`SweepLedger`: when the workers of a task queue looked last for runs that are lost.

Many workers of a task queue ask for the next sweep, and one of them gets it. All times are the
database's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

from .statements import LedgerCalls

BUSY_SECONDS: Final = 15.0
"""How long a sweep is held for the worker that began it, unless that says it is still at it. If the
worker dies, no other one sweeps meanwhile."""


@dataclass(frozen=True)
class Sweep:
    """One look for runs that are lost, by a worker of a task queue."""

    namespace: str
    """Of Temporal."""
    task_queue: str
    """Whose workers take turns."""
    began_at: datetime
    """When it began."""


class SweepLedger(LedgerCalls):
    """The sweeps, over an open psycopg pool (see `ledger_pool`)."""

    async def take(self, *, namespace: str, task_queue: str, every: timedelta) -> Sweep | None:
        """Begin the next sweep of a task queue, if it is due and no other worker is at it.

        Safe to repeat. Where none is due, which is most of the time, it only reads one row.

        Args:
            namespace: Of Temporal.
            task_queue: Of the worker.
            every: The time from the beginning of one sweep to the next.
        """
        at = {"namespace": namespace, "task_queue": task_queue}
        row = await self._fetch_row("take_sweep", **at, every=every, busy_for=_busy(BUSY_SECONDS))
        if row is None:
            return None
        return Sweep(namespace, task_queue, cast("datetime", row["began_at"]))

    async def keep(self, sweep: Sweep, *, seconds: float = BUSY_SECONDS) -> None:
        """Hold a sweep for so long from now; with 0 it is over. Safe to repeat."""
        at = {"namespace": sweep.namespace, "task_queue": sweep.task_queue}
        await self._execute("keep_sweep", **at, began_at=sweep.began_at, busy_for=_busy(seconds))

    async def last(self, *, namespace: str, task_queue: str) -> Sweep | None:
        """Return the last sweep of a task queue; None if there was none. It only reads."""
        row = await self._fetch_row("get_sweep", namespace=namespace, task_queue=task_queue)
        if row is None:
            return None
        return Sweep(namespace, task_queue, cast("datetime", row["began_at"]))


def _busy(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
