"""The ledger alone, on a database that the tests of one module share, emptied for each."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from urllib.parse import urlsplit

import certifi
import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from commitline.devstack import DevStack
from commitline.ledger import ActionLedger, ledger_pool
from commitline.ledger.pool import Pool
from commitline.tests.integration.properties import RunTheLoop

_TABLES = (
    "agent_messages",
    "agent_requests",
    "agent_values",
    "agent_states",
    "agent_approvals",
    "agent_questions",
    "agent_threads",
    "agent_domain_keys",
    "agent_relay",
    "agent_sweeps",
    "agent_intents",
    "agent_actions",
    "agent_runs",
)
"""What refers to another comes before it."""


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Spare each HTTP client the reading of all authorities: nothing here speaks TLS."""
    end = "-----END CERTIFICATE-----\n"
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(certifi.contents().partition(end)[0] + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="module")
def ledger_database_url(devstack: DevStack, database_template: str) -> Iterator[str]:
    """A migrated database in which no deadlock is ever resolved, and who waits for a lock waits on.

    The ledger repeats a call that fell victim to a deadlock, or whose wait for a lock was over, so
    a wrong lock order would not show. Here it does: the call does not come back within its
    deadline.
    """
    name = f"ledger_{uuid.uuid4().hex}"
    names = {"name": sql.Identifier(name), "template": sql.Identifier(database_template)}
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {name} template {template}").format(**names))
        for wait in (sql.SQL("deadlock_timeout"), sql.SQL("commitline.lock_timeout")):
            connection.execute(
                sql.SQL("alter database {name} set {wait} = '10min'").format(**names, wait=wait)
            )
    yield urlsplit(devstack.database_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {name} with (force)").format(**names))


@pytest_asyncio.fixture
async def pool(ledger_database_url: str) -> AsyncIterator[Pool]:
    """An open pool on empty tables, big enough for the races that the tests arrange."""
    async with ledger_pool(ledger_database_url, size=30) as pool:
        async with pool.connection() as connection:
            for table in _TABLES:
                await connection.execute(sql.SQL("delete from {}").format(sql.Identifier(table)))
        yield pool


@pytest.fixture
def run_the_loop() -> Iterator[RunTheLoop]:
    """Run coroutines on one event loop, from example to example."""
    with asyncio.Runner() as runner:

        async def wait(work: Awaitable[None]) -> None:
            await work

        yield lambda work: runner.run(wait(work))


@pytest.fixture
def open_pool(run_the_loop: RunTheLoop, ledger_database_url: str) -> Iterator[Pool]:
    """An open pool on that loop."""
    pool: list[Pool] = []

    async def enter() -> None:
        pool.append(ledger_pool(ledger_database_url, size=12))
        await pool[0].open()

    run_the_loop(enter())
    yield pool[0]
    run_the_loop(pool[0].close())


@pytest_asyncio.fixture
async def ledger(pool: Pool) -> ActionLedger:
    """A ledger over the pool."""
    return ActionLedger(pool)
