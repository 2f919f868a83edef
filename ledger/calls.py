"""One bounded ledger call: a connection for its statements, repeated over transient failures.

A call takes a connection and gives it back before it returns, so none is held while a tool or
a model works. It opens its own transaction, or is a single statement in autocommit. What meets
a transient failure (a cut connection, a deadlock, a restart) is repeated until the deadline, so
every call must be safe to repeat. What Postgres can never take is `Unstorable` at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors as pg

from ..errors import LedgerUnavailable, Unstorable
from .deadline import within
from .pool import Connection, Pool
from .sql import QUERIES

__all__ = ["Connection", "LedgerCalls", "Row", "execute", "fetch", "fetch_all", "fetch_each"]

T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]

_BACK_OFF_SECONDS: Final = 0.05
"""Between tries of one ledger call after a transient failure."""

_TRANSIENT: Final = (
    psycopg.OperationalError,  # cut, refused, restarted, pool exhausted, 40001, 40P01, 57P01
    psycopg.InterfaceError,  # the connection was closed under us
    pg.ReadOnlySqlTransaction,  # a demoted primary
)

_FOR_EVER: Final = (
    psycopg.DataError,  # a NUL in a text, a date that Python does not have
    pg.ProgramLimitExceeded,  # too large; it is an OperationalError, too
    UnicodeEncodeError,  # a lone surrogate
)
"""What the same values meet every time: an activity that tried again would never end."""


class LedgerCalls:
    """The calls over an open psycopg pool (see `ledger_pool`).

    Args:
        pool: Opened and closed by the caller.
        statement_seconds: The deadline of one ledger call, waiting for a connection included.
    """

    def __init__(self, pool: Pool, *, statement_seconds: float = 10.0) -> None:
        self._pool = pool
        self._seconds = statement_seconds

    async def _call(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run one ledger call, repeated over transient failures until its deadline."""
        last: Exception | None = None
        reached = False

        async def persist() -> T:
            nonlocal last, reached
            while True:
                try:
                    async with self._pool.connection() as connection:
                        reached = True
                        try:
                            return await work(connection)
                        except pg.ReadOnlySqlTransaction:
                            # A connection to a demoted primary stays read-only: drop it.
                            await connection.close()
                            raise
                except _FOR_EVER as err:
                    raise Unstorable(f"Postgres cannot hold a value: {err}") from err
                except _TRANSIENT as err:
                    last = err
                    await asyncio.sleep(_BACK_OFF_SECONDS)

        try:
            return await within(self._seconds, persist())
        except TimeoutError as err:
            reason = f": {last}" if last else ""
            raise LedgerUnavailable(
                f"the ledger did not answer within {self._seconds:g} s{reason}", reached=reached
            ) from (last or err)

    async def _maybe(self, query: str, **parameters: Any) -> Row | None:
        return await self._call(lambda connection: fetch(connection, query, **parameters))

    async def _one(self, query: str, **parameters: Any) -> Row:
        row = await self._maybe(query, **parameters)
        assert row is not None, f"{query} returns a row"
        return row

    async def _all(self, query: str, **parameters: Any) -> Sequence[Row]:
        return await self._call(lambda connection: fetch_all(connection, query, **parameters))


async def execute(connection: Connection, query: str, **parameters: Any) -> None:
    """Execute a named query that returns no rows."""
    await connection.execute(QUERIES[query], parameters)


async def fetch(connection: Connection, query: str, **parameters: Any) -> Row | None:
    """Execute a named query and return its first row, if it has one."""
    cursor = await connection.execute(QUERIES[query], parameters)
    return await cursor.fetchone()


async def fetch_all(connection: Connection, query: str, **parameters: Any) -> Sequence[Row]:
    """Execute a named query and return its rows."""
    cursor = await connection.execute(QUERIES[query], parameters)
    return await cursor.fetchall()


async def fetch_each(
    connection: Connection, *queries: tuple[str, Mapping[str, Any]]
) -> Sequence[Sequence[Row]]:
    """Execute named queries that do not depend on each other; one round trip for all of them.

    They are one transaction, and each sees what was committed when it began, in their order.
    """
    async with connection.pipeline():
        cursors = [await connection.execute(QUERIES[name], given) for name, given in queries]
        return [await cursor.fetchall() for cursor in cursors]
