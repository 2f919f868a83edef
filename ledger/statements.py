"""One bounded ledger call: a connection for its statements, repeated over transient failures.

A call takes a connection and gives it back before it returns, so none is held while a tool or
a model works. It opens its own transaction, or is a single statement in autocommit. What meets
a transient failure (a cut connection, a deadlock, a restart) is repeated until the deadline, so
every call must be safe to repeat. What Postgres can never take is `Unstorable` at once, and every
other error that it answers with is `StatementRefused`: no error of the driver leaves a call.

Results come in Postgres's binary format. How values are written as text depends on settings of the
database and the role (DateStyle, …), and psycopg cannot read each form.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.rows import AsyncRowFactory

from ..errors import LedgerUnavailable, StatementRefused, Unstorable
from ..metrics import LEDGER_CALL_DURATION, LEDGER_OUTAGES, count, is_reporting, observe
from .deadline import within
from .pool import Connection, Pool
from .row_factory import record_row
from .sql import QUERIES

__all__ = [
    "Connection",
    "LedgerCalls",
    "Row",
    "execute",
    "fetch",
    "fetch_all",
    "fetch_each",
    "fetch_list",
    "fetch_one",
    "fetch_row",
    "fetch_rows",
]

T = TypeVar("T")
Row: TypeAlias = Mapping[str, Any]

_BACK_OFF_SECONDS: Final = 0.05
"""Between tries of one ledger call after a transient failure."""
_LONGEST_BACK_OFF_SECONDS: Final = 2.0
"""The same where another transaction holds a lock, which may take long: it doubles up to this."""

_TRANSIENT: Final = (
    psycopg.OperationalError,  # cut, refused, restarted, pool exhausted, 40001, 40P01, 57P01
    psycopg.InterfaceError,  # the connection was closed under us
    pg.ReadOnlySqlTransaction,  # a demoted primary
)

_STALE: Final = (
    pg.FeatureNotSupported,  # "cached plan must not change result type": a migration in between
    pg.InvalidSqlStatementName,  # another session: a pooler of which nobody knew
    pg.DuplicatePreparedStatement,
)
"""What a prepared statement may meet, before it has done anything. A connection that has met it
prepares none from then on. A new one would not do: all that a pool holds are as stale, and a pooler
gives a new client the same statement again."""

_PERMANENT: Final = (
    psycopg.DataError,  # a NUL in a text, a date that Python does not have
    pg.ProgramLimitExceeded,  # too large; it is an OperationalError, too
    UnicodeEncodeError,  # a lone surrogate
)
"""The same values meet these every time: an activity that tried again would never end."""


class LedgerCalls:
    """The calls over an open psycopg pool (see `ledger_pool`).

    Args:
        pool: Opened and closed by the caller.
        statement_seconds: The deadline of one ledger call, waiting for a connection included.
    """

    def __init__(self, pool: Pool, *, statement_seconds: float = 10.0) -> None:
        self._pool = pool
        self._seconds = statement_seconds

    async def _call(
        self, work: Callable[[Connection], Awaitable[T]], *, query: str | None = None
    ) -> T:
        """Run one ledger call, repeated over transient failures until its deadline.

        Args:
            work: What is done with the connection.
            query: The named query that is all of it; without one it is measured by its method.
        """
        if not is_reporting():
            return await self._persist(work)
        began, outcome = time.perf_counter(), "error"
        try:
            answer = await self._persist(work)
            outcome = "answered"
            return answer
        except LedgerUnavailable:
            count(LEDGER_OUTAGES)
            outcome = "unavailable"
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            seconds = time.perf_counter() - began
            observe(LEDGER_CALL_DURATION, seconds, query or _method_of(work), outcome)

    async def _persist(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        last: Exception | None = None
        reached = False

        async def persist() -> T:
            nonlocal last, reached
            pause = _BACK_OFF_SECONDS
            while True:
                try:
                    connection = await self._pool.getconn()
                    reached = True
                    try:
                        return await _work_on(connection, work)
                    finally:
                        await self._pool.putconn(connection)
                except _PERMANENT as err:
                    raise Unstorable(f"Postgres cannot hold a value: {err}") from err
                except _TRANSIENT as err:
                    last = err
                    await asyncio.sleep(pause)
                    if isinstance(err, pg.LockNotAvailable):  # others need the connection, too
                        pause = min(2 * pause, _LONGEST_BACK_OFF_SECONDS)
                except psycopg.Error as err:
                    # Without the details, which quote the row.
                    why = err.diag.message_primary or str(err)
                    name = f"{type(err).__name__} {err.sqlstate or ''}".strip()
                    raise StatementRefused(f"Postgres refuses a statement: {name}: {why}") from err

        try:
            return await within(self._seconds, persist())
        except TimeoutError as err:
            why = f"the ledger did not answer within {self._seconds:g} s{_reason(last)}"
            raise LedgerUnavailable(why, reached=reached) from (last or err)

    async def _fetch(self, record: type[T], query: str, **parameters: Any) -> T | None:
        return await self._call(
            lambda connection: fetch(connection, record, query, **parameters), query=query
        )

    async def _fetch_one(self, record: type[T], query: str, **parameters: Any) -> T:
        return await self._call(
            lambda connection: fetch_one(connection, record, query, **parameters), query=query
        )

    async def _fetch_all(self, record: type[T], query: str, **parameters: Any) -> Sequence[T]:
        return await self._call(
            lambda connection: fetch_all(connection, record, query, **parameters), query=query
        )

    async def _fetch_list(self, record: type[T], query: str, **parameters: Any) -> Sequence[T]:
        return await self._call(
            lambda connection: fetch_list(connection, record, query, **parameters), query=query
        )

    async def _fetch_row(self, query: str, **parameters: Any) -> Row | None:
        return await self._call(
            lambda connection: fetch_row(connection, query, **parameters), query=query
        )

    async def _fetch_rows(self, query: str, **parameters: Any) -> Sequence[Row]:
        return await self._call(
            lambda connection: fetch_rows(connection, query, **parameters), query=query
        )

    async def _execute(self, query: str, **parameters: Any) -> bool:
        return await self._call(
            lambda connection: execute(connection, query, **parameters), query=query
        )


def _method_of(work: Callable[[Connection], Awaitable[Any]]) -> str:
    """Return the method that made a call's work: ``ActionLedger.claim``."""
    return getattr(work, "__qualname__", "").partition(".<locals>")[0] or type(work).__name__


