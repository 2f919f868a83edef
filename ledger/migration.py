"""Numbered SQL migrations, applied under one lock.

All of it is one transaction: a transaction-level advisory lock, then the version table, then
every migration that is missing. Any number of workers may start at once (they queue on the
lock), one that is killed leaves nothing behind, and a transaction-mode pooler may stand between.
`create table if not exists` alone does not do that: two sessions at once fail with a unique
violation in the catalogue.

A migration locks tables against everybody. While it waits for such a lock, whoever comes after it
waits too, claims among them, and one forgotten transaction would stop them all. So it waits only
briefly, gives back what it has locked, and tries again; and it says who holds it back.

Migrations only add (tables, nullable columns, columns with defaults), so a worker of the
previous release keeps working beside a new one. `check_schema` refuses a database that is older
than the code.

A version is a number and a file name. A database that has another name for one of this code's
numbers was made by another line of migrations; nothing of this code ever runs on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import psycopg
from psycopg import AsyncConnection
from psycopg import errors as pg
from psycopg.rows import TupleRow

from ..canonical import scrub
from ..errors import LedgerUnavailable, MigrationHeldBack, SchemaMismatch, StatementRefused
from .place import HOW_TO_HAVE_A_SCHEMA, ledger_schema
from .pool import connect_once
from .sql import QUERIES, Migration, migrations

_LOCK: Final = 0x434F4D4D49544C4E
"""``COMMITLN`` as a 64-bit integer: the advisory lock of these migrations."""

_VERSION_TABLE: Final = """
create table if not exists agent_schema_migrations (
    version     integer     not null,
    name        text        not null,
    applied_at  timestamptz not null default now(),
    constraint agent_schema_migrations_pkey primary key (version)
)
"""

_LOCK_SECONDS: Final = 2.0
"""How long a migration waits for one lock, and with it all that came after it."""
_LOOK_SECONDS: Final = 0.5
"""How often it is looked who holds it back meanwhile."""
_PAUSE_SECONDS: Final = 1.0
"""Between two tries: what had to wait for the last one goes on."""

_HOW_TO_BEGIN_ANEW: Final = (
    "To begin anew, and lose what it holds: stop `commitline dev` and delete its folder "
    "`.commitline`; or drop the database, or its schema, and run `commitline migrate`."
)


async def migrate(
    database_url: str,
    *,
    known: Sequence[Migration] | None = None,
    patience_seconds: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
) -> list[int]:
    """Bring the database to this code's schema; return the versions that were applied.

    Safe to repeat and to run from many processes at once.

    Args:
        database_url: The database.
        known: Every migration, in order; by default this code's.
        patience_seconds: How long to try where others hold the tables.
        tell: Told after each try who holds the migration back.

    Raises:
        SchemaMismatch: It was made by other migrations than this code's, is not in UTF-8, or has
            the ledger where the role's search_path does not lead; nothing was changed.
        MigrationHeldBack: Others held the tables all the time; nothing was changed.
        ConfigurationError: Its address cannot be read.
        LedgerUnavailable: The database cannot be reached.
    """
    known = migrations() if known is None else known
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + patience_seconds
    while True:
        holders: list[str] = []
        try:
            async with (
                _watching(database_url, holders) as watch,
                await connect_once(database_url) as connection,
            ):
                return await _migrate(connection, known, watch)
        except (pg.LockNotAvailable, pg.DeadlockDetected) as err:
            by = "; ".join(holders) or "a session that has just let go"
            if loop.time() >= give_up_at:
                raise MigrationHeldBack(f"the tables are held by {by}") from err
            tell(by)
        except (pg.DuplicateTable, pg.DuplicateFunction) as err:
            raise SchemaMismatch(
                f"the ledger cannot be made here: {err.diag.message_primary}; nothing was changed",
                remedy=HOW_TO_HAVE_A_SCHEMA,
            ) from err
        await asyncio.sleep(_PAUSE_SECONDS)


async def _migrate(
    connection: AsyncConnection[TupleRow],
    known: Sequence[Migration],
    watch: Callable[[int], None],
) -> list[int]:
    """Apply what is missing, in one transaction, which is watched from its first lock on."""
    await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
    # Only from here on: another migration may take as long as it takes.
    await connection.execute(
        "select set_config('lock_timeout', %s, true)", (f"{_LOCK_SECONDS:g}s",)
    )
    await _go_to(await ledger_schema(connection), connection)
    await connection.execute(_VERSION_TABLE)
    applied = await _applied(connection)
    _check_names(applied, known)
    missing = [one for one in known if one.version not in applied]
    # Asked of the server: behind a pooler the driver has another number.
    cursor = await connection.execute("select pg_backend_pid()")
    row = await cursor.fetchone()
    assert row is not None, "every session has one"
    watch(row[0])
    for version, name, sql in missing:
        await connection.execute(sql)
        await connection.execute(
            "insert into agent_schema_migrations (version, name) values (%s, %s)",
            (version, name),
        )
    return [one.version for one in missing]


async def _go_to(schema: str | None, connection: AsyncConnection[TupleRow]) -> None:
    """Have what is made from here on made where the ledger is, in this transaction alone.

    A search_path that begins with another schema would have all of it made there, a second time.
    """
    if schema is not None:
        path = "select set_config('search_path', quote_ident(%s), true)"
        await connection.execute(path, (schema,))
        return
    cursor = await connection.execute("select current_schema(), current_setting('search_path')")
    row = await cursor.fetchone()
    assert row is not None, "it is one row"
    if row[0] is None:
        raise SchemaMismatch(
            f"the search_path ({row[1]}) leads to no schema in which tables could be made",
            remedy=HOW_TO_HAVE_A_SCHEMA,
        )


@asynccontextmanager
async def _watching(database_url: str, holders: list[str]) -> AsyncIterator[Callable[[int], None]]:
    """Look, from another session, who holds up the session that the body names.

    It is waited for when the body is over, and with it the transaction: behind a pooler, those who
    wait for a lock of that transaction may have all the sessions.
    """
    over = asyncio.Event()
    watching = set[asyncio.Task[None]]()
    try:
        yield lambda pid: watching.add(
            asyncio.create_task(_watch(pid, database_url, holders, over))
        )
    finally:
        over.set()  # not cancelled: a connection that is about to be closed would stay open
        await asyncio.gather(*watching)


async def _watch(pid: int, database_url: str, holders: list[str], over: asyncio.Event) -> None:
    # The migration goes on after an error, and does not know who held it back.
    with suppress(psycopg.Error, LedgerUnavailable):
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _LOOK_SECONDS)
                return
            async with await connect_once(database_url) as connection:
                cursor = await connection.execute(QUERIES["blocking"], {"pid": pid})
                if found := [_in_words(*row) for row in await cursor.fetchall()]:
                    holders[:] = found


def _in_words(
    pid: int, user: str | None, application: str | None, state: str | None, seconds: float | None
) -> str:
    """Say who a session is: of another user, most of it may not be seen."""
    who = scrub(", ".join(filter(None, (user and f"user {user}", application, state))))
    since = "" if seconds is None else f", in its transaction for {seconds:.0f} s"
    return f"session {pid} ({who or 'of another user'}{since})"


async def check_schema(database_url: str) -> int:
    """Return the database's schema version, if this code can work with it.

    Raises:
        SchemaMismatch: It is older than this code's, was made by other migrations, is not in
            UTF-8, or has the ledger where the role's search_path does not lead.
        StatementRefused: The role may not read which one it has.
        LedgerUnavailable: The database cannot be reached.
    """
    async with await connect_once(database_url) as connection:
        found = await ledger_schema(connection)
        applied = {} if found is None else await _applied(connection)
    return fitting_version(applied)


def fitting_version(applied: dict[int, str]) -> int:
    """Return the newest of the migrations that a database has had, if this code can work with it.

    Args:
        applied: Their names by version.

    Raises:
        SchemaMismatch: It is older than this code's, or the migrations are others.
    """
    known = migrations()
    _check_names(applied, known)
    version, newest = max(applied, default=0), known[-1].version
    if version < newest:
        raise SchemaMismatch(f"the database has schema {version}, this code needs {newest}")
    return version


def _check_names(applied: dict[int, str], known: Sequence[Migration]) -> None:
    """Refuse a database with another line of migrations, as one from before 0.1.0 has."""
    for version, name, _ in known:
        found = applied.get(version, name)
        if found != name:
            raise SchemaMismatch(
                f"the database was made by other migrations: its number {version} is {found}, "
                f"this code's is {name}; nothing was changed",
                remedy=_HOW_TO_BEGIN_ANEW,
            )


async def _applied(connection: AsyncConnection[TupleRow]) -> dict[int, str]:
    try:
        cursor = await connection.execute(QUERIES["applied_migrations"])
    except pg.InsufficientPrivilege as err:
        raise StatementRefused(f"Postgres refuses a statement: {err.diag.message_primary}") from err
    return dict(await cursor.fetchall())
