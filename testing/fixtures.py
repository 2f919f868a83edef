"""Pytest fixtures with real servers, for the tests of an application.

    pytest_plugins = ["commitline.testing.fixtures"]  # in conftest.py

    async def test_an_order_is_charged_once(temporal_client, database_url):
        ...  # start a worker with these, then a run

The servers start once per session, with the first test that uses them. Every test has a database
of its own, which is a copy of one migrated database. The fixtures need ``pytest-asyncio`` and
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
    """A Temporal server in memory, without its UI, and a Postgres; both end with the session."""
    # Not pytest's tmp_path: under root, Postgres runs as another user, who may not enter it.
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
    with ThreadPoolExecutor(1) as thread:  # asyncio.run() needs a thread without a running loop
        thread.submit(lambda: asyncio.run(migrate(url))).result()
    return TEMPLATE


@pytest.fixture
def database_url(devstack: DevStack, database_template: str) -> Iterator[str]:
    """A database for this test alone, migrated and empty; it is dropped afterwards."""
    name = f"test_{uuid.uuid4().hex}"
    names = {"name": sql.Identifier(name), "template": sql.Identifier(database_template)}
    _run(devstack, sql.SQL("create database {name} template {template}").format(**names))
    yield devstack.url_of(name)
    devstack.start_postgres()  # the test may have stopped it
    _run(devstack, sql.SQL("drop database {name} with (force)").format(**names))


@pytest_asyncio.fixture
async def temporal_client(devstack: DevStack) -> Client:
    """A client of the session's Temporal server, with Temporal's default data converter."""
    return await Client.connect(devstack.temporal_address)


def _run(devstack: DevStack, statement: sql.Composed) -> None:
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(statement)
