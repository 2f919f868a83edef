"""The outbox: `intend` commits an action together with the application's own rows.

    with psycopg.connect(url) as conn:
        conn.execute("insert into orders …")
        intend(conn, charge_card, {"order_id": "4821", "amount_cents": 4900})
    # Committed: order and intent. Rolled back: neither. The relay carries it out after the commit.

It is one statement in the caller's transaction, the same for every driver, and nothing is sent
before that commits. The relay is told by the commit itself (``notify``). A refusal is found out
before anything is written, or answered as a value: the caller's transaction goes on, and it is
the caller who decides what becomes of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final, LiteralString, NoReturn, Protocol, overload

import psycopg
from psycopg.rows import tuple_row

from ..canonical import Json, digest, dumps, scrub
from ..errors import (
    CommitlineError,
    IdempotencyKeyConflict,
    IntentRefused,
    InvalidArguments,
    InvalidIdempotencyKey,
    NoTransaction,
    SchemaMismatch,
)
from ..idempotency_key import MAX_IDEMPOTENCY_KEY, check_idempotency_key, default_idempotency_key
from ..identity import OUTBOX, OUTBOX_POSITION, ActionKey, RunKey, action_key
from .codec import error_text
from .records import NEVER_SENT, Effect
from .sql import QUERIES

_STATEMENT: Final[LiteralString] = QUERIES["intend"]
_NO_SUCH_FUNCTION: Final = "42883"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class IntendedTool(Protocol):
    """What of a tool it takes to intend a call: `commitline.Tool` has it."""

    @property
    def name(self) -> str:
        """Of the tool; a worker has to serve it."""
        ...

    @property
    def effect(self) -> Effect:
        """What repeating a call would do."""
        ...

    @property
    def key_ttl(self) -> timedelta | None:
        """How long the downstream system remembers a key."""
        ...

    @property
    def gated(self) -> bool:
        """Whether a person may have to approve a call."""
        ...

    @property
    def state(self) -> object:
        """The type of the state that it takes; None is none."""
        ...

    @property
    def compensate(self) -> _Named | None:
        """The tool that undoes a call."""
        ...

    def effective(self, requested: Json) -> str:
        """Return the arguments, validated, their defaults fixed, as JSON text."""
        ...

    def sameness(self, effective: str) -> str:
        """Return the digest of what makes two calls the same business fact."""
        ...

    def domain_key(self, effective: str) -> str | None:
        """Return the key from the domain, if the tool declares one."""
        ...

    def undoes_key(self, effective: str) -> str | None:
        """Return the domain key of the action that the call undoes, if it undoes one."""
        ...


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
    the key makes it one action, whoever asks for it. Without one each call is a new action.

    The key is locked until the transaction ends: others who ask for the same business fact wait
    for it. So is ``order_key``.

    Args:
        conn: The caller's, in a transaction: psycopg's ``Connection`` or ``AsyncConnection``,
            SQLAlchemy's ``Connection``, ``Session``, ``AsyncConnection`` or ``AsyncSession``.
            With an async one the result is to be awaited.
        tool: The tool; no READ, and none that a person approves.
        args: Its arguments, as JSON has them. Validated, and their defaults fixed, now.
        idempotency_key: A key from the domain, as it is (no template): it wins over the tool's.
        order_key: Those that share it are carried out one after another, in the order of their
            commits. The second waits here until the first one's transaction has ended.

    Returns:
        The action's key, for `ActionLedger.outcome`. Of an equal action that has the business
        fact already, from wherever, it is that one's.

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
    request = _Request(tool, args, idempotency_key, order_key)
    if isinstance(conn, psycopg.AsyncConnection):
        return _by_async_psycopg(conn, request)
    if isinstance(conn, psycopg.Connection):
        return _by_psycopg(conn, request)
    origins = {kind.__module__ for kind in type(conn).__mro__ if hasattr(kind, "execute")}
    if any(name.startswith("sqlalchemy.ext.asyncio") for name in origins):
        return _by_async_sqlalchemy(conn, request)
    if any(name.startswith("sqlalchemy.") for name in origins):
        return _by_sqlalchemy(conn, request)
    raise NoTransaction(f"{type(conn).__module__}.{type(conn).__qualname__} is no connection")


MAX_ARGUMENTS: Final = 1_000_000
"""Characters of a call's arguments: they travel through Temporal, which takes 2 MiB."""


