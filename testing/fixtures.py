"""Pytest fixtures with real servers: ``pytest_plugins = ["commitline.testing.fixtures"]``.

The servers start with the first test that asks for them, once per session. Every test gets a
database of its own, copied from one that was migrated once. Needs ``pytest-asyncio`` and
``pip install 'commitline[dev-server]'``.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql
from temporalio.client import Client

from ..devstack import DevStack

TEMPLATE: Final = "commitline_template"


@pytest.fixture(scope="session")
def devstack() -> Iterator[DevStack]:
    """A Temporal server in memory, without UI, and a Postgres; gone after the session."""
    # Not pytest's own tmp_path: it is closed to the user that Postgres runs as under root.
    data_dir = Path(tempfile.mkdtemp(prefix="commitline-"))
    try:
        with DevStack(data_dir, ui_port=None, persistent=False) as stack:
            yield stack
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest.fixture(scope="session")
def database_template(devstack: DevStack) -> str:
    """The name of a migrated database to copy from."""
    from ..ledger.migration import migrate

    _run(devstack, sql.SQL("create database {}").format(sql.Identifier(TEMPLATE)))
    url = devstack.url_of(TEMPLATE)
    with ThreadPoolExecutor(1) as thread:  # a loop of its own, out of the way of pytest-asyncio's
        thread.submit(lambda: asyncio.run(migrate(url))).result()
    return TEMPLATE


@pytest.fixture
def database_url(devstack: DevStack, database_template: str) -> Iterator[str]:
    """A database of the test's own, migrated and empty; dropped afterwards, whoever is on it."""
    name = f"test_{uuid.uuid4().hex}"
    names = {"name": sql.Identifier(name), "template": sql.Identifier(database_template)}
    _run(devstack, sql.SQL("create database {name} template {template}").format(**names))
    yield devstack.url_of(name)
    devstack.start_postgres()  # the test may have stopped it
    _run(devstack, sql.SQL("drop database {name} with (force)").format(**names))


@pytest_asyncio.fixture
async def temporal_client(devstack: DevStack) -> Client:
    """A client of the session's Temporal server, with the default data converter."""
    return await Client.connect(devstack.temporal_address)


def _run(devstack: DevStack, statement: sql.Composed) -> None:
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(statement)
