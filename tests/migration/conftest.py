"""A database without anything in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from commitline.devstack import DevStack


@pytest.fixture
def empty_url(devstack: DevStack) -> Iterator[str]:
    """A database without anything in it."""
    name = f"empty_{uuid.uuid4().hex}"
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    yield urlsplit(devstack.database_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