class _Request:
    """A call that is to be intended, checked; and what the database's answer means."""

    def __init__(
        self,
        tool: IntendedTool,
        args: Mapping[str, Any],
        idempotency_key: str | None,
        order_key: str | None,
    ) -> None:
        if tool.effect is Effect.READ:
            raise IntentRefused(f"the tool {tool.name!r} is a READ: there is nothing to intend")
        if tool.gated:
            raise IntentRefused(f"the tool {tool.name!r} is approved by a person, in a run")
        if tool.state is not None:
            raise IntentRefused(f"the tool {tool.name!r} takes a state, which only a run has")
        self._tool = tool.name
        try:
            self._args = tool.effective(dict(args))
            given = None if idempotency_key is None else check_idempotency_key(idempotency_key)
            self._domain_key = given or tool.domain_key(self._args)
            undoes = tool.undoes_key(self._args)
            sameness = tool.sameness(self._args)
        except CommitlineError:
            raise
        except Exception as err:  # a validator of the application may raise anything
            raise InvalidArguments(f"{tool.name}: {error_text(err)[:500]}") from err
        if len(self._args) > MAX_ARGUMENTS:
            raise InvalidArguments(
                f"{tool.name}: {len(self._args)} characters of arguments are over {MAX_ARGUMENTS}"
            )
        number = str(uuid.uuid4())
        alone = action_key(RunKey(f"{OUTBOX}/{number}"), OUTBOX_POSITION)
        self.text = dumps(
            {
                "tool": tool.name,
                "args": self._args,
                "effect": tool.effect.value,
                "key_ttl": None if tool.key_ttl is None else tool.key_ttl.total_seconds(),
                "requested_digest": digest(dict(args)),
                "effective_digest": sameness,
                "domain_key": self._domain_key,
                "undoes_domain_key": undoes,
                "compensator": None if tool.compensate is None else tool.compensate.name,
                "order_key": None if order_key is None else _check_order_key(order_key),
                # Of a call without a key from the domain: this row alone is its identity.
                "id": number,
                "idempotency_key": default_idempotency_key(alone),
                "never_sent": NEVER_SENT.result,
            }
        )
        """JSON, as ``commitline_intend`` takes it."""

    def answered(self, row: Any) -> ActionKey:
        """Return the key that the database answered with, or raise what it refused by."""
        key, verdict, held_tool, held_args = row
        if verdict == "gone":
            raise IdempotencyKeyConflict(
                f"{self._domain_key!r} is held by {key}, whose record is gone", existing=key
            )
        if verdict == "undoing":
            raise IntentRefused(
                f"{self._domain_key!r} is held by {key}, which is just being undone: intend it "
                "again in a moment"
            )
        if verdict == "perhaps undone":
            raise IntentRefused(
                f"{self._domain_key!r} is held by {key}, which was perhaps undone: an undo of it "
                "is unknown, and to be settled first"
            )
        if verdict == "conflict":
            raise IdempotencyKeyConflict(
                f"{self._domain_key!r} was used by {key} for {held_tool} {scrub(held_args)}, "
                f"and is now asked for {self._tool} {scrub(self._args)}",
                existing=key,
            )
        return ActionKey(key)


def _check_order_key(order_key: str) -> str:
    if not order_key.strip() or len(order_key) > MAX_IDEMPOTENCY_KEY or not order_key.isprintable():
        raise InvalidIdempotencyKey(
            f"an order_key is 1 to {MAX_IDEMPOTENCY_KEY} printable characters: {order_key[:80]!a}"
        )
    return order_key


# --- psycopg ------------------------------------------------------------------------------
# A cursor of our own: those of the connection may give rows, or take parameters, otherwise.


def _by_psycopg(conn: psycopg.Connection[Any], request: _Request) -> ActionKey:
    _check_psycopg(conn)
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        try:
            cursor.execute(_STATEMENT, {"request": request.text}, prepare=False)
        except psycopg.Error as err:
            _say_what_is_missing(err)
        return request.answered(cursor.fetchone())


async def _by_async_psycopg(conn: psycopg.AsyncConnection[Any], request: _Request) -> ActionKey:
    _check_psycopg(conn)
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
        try:
            await cursor.execute(_STATEMENT, {"request": request.text}, prepare=False)
        except psycopg.Error as err:
            _say_what_is_missing(err)
        return request.answered(await cursor.fetchone())


def _check_psycopg(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    idle = conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if conn.autocommit and idle:
        raise NoTransaction("the connection is in autocommit, and no transaction is open on it")


# --- SQLAlchemy ---------------------------------------------------------------------------
# With whichever driver. It is there where one of its connections is; nothing here needs it.


def _by_sqlalchemy(conn: Any, request: _Request) -> ActionKey:
    if _is_session(conn):
        conn = conn.connection()
    _check_sqlalchemy(conn)
    try:
        return request.answered(conn.execute(*_sqlalchemy(request)).one())
    except _dbapi_error() as err:
        _say_what_is_missing(err)


async def _by_async_sqlalchemy(conn: Any, request: _Request) -> ActionKey:
    if _is_session(conn):
        conn = await conn.connection()
    _check_sqlalchemy(conn.sync_connection)
    try:
        answer = await conn.execute(*_sqlalchemy(request))
        return request.answered(answer.one())
    except _dbapi_error() as err:
        _say_what_is_missing(err)


def _is_session(conn: Any) -> bool:
    return hasattr(type(conn), "flush")


def _sqlalchemy(request: _Request) -> tuple[Any, dict[str, str]]:
    text = import_module("sqlalchemy").text
    return text(_STATEMENT.replace("%(request)s", ":request")), {"request": request.text}


def _dbapi_error() -> type[Exception]:
    error: type[Exception] = import_module("sqlalchemy.exc").DBAPIError
    return error


def _check_sqlalchemy(conn: Any) -> None:
    if conn is None:
        raise NoTransaction("the connection has not been started")
    if getattr(conn.connection.dbapi_connection, "autocommit", False) is True:
        raise NoTransaction("the connection is in autocommit: its isolation level is AUTOCOMMIT")


def _say_what_is_missing(error: Exception) -> NoReturn:
    """Raise the database's error, or ours where the database is older than this code."""
    cause = getattr(error, "orig", None) or error
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state == _NO_SUCH_FUNCTION:
        raise SchemaMismatch("the database has no commitline_intend") from error
    raise error
