"""A transaction of the ledger: it names its isolation level, and waits for a lock only briefly.

An application's transaction that has called `intend` holds locks until it ends, which may take as
long as the application likes. Who waits for such a lock has a connection of the pool in hand. So a
wait is short (``commitline_wait_briefly``): then a claim is *busy*, and every other call gives its
connection back and tries again. A single statement that may wait for such a lock does the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psycopg

from .pool import Connection
from .sql import QUERIES


@asynccontextmanager
async def transaction(connection: Connection) -> AsyncIterator[None]:
    """Open a transaction; commit it, or roll it back where the body raises.

    Not `psycopg.AsyncConnection.transaction`, which would take another round trip for the limit.
    """
    await connection.execute(QUERIES["begin"], prepare=False)  # two commands
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):  # a connection that is lost has no transaction any more
            await connection.rollback()
        raise
    await connection.commit()
