"""The outbox: `intend` commits an action together with the application's own rows.

    with psycopg.connect(url) as conn:
        conn.execute("insert into orders …")
        intend(conn, charge_card, {"order_id": "4821", "amount_cents": 4900})
    # Committed: order and intent. Rolled back: neither. The relay carries it out after the commit.

It is one statement in the caller's transaction, the same for every driver, and nothing is sent
before that commits. The commit itself notifies the relay (``notify``). A refusal is found before
anything is written, or is the statement's answer: the caller's transaction goes on, and the
caller decides whether to commit it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import Any, Final, LiteralString, NoReturn, Protocol, overload

import psycopg
from psycopg.rows import tuple_row

from ..errors import NoTransaction, SchemaMismatch
from ..identity import ActionKey
from .outbox_rules import IntendedTool, Intent
from .sql import QUERIES

_STATEMENT: Final[LiteralString] = QUERIES["intend"]
_NO_SUCH_FUNCTION: Final = "42883"


class AsyncConnectionLike(Protocol):
    """psycopg's ``AsyncConnection``, SQLAlchemy's ``AsyncConnection`` or ``AsyncSession``."""

    @property
    def execute(self) -> Callable[..., Coroutine[Any, Any, Any]]:
        """Execute a statement."""
        ...


class _Answer(Protocol):
    def fetchone(self) -> Any: ...


class ConnectionLike(Protocol):
    """psycopg's ``Connection``, SQLAlchemy's ``Connection`` or ``Session``."""

    @property
    def execute(self) -> Callable[..., _Answer]:
        """Execute a statement."""
        ...


@overload
def intend(
    conn: AsyncConnectionLike,
    tool: IntendedTool,
    args: Mapping[str, Any],
    *,
    idempotency_key: str | None = None,
    order_key: str | None = None,
) -> Coroutine[Any, Any, ActionKey]: ...


@overload
def intend(
    conn: ConnectionLike,
    tool: IntendedTool,
    args: Mapping[str, Any],
    *,
    idempotency_key: str | None = None,
    order_key: str | None = None,
) -> ActionKey: ...


def intend(
    conn: Any,
    tool: IntendedTool,
    args: Mapping[str, Any],
    *,
    idempotency_key: str | None = None,
    order_key: str | None = None,
) -> ActionKey | Coroutine[Any, Any, ActionKey]:
    """Have a tool called once the caller's transaction has committed; never if it does not.

    Safe to repeat where the call has a key from the domain, its tool's or ``idempotency_key``:
    the key makes it one action, from however many callers. Without one each call is a new action.

    The key is locked until the transaction ends: other calls for the same business fact wait for
    it. So is ``order_key``.

    Args:
        conn: The caller's, in a transaction: psycopg's ``Connection`` or ``AsyncConnection``,
            SQLAlchemy's ``Connection``, ``Session``, ``AsyncConnection`` or ``AsyncSession``.
            With an async one the result is to be awaited.
        tool: The tool; not a READ, and not one that a person approves.
        args: Its arguments, as JSON has them. Validated, and their defaults fixed, now.
        idempotency_key: A key from the domain, as it is (no template): it wins over the tool's.
        order_key: Calls that share it are carried out one after another, in the order of their
            commits. The second waits here until the first one's transaction has ended.

    Returns:
        The action's key, for `ActionLedger.outcome`. If an equal action has the business fact
        already, from a run or from an outbox, the key is that one's.

    Raises:
        InvalidArguments: They do not fit the tool. As below: nothing is written, and the
            transaction is as it was.
        InvalidIdempotencyKey: The key cannot be one.
        IdempotencyKeyConflict: The key stands for another tool or other arguments; that action
            stands. Roll back, unless the other rows are true without this one.
        IntentRefused: The tool only reads, or a person has to approve it.
        NoTransaction: The connection is in autocommit outside a transaction, or it is none.
        SchemaMismatch: The database has no outbox yet. The transaction is aborted.
    """
    intent = Intent(tool, args, idempotency_key, order_key)
    if isinstance(conn, psycopg.AsyncConnection):
        return _by_async_psycopg(conn, intent)
    if isinstance(conn, psycopg.Connection):
        return _by_psycopg(conn, intent)
    origins = {kind.__module__ for kind in type(conn).__mro__ if hasattr(kind, "execute")}
    if any(name.startswith("sqlalchemy.ext.asyncio") for name in origins):
        return _by_async_sqlalchemy(conn, intent)
    if any(name.startswith("sqlalchemy.") for name in origins):
        return _by_sqlalchemy(conn, intent)
    raise NoTransaction(f"{type(conn).__module__}.{type(conn).__qualname__} is no connection")


# --- psycopg ------------------------------------------------------------------------------
# A cursor of our own: the connection's own may read rows, or bind parameters, in another way.


def _by_psycopg(conn: psycopg.Connection[Any], intent: Intent) -> ActionKey:
    _check_psycopg(conn)
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        try:
            cursor.execute(_STATEMENT, {"request": intent.text}, prepare=False)
        except psycopg.Error as err:
            _raise_database_error(err)
        return intent.key_of(cursor.fetchone())


async def _by_async_psycopg(conn: psycopg.AsyncConnection[Any], intent: Intent) -> ActionKey:
    _check_psycopg(conn)
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
        try:
            await cursor.execute(_STATEMENT, {"request": intent.text}, prepare=False)
        except psycopg.Error as err:
            _raise_database_error(err)
        return intent.key_of(await cursor.fetchone())


def _check_psycopg(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    idle = conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if conn.autocommit and idle:
        raise NoTransaction("the connection is in autocommit, and no transaction is open on it")


# --- SQLAlchemy ---------------------------------------------------------------------------
# With any driver. It is imported only where one of its connections is given.


def _by_sqlalchemy(conn: Any, intent: Intent) -> ActionKey:
    if _is_session(conn):
        conn = conn.connection()
    _check_sqlalchemy(conn)
    try:
        return intent.key_of(conn.execute(*_sqlalchemy(intent)).one())
    except _dbapi_error() as err:
        _raise_database_error(err)


async def _by_async_sqlalchemy(conn: Any, intent: Intent) -> ActionKey:
    if _is_session(conn):
        conn = await conn.connection()
    _check_sqlalchemy(conn.sync_connection)
    try:
        answer = await conn.execute(*_sqlalchemy(intent))
        return intent.key_of(answer.one())
    except _dbapi_error() as err:
        _raise_database_error(err)


def _is_session(conn: Any) -> bool:
    return hasattr(type(conn), "flush")


def _sqlalchemy(intent: Intent) -> tuple[Any, dict[str, str]]:
    text = import_module("sqlalchemy").text
    return text(_STATEMENT.replace("%(request)s", ":request")), {"request": intent.text}


def _dbapi_error() -> type[Exception]:
    error: type[Exception] = import_module("sqlalchemy.exc").DBAPIError
    return error


def _check_sqlalchemy(conn: Any) -> None:
    if conn is None:
        raise NoTransaction("the connection has not been started")
    if getattr(conn.connection.dbapi_connection, "autocommit", False) is True:
        raise NoTransaction("the connection is in autocommit: its isolation level is AUTOCOMMIT")


def _raise_database_error(error: Exception) -> NoReturn:
    """Raise the database's error, or ours where the database is older than this code."""
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state == _NO_SUCH_FUNCTION:
        raise SchemaMismatch("the database has no commitline_intend") from error
    raise error
