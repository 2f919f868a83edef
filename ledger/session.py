"""What a session of the ledger's role is like, for `commitline doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg.rows import dict_row

from .pool import connect_once
from .sql import QUERIES


@dataclass(frozen=True)
class Session:
    """What a new session finds."""

    version: str
    """Of Postgres."""
    standby: bool
    """The server follows another one, and takes no writes."""
    read_only: bool
    """Transactions of this role take no writes, unless they say otherwise."""
    timeouts: Mapping[str, int]
    """What ends a statement or a transaction, in milliseconds; 0 is nothing."""
    free: int
    """Connections that the server has left for ordinary roles."""
    clock: float
    """The server's, in seconds since 1970."""


async def ledger_session(database_url: str) -> Session:
    """Return what a session of this role is like. It only reads.

    Raises:
        LedgerUnavailable: The database cannot be reached.
        SchemaMismatch: It is not in UTF-8.
    """
    async with await connect_once(database_url) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(QUERIES["session"])
        row = await cursor.fetchone()
    assert row is not None, "it is one row"
    return Session(**row)
