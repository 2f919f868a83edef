"""The ledger's connections: a psycopg pool, set up so that nothing depends on a session.

Connections are in autocommit (a statement is its own transaction unless a method opens one) and
keep no session state, so a transaction-mode pooler may stand between. ``json`` is read as the text
that it is.

Statements are prepared where nothing stands between: a prepared statement belongs to a session, and
a pooler gives every transaction another one. A pooler is known by its process id: Postgres tells
each client the one of its session, for cancel requests, and a pooler tells one of its own. Behind a
pooler they are prepared only if a setting says so and the pooler keeps them, which is tested.

A transaction says its isolation level itself (see `transaction`). The default of the database or
of the role counts for single statements alone, and those need no level: where a row has changed
since, a higher one raises a serialization failure, and the statement is repeated.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import AsyncConnection, AsyncCursor, IsolationLevel
from psycopg.rows import DictRow, TupleRow, dict_row, scalar_row
from psycopg.sql import SQL, Identifier
from psycopg.types.string import TextBinaryLoader, TextLoader
from psycopg_pool import AsyncConnectionPool

from ..database_url import check_database_url
from ..errors import LedgerUnavailable, SchemaMismatch
from .sql import QUERIES

_CONNECT_TIMEOUT: Final = {"connect_timeout": 5}
"""Seconds. The driver's own two minutes keep the pool from trying another server meanwhile."""

_CLIENT_ENCODING: Final = "utf8"
"""Whatever a role, a database or the environment says: texts are of every language."""

PREPARE_AFTER: Final = 5
"""Executions of a statement in one session, after which it is prepared; psycopg's default."""

_HOW_TO_HAVE_UTF8: Final = (
    "Make one in UTF-8 (`create database … encoding 'UTF8' template template0`), and name it in "
    "COMMITLINE_DATABASE_URL."
)


class Connection(AsyncConnection[DictRow]):
    """A connection that keeps the cursors of what it executes often.

    A cursor that executes the same text again knows how to write its values; a new one finds that
    out anew, which is a seventh of a statement's processor time.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._kept: dict[str, AsyncCursor[DictRow]] = {}

    def kept_cursor(self, name: str) -> AsyncCursor[DictRow]:
        """Return the cursor of a named query that has small results: it holds on to the last."""
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = self.cursor(binary=True)
        return found


Pool: TypeAlias = AsyncConnectionPool[Connection]


def ledger_pool(
    database_url: str, *, size: int = 10, prepared_statements: bool | None = None
) -> Pool:
    """Make a pool for `ActionLedger`; open it with ``async with`` before use.

    Args:
        database_url: A URL or libpq connection string.
        size: Connections at most. One is held per statement, so a few serve many runs.
        prepared_statements: Whether statements are prepared; by default on each connection that
            goes straight to Postgres. ``True``: behind a pooler that keeps them, too.

    Raises:
        ConfigurationError: The address cannot be read.
    """
    timeouts = {} if "connect_timeout" in check_database_url(database_url) else _CONNECT_TIMEOUT
    return AsyncConnectionPool(
        database_url,
        connection_class=Connection,
        min_size=1,
        max_size=size,
        open=False,
        name="commitline",
        configure=partial(_configure, prepared=prepared_statements),
        # After a failure the pool waits twice as long each time, up to this time. Then it gives
        # up, and the next caller makes it try again: so it finds the end of an outage soon.
        reconnect_timeout=1.0,
        kwargs={
            **timeouts,
            "client_encoding": _CLIENT_ENCODING,
            "autocommit": True,
            "row_factory": dict_row,
            "prepare_threshold": None,  # until `_configure` has looked
            "application_name": "commitline",
        },
    )


async def _configure(connection: Connection, *, prepared: bool | None) -> None:
    connection.adapters.register_loader("json", TextLoader)
    connection.adapters.register_loader("json", TextBinaryLoader)
    # Behind a pooler the session may be one that listens for somebody else. psycopg would keep what
    # it hears for a reader that never comes.
    connection.add_notify_handler(lambda _: None)
    if prepared is False:
        return
    if await _is_direct(connection) or (prepared and await _keeps_statements(connection)):
        connection.prepare_threshold = PREPARE_AFTER


async def _keeps_statements(connection: Connection) -> bool:
    """Whether a pooler keeps prepared statements: then it gives them names of its own.

    Bug prevented: two clients have one name for two statements, and a session carries out the
    other one.
    """
    connection.prepare_threshold = 0
    try:
        async with connection.transaction():  # one session, for as long as that takes
            cursor = connection.cursor(row_factory=scalar_row)
            await cursor.execute(QUERIES["names_of_psycopg"], prepare=True)
            names: list[str] = await cursor.fetchall()
            for name in names:
                drop = SQL("deallocate {}").format(Identifier(name))
                await cursor.execute(drop, prepare=False)
        return not names
    except psycopg.errors.DuplicatePreparedStatement:  # another client's
        return False
    finally:
        connection.prepare_threshold = None


async def _is_direct(connection: Connection) -> bool:
    """Whether the session is the one that was connected to, and not one of a pooler's."""
    cursor = connection.cursor(row_factory=scalar_row)
    await cursor.execute("select pg_backend_pid()")
    return await cursor.fetchone() == connection.info.backend_pid


async def connect_once(database_url: str) -> AsyncConnection[TupleRow]:
    """Connect without a pool, for what is done once: to migrate, or to look at the server.

    Raises:
        LedgerUnavailable: The database cannot be reached.
        SchemaMismatch: The database is not in UTF-8.
        ConfigurationError: The URL cannot be used.
    """
    check_database_url(database_url)
    try:
        connection = await AsyncConnection.connect(
            database_url, connect_timeout=10, client_encoding=_CLIENT_ENCODING
        )
    except psycopg.OperationalError as err:
        raise LedgerUnavailable(f"no database: {err}") from err
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", None):  # None: a pooler has not passed it on
        await connection.close()
        raise SchemaMismatch(
            f"the database is in {encoding}, which does not hold every text; nothing was changed",
            remedy=_HOW_TO_HAVE_UTF8,
        )
    # Whatever the database's default is: who has waited for the lock of the migrations must see
    # what was applied meanwhile.
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
    return connection
