"""Numbered SQL migrations, applied under one lock.

All of it is one transaction: a transaction-level advisory lock, then the version table, then
every migration that is missing. Any number of workers may start at once (they queue on the
lock), one that is killed leaves nothing behind, and a transaction-mode pooler may stand between.
`create table if not exists` alone does not do that: two sessions at once fail with a unique
violation in the catalogue.

Migrations only add (tables, nullable columns, columns with defaults), so a worker of the
previous release keeps working beside a new one. `check_schema` refuses a database that is older
than the code.

A version is a number and a file name. A database that has another name for one of this code's
numbers was made by another line of migrations; nothing of this code ever runs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from ..errors import SchemaMismatch
from .pool import connect_once
from .sql import Migration, migrations

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

_HOW_TO_BEGIN_ANEW: Final = (
    "To begin anew, and lose what it holds: stop `commitline dev` and delete its folder "
    "`.commitline`; or drop the database, or its schema, and run `commitline migrate`."
)


async def migrate(database_url: str, *, known: Sequence[Migration] | None = None) -> list[int]:
    """Bring the database to this code's schema; return the versions that were applied.

    Safe to repeat and to run from many processes at once.

    Args:
        database_url: The database.
        known: Every migration, in order; by default this code's.

    Raises:
        SchemaMismatch: It was made by other migrations than this code's; nothing was changed.
        LedgerUnavailable: The database cannot be reached.
    """
    known = migrations() if known is None else known
    async with await connect_once(database_url) as connection:
        await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(_VERSION_TABLE)
        applied = await _applied(connection)
        _check_names(applied, known)
        missing = [one for one in known if one.version not in applied]
        for version, name, sql in missing:
            await connection.execute(sql)
            await connection.execute(
                "insert into agent_schema_migrations (version, name) values (%s, %s)",
                (version, name),
            )
        return [one.version for one in missing]


async def check_schema(database_url: str) -> int:
    """Return the database's schema version, if this code can work with it.

    Raises:
        SchemaMismatch: It is older than this code's, or was made by other migrations.
        LedgerUnavailable: The database cannot be reached.
    """
    known = migrations()
    async with await connect_once(database_url) as connection:
        cursor = await connection.execute("select to_regclass('agent_schema_migrations')")
        table = await cursor.fetchone()
        applied = await _applied(connection) if table and table[0] else {}
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
    cursor = await connection.execute("select version, name from agent_schema_migrations")
    return dict(await cursor.fetchall())
