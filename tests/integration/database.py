"""A database as its tests look at it: what is in it, who holds a lock, who waits for one."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from commitline.ledger.pool import Pool

_PATIENCE_SECONDS: Final = 60.0


async def sql(pool: Pool, statement: LiteralString, **given: Any) -> list[Mapping[str, Any]]:
    """Run a statement; return its rows, if it has any."""
    async with pool.connection() as connection:
        cursor = await connection.execute(statement, given)
        return [] if cursor.description is None else [dict(row) for row in await cursor.fetchall()]


@asynccontextmanager
async def holding(
    pool: Pool, statement: LiteralString, *, commits: bool = False, **given: Any
) -> AsyncIterator[None]:
    """Hold the locks of a statement in a session of its own; then commit it, or take it back."""
    async with (
        pool.connection() as connection,
        connection.transaction(force_rollback=not commits),
    ):
        await connection.execute(statement, given)
        yield


async def blocked(pool: Pool) -> int:
    """How many clients of this database wait for a lock.

    Clients alone: what the server runs itself, such as autovacuum, comes and goes as it pleases.
    """
    (found,) = await sql(
        pool,
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock' "
        "and backend_type = 'client backend'",
    )
    return int(found["count"])


async def until_blocked(pool: Pool, sessions: int = 1) -> None:
    """Return when so many clients, or more, wait for a lock."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (found := await blocked(pool)) < sessions:
        assert time.monotonic() < deadline, f"{found} sessions wait for a lock, not {sessions}"
        await asyncio.sleep(0.01)


@contextmanager
def limited_role(url: str, *revoked: LiteralString) -> Iterator[str]:
    """Name the same database for a role of its own, without these rights (``insert on …``)."""
    name = f"limited_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as owner:

        def of_role(statement: LiteralString) -> None:
            owner.execute(SQL(statement).format(Identifier(name)))

        of_role("create role {} login")
        of_role("grant select, insert, update, delete on all tables in schema public to {}")
        for right in revoked:
            of_role(f"revoke {right} from {{}}")
        try:
            yield make_conninfo(url, user=name)
        finally:
            of_role("drop owned by {}")
            of_role("drop role {}")


class Backup:
    """A copy of a database, which can be put back in its place; each cuts all connections."""

    def __init__(self, url: str) -> None:
        self._name = conninfo_to_dict(url)["dbname"]
        self._copy = f"{self._name}_copy"
        self._server = make_conninfo(url, dbname="postgres")
        with psycopg.connect(self._server, autocommit=True) as server:
            self._close(server)
            self._run(server, "create database {copy} template {name}")
            self._run(server, "alter database {name} allow_connections true")

    def put_back(self) -> None:
        """Have the database be as it was when the copy was made."""
        with psycopg.connect(self._server, autocommit=True) as server:
            self._close(server)
            self._run(server, "drop database {name} with (force)")
            self._run(server, "alter database {copy} rename to {name}")

    def _close(self, server: psycopg.Connection) -> None:
        self._run(server, "alter database {name} allow_connections false")
        at_work = "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s"
        server.execute(at_work, [self._name])

    def _run(self, server: psycopg.Connection, statement: LiteralString) -> None:
        names = {"name": Identifier(str(self._name)), "copy": Identifier(self._copy)}
        server.execute(SQL(statement).format(**names))


def with_default_isolation(url: str, level: str) -> str:
    """Name the same database, with this as the default isolation level of its sessions."""
    escaped = level.replace(" ", "\\ ")
    return make_conninfo(url, options=f"-c default_transaction_isolation={escaped}")