def _reason(last: Exception | None) -> str:
    if isinstance(last, pg.LockNotAvailable):
        return ": another transaction holds a lock that it needs"
    return f": {last}" if last else ""


async def _work_on(connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Do the work of a call; what a connection has become unfit for is not asked of it again."""
    try:
        return await work(connection)
    except pg.ReadOnlySqlTransaction:
        await connection.close()  # one to a demoted primary stays read-only
        raise
    except _STALE:
        if connection.prepare_threshold is None:
            raise
        connection.prepare_threshold = None
        return await work(connection)


async def execute(connection: Connection, query: str, **parameters: Any) -> bool:
    """Execute a named query; return whether it changed or found a row."""
    cursor = await connection.kept_cursor(query).execute(QUERIES[query], parameters)
    return cursor.rowcount > 0


async def fetch(connection: Connection, record: type[T], query: str, **parameters: Any) -> T | None:
    """Execute a named query and return its first row as a record, if it has one."""
    cursor = connection.cursor(row_factory=record_row(record), binary=True)
    await cursor.execute(QUERIES[query], parameters)
    return await cursor.fetchone()


async def fetch_one(connection: Connection, record: type[T], query: str, **parameters: Any) -> T:
    """The same of a query that always has a row."""
    found = await fetch(connection, record, query, **parameters)
    assert found is not None, f"{query} returns a row"
    return found


async def fetch_all(
    connection: Connection, record: type[T], query: str, **parameters: Any
) -> Sequence[T]:
    """Execute a named query and return its rows as records."""
    cursor = connection.cursor(row_factory=record_row(record), binary=True)
    await cursor.execute(QUERIES[query], parameters)
    return await cursor.fetchall()


async def fetch_list(
    connection: Connection, record: type[T], query: str, **parameters: Any
) -> Sequence[T]:
    """The same of a list, whose conditions may be left out; never prepared.

    Postgres may plan a prepared statement once for all values. Such a plan of a list goes through
    all of its rows, also where a run is named.
    """
    cursor = connection.cursor(row_factory=record_row(record), binary=True)
    await cursor.execute(QUERIES[query], parameters, prepare=False)
    return await cursor.fetchall()


async def fetch_row(connection: Connection, query: str, **parameters: Any) -> Row | None:
    """Execute a named query whose rows are no record; return the first one, if there is one."""
    cursor = await connection.execute(QUERIES[query], parameters, binary=True)
    return await cursor.fetchone()


async def fetch_rows(connection: Connection, query: str, **parameters: Any) -> Sequence[Row]:
    """Execute a named query whose rows are no record; return them all."""
    cursor = await connection.execute(QUERIES[query], parameters, binary=True)
    return await cursor.fetchall()


async def fetch_each(
    connection: Connection, *queries: tuple[AsyncRowFactory[Any], str, Mapping[str, Any]]
) -> Sequence[Sequence[Any]]:
    """Execute named queries that do not depend on each other; one round trip for all of them.

    They are one transaction, and each sees what was committed when it began, in their order.
    Each query names its row factory: `record_row` of a class, or psycopg's ``dict_row``.
    """
    cursors = []
    # A pipeline of one would cost the worker as much again.
    async with connection.pipeline() if len(queries) > 1 else nullcontext():
        for factory, name, given in queries:
            cursor = connection.cursor(row_factory=factory, binary=True)
            cursors.append(await cursor.execute(QUERIES[name], given))
        return [await cursor.fetchall() for cursor in cursors]
