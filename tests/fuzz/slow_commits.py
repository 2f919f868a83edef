"""`slow_commits`: connections whose transactions pause before they commit, as over a slow network.

What a transaction has locked stays locked meanwhile, and what it has written is not seen yet: who
reads without a lock passes by it.
"""

from __future__ import annotations

from random import Random
from typing import Final

from psycopg.pq import TransactionStatus

from commitline.ledger.pool import Connection
from commitline.tests.fuzz.pace import Pace

_SLOW: Final = 0.6
_LONGEST: Final = 60
"""Ledger calls, of all."""


def slow_commits(pace: Pace, chance: Random) -> type[Connection]:
    """Return a class of connections, a few of whose commits are slow."""

    class SlowlyCommitting(Connection):
        async def commit(self) -> None:
            in_transaction = self.info.transaction_status == TransactionStatus.INTRANS
            if in_transaction and chance.random() < _SLOW:
                await pace.rest(chance.random() * _LONGEST)
            await super().commit()

    return SlowlyCommitting
