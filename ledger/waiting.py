"""`WaitingLedger`: how much waits, and since when; and how the pool is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Self

from ..identity import RunKey
from .statements import LedgerCalls

MOST_COUNTED: Final = 100
"""Of each kind; the query stops there."""


@dataclass(frozen=True)
class Waiting:
    """What waits of one kind."""

    kind: str
    """``unknown``: actions that a person has to settle. ``approval``, ``question``: of runs that
    act on the answer. ``relay``: actions that are due, and that no relay has taken."""
    number: int
    """At most `MOST_COUNTED`: what is beyond that is not counted."""
    oldest_seconds: float
    """0 where none waits."""


@dataclass(frozen=True)
class RunWaits:
    """What of one run waits for a person, of one kind."""

    run_key: RunKey
    """Of the run, or the sub-agent's run, whose own call it is."""
    kind: Literal["unknown", "approval", "question"]
    """As `Waiting.kind`."""
    number: int
    since: datetime
    """Since when the oldest waits."""


@dataclass(frozen=True)
class PoolUse:
    """The pool at this moment."""

    used: int
    """Connections that a ledger call has in hand."""
    idle: int
    limit: int
    """Connections at most."""
    waiting: int
    """Ledger calls that wait for a connection."""


class WaitingLedger(LedgerCalls):
    """What waits, over an open psycopg pool (see `ledger_pool`)."""

    @classmethod
    def beside(cls, ledger: LedgerCalls) -> Self:
        """Return it over the pool of another part of the ledger."""
        return cls(ledger._pool, statement_seconds=ledger._seconds)

    async def look(self) -> Sequence[Waiting]:
        """Return each kind; it only reads, by indexes.

        Raises:
            LedgerUnavailable: No answer within the deadline.
        """
        rows = await self._fetch_rows("count_waiting")
        return [Waiting(row["kind"], row["number"], float(row["oldest_seconds"])) for row in rows]

    async def of_runs(self, run_keys: Sequence[RunKey]) -> Sequence[RunWaits]:
        """Return what of these runs waits for a person; it only reads.

        Raises:
            LedgerUnavailable: No answer within the deadline.
        """
        return await self._fetch_all(RunWaits, "waiting_of_runs", run_keys=list(run_keys))

    def pool_use(self) -> PoolUse:
        """Return how the pool is used; it asks nobody."""
        found = self._pool.get_stats()
        size, idle = found.get("pool_size", 0), found.get("pool_available", 0)
        limit, waiting = found.get("pool_max", 0), found.get("requests_waiting", 0)
        return PoolUse(max(size - idle, 0), idle, limit, waiting)
