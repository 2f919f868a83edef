"""A search_path never has a second ledger begin, and never leads the ledger to other tables."""

from __future__ import annotations

import re
from typing import LiteralString

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from commitline.errors import SchemaMismatch
from commitline.ledger import check_schema, migrate, missing_grants
from commitline.tests.integration.database import limited_role


def ask(url: str, statement: LiteralString) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return [] if cursor.description is None else cursor.fetchall()


def with_path(url: str, path: str) -> str:
    """Name the same database with a search_path, as a role or a database may have it."""
    return make_conninfo(url, options=f"-c search_path={path}")


async def refused(url: str, what: str) -> str:
    """Have the ledger at this address refused, to workers and to `migrate`; return the remedy."""
    for work in (check_schema, migrate):
        with pytest.raises(SchemaMismatch, match=re.escape(what)) as refused:
            await work(url)
    return refused.value.remedy


async def test_a_schema_that_comes_to_stand_before_the_ledgers_gets_no_second_ledger(
    database_url: str,
) -> None:
    ask(database_url, "create schema app")

    applied = await migrate(with_path(database_url, "app,public"))

    assert applied == []
    assert ask(database_url, "select 1 from pg_tables where schemaname = 'app'") == []


async def test_a_table_of_the_application_is_not_taken_for_the_ledgers(database_url: str) -> None:
    ask(database_url, "create schema app")
    ask(database_url, "create table app.agent_messages (id bigint)")

    remedy = await refused(
        with_path(database_url, "app,public"),
        "the search_path (app,public) leads to the agent_messages of the schema app first",
    )

    assert "search_path" in remedy
    assert await check_schema(with_path(database_url, "public,app")) == 1


async def test_a_search_path_that_does_not_lead_to_the_ledger_is_named(database_url: str) -> None:
    ask(database_url, "create schema app")

    for path in ("app", "pg_catalog"):
        await refused(
            with_path(database_url, path),
            f"the ledger lies in the schema public, to which the search_path ({path}) of the role "
            "postgres does not lead",
        )


async def test_a_role_without_usage_on_the_ledgers_schema_is_told_so(database_url: str) -> None:
    ask(database_url, "revoke usage on schema public from public")
    with limited_role(database_url) as url:
        remedy = await refused(url, "has no right to usage on it")

    assert remedy.startswith("Have its owner grant it: `grant usage on schema public to limited_")


async def test_a_function_that_the_role_may_not_execute_is_named(database_url: str) -> None:
    ask(database_url, "revoke execute on all functions in schema public from public")
    with limited_role(database_url, "insert on agent_runs") as url:
        lacks = await missing_grants(url)

    assert "insert on agent_runs" in lacks
    assert "execute on commitline_exit" in lacks
    # Triggers need no such right, and what is for applications a worker need not execute.
    kept = ("commitline_keep_commit", "commitline_name_namespace", "commitline_intend")
    assert not [one for one in lacks if one.endswith(kept)]


async def test_a_database_without_a_schema_to_make_tables_in_is_refused(empty_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="leads to no schema in which tables could be made"):
        await migrate(with_path(empty_url, "nowhere"))
