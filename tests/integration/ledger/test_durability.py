"""Commits that are kept: each is waited for, and what may lose it is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from commitline import Effect, tool
from commitline.identity import Position, RunKey
from commitline.ledger import (
    ActionLedger,
    Dispatched,
    Parked,
    commits_at_risk,
    intend,
    ledger_pool,
)
from commitline.tests.builders import action_request, attempt, dispatched, open_run
from commitline.tests.integration.database import Backup

RUN = RunKey("support-4821/e1")


@pytest.fixture
def hasty(ledger_database_url: str) -> Iterator[psycopg.Connection]:
    """A session of an application that does not wait for its commits."""
    with psycopg.connect(ledger_database_url) as connection:
        connection.execute("set synchronous_commit = off")
        connection.commit()
        yield connection


def waits(connection: psycopg.Connection) -> str:
    """What the transaction under way waits for at its commit."""
    row = connection.execute("show synchronous_commit").fetchone()
    assert row is not None
    return str(row[0])


def test_whoever_writes_to_a_table_of_the_ledger_waits_for_the_commit(
    hasty: psycopg.Connection,
) -> None:
    tables = [
        str(name)
        for (name,) in hasty.execute(
            "select tablename from pg_tables where schemaname = 'public'"
            " and tablename like 'agent%' and tablename <> 'agent_schema_migrations' order by 1"
        )
    ]
    found = {}
    for table in tables:
        before = waits(hasty)
        hasty.execute(sql.SQL("delete from {} where false").format(sql.Identifier(table)))
        found[table] = (before, waits(hasty))
        hasty.rollback()

    assert {"agent_runs", "agent_actions", "agent_intents"} <= set(tables)
    assert found == dict.fromkeys(tables, ("off", "on"))


def test_an_application_that_intends_waits_for_that_commit_and_for_no_other(
    hasty: psycopg.Connection,
) -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def charge(order_id: str) -> str:
        return order_id

    intend(hasty, charge, {"order_id": "4821"})
    at_this_commit = waits(hasty)
    hasty.rollback()

    assert (at_this_commit, waits(hasty)) == ("on", "off")


def test_who_waits_longer_goes_on_to(hasty: psycopg.Connection) -> None:
    hasty.execute("set local synchronous_commit = remote_apply")
    hasty.execute("delete from agent_runs where false")

    assert waits(hasty) == "remote_apply"


async def test_what_may_lose_commits_is_named(ledger_database_url: str) -> None:
    # A standby begins as this does: with a session for replication.
    with psycopg.connect(
        ledger_database_url, replication="true", application_name="spare", autocommit=True
    ):
        risks = await commits_at_risk(ledger_database_url)

    assert [one.partition(":")[0] for one in risks] == [
        "fsync is off",
        "full_page_writes is off",
        "asynchronous standbys (spare)",
    ]


async def test_a_retry_that_finds_no_row_is_lost_after_a_copy_of_the_database_is_put_back(
    database_url: str,
) -> None:
    call = action_request(RUN, tool="mail", effect=Effect.AT_MOST_ONCE)
    second = replace(attempt(60), repeats=True)
    async with ledger_pool(database_url) as pool:
        ledger = ActionLedger(pool)
        await open_run(ledger, RUN)
        without = await ledger.claim(replace(call, position=Position("0.1")), second)
        backup = Backup(database_url)
        await dispatched(ledger, call)
        backup.put_back()
        found = await ledger.claim(call, replace(second, token=attempt().token))

    assert isinstance(without, Dispatched)
    assert isinstance(found, Parked)


@pytest.mark.parametrize("local", [False, True])
async def test_after_a_restart_a_turn_that_was_committed_since_lost_nothing_unless_it_is_local(
    database_url: str, local: bool
) -> None:
    """A task that is made anew commits the turn of a local agent again, after its lost calls."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "insert into agent_threads (thread_id, agent) values (%s, 'clerk')", [RUN]
        )
        connection.execute(
            "insert into agent_messages"
            " (thread_id, version, ordinal, run_key, step, epoch, role, message)"
            " values (%s, 1, 0, %s, 0, 0, 'assistant', '{}')",
            [RUN, RUN],
        )
        found = connection.execute(
            "select commitline_may_have_lost(run, 0) from"
            " (select (jsonb_populate_record(null::agent_runs, jsonb_build_object("
            "  'run_key', %s::text, 'spec', jsonb_build_object('local', %s::boolean),"
            "  'timeline', regexp_replace(commitline_timeline(), '/[^/]*$', '/before')))).*) run",
            [RUN, local],
        ).fetchone()

    assert found == (local,)
