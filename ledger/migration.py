"""Numbered SQL migrations, applied under one lock.

The whole of it is one transaction: a transaction-level advisory lock, then the version
table, then every migration that is missing. Any number of workers may start at once (they
queue on the lock), one that is killed leaves nothing behind, and a transaction-mode pooler
may stand between. `create table if not exists` alone does not do that: two sessions at once
fail with a unique violation in the catalogue.

Migrations only add (tables, nullable columns, columns with defaults), so a worker of the
previous release keeps working beside a new one; one that cannot is refused by `check_schema`.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from ..errors import ConfigurationError, LedgerUnavailable, SchemaMismatch
from .sql import migrations

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


async def migrate(database_url: str) -> list[int]:
    """Bring the database to this code's schema; return the versions that were applied.

    Safe to repeat and to run from many processes at once.

    Raises:
        LedgerUnavailable: The database cannot be reached.
    """
    async with await _connect(database_url) as connection:
        await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(_VERSION_TABLE)
        applied = await _versions(connection)
        missing = [found for found in migrations() if found[0] not in applied]
        for version, name, sql in missing:
            await connection.execute(sql)
            await connection.execute(
                "insert into agent_schema_migrations (version, name) values (%s, %s)",
                (version, name),
            )
        return [version for version, _, _ in missing]


async def check_schema(database_url: str) -> int:
    """Return the database's schema version, if this code can work with it.

    Raises:
        SchemaMismatch: It is older than this code's.
        LedgerUnavailable: The database cannot be reached.
    """
    newest = migrations()[-1][0]
    async with await _connect(database_url) as connection:
        cursor = await connection.execute("select to_regclass('agent_schema_migrations')")
        known = await cursor.fetchone()
        applied = await _versions(connection) if known and known[0] else set()
    version = max(applied, default=0)
    if version < newest:
        raise SchemaMismatch(f"the database has schema {version}, this code needs {newest}")
    return version


async def _versions(connection: AsyncConnection[TupleRow]) -> set[int]:
    cursor = await connection.execute("select version from agent_schema_migrations")
    return {row[0] for row in await cursor.fetchall()}


async def _connect(database_url: str) -> AsyncConnection[TupleRow]:
    try:
        return await AsyncConnection.connect(database_url, connect_timeout=10)
    except psycopg.OperationalError as err:
        raise LedgerUnavailable(f"no database: {err}") from err
    except psycopg.ProgrammingError as err:
        raise ConfigurationError(f"COMMITLINE_DATABASE_URL cannot be used: {err}") from err
