"""Migrations: many workers at once, one that is killed, and the schema that comes of it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
import uuid
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, LiteralString, cast, get_args
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from commitline.devstack import DevStack
from commitline.errors import (
    IdempotencyKeyConflict,
    LedgerUnavailable,
    MigrationHeldBack,
    SchemaMismatch,
)
from commitline.identity import Position, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Approval,
    Attempt,
    Dispatched,
    Effect,
    LookUp,
    NewMessage,
    Outcome,
    Parked,
    Question,
    RelayEntry,
    Run,
    StoredMessage,
    Thread,
    Turn,
    check_schema,
    commits_at_risk,
    ledger_pool,
    migrate,
)
from commitline.ledger.action_records import ActionStatus, OutcomeKind
from commitline.ledger.relay_rules import RelayTask
from commitline.ledger.run_records import RunState
from commitline.ledger.sql import QUERIES, Migration, migrations
from commitline.ledger.thread_records import MessageRole

VERSIONS = [number for number, _, _ in migrations()]

CONSTRAINTS = {
    "agent_runs": [
        "agent_runs_cleared_has_ended",
        "agent_runs_ended_says_when",
        "agent_runs_fork_says_where",
        "agent_runs_parent_exists",
        "agent_runs_pkey",
        "agent_runs_state_is_known",
        "agent_runs_stop_says_why",
        "agent_runs_sub_agent_has_an_owner",
        "agent_runs_undo_ended_had_begun",
        "agent_runs_undo_is_final",
    ],
    "agent_actions": [
        "agent_actions_adopted_is_relayed",
        "agent_actions_changes_come_with_an_outcome",
        "agent_actions_decision_is_signed",
        "agent_actions_dispatch_is_complete",
        "agent_actions_done_is_complete",
        "agent_actions_duplicate_changes_nothing",
        "agent_actions_effect_is_known",
        "agent_actions_failures_count_from_zero",
        "agent_actions_generation_counts_from_one",
        "agent_actions_notified_when_settled",
        "agent_actions_ok_had_its_effect",
        "agent_actions_one_per_position",
        "agent_actions_outcome_is_known",
        "agent_actions_parked_is_pending",
        "agent_actions_parked_says_why",
        "agent_actions_pkey",
        "agent_actions_run_exists",
        "agent_actions_status_is_known",
        "agent_actions_undoes_another",
    ],
    "agent_approvals": [
        "agent_approvals_decision_is_known",
        "agent_approvals_decision_is_signed",
        "agent_approvals_edits_are_approved",
        "agent_approvals_generation_counts_from_one",
        "agent_approvals_pkey",
        "agent_approvals_run_exists",
    ],
    "agent_questions": [
        "agent_questions_answer_has_a_value",
        "agent_questions_answer_is_signed",
        "agent_questions_number_counts_from_one",
        "agent_questions_pkey",
        "agent_questions_run_exists",
    ],
    "agent_domain_keys": [
        "agent_domain_keys_held_has_generation",
        "agent_domain_keys_pkey",
        "agent_domain_keys_undone_is_free",
    ],
    "agent_threads": [
        "agent_threads_pkey",
        "agent_threads_version_counts_from_zero",
    ],
    "agent_messages": [
        "agent_messages_pkey",
        "agent_messages_role_is_known",
        "agent_messages_thread_exists",
    ],
    "agent_relay": [
        "agent_relay_action_exists",
        "agent_relay_pkey",
        "agent_relay_waits_for_an_entry",
        "agent_relay_why_is_known",
    ],
    "agent_states": [
        "agent_states_pkey",
        "agent_states_thread_exists",
    ],
    "agent_requests": [
        "agent_requests_pkey",
        "agent_requests_reply_is_complete",
        "agent_requests_thread_exists",
    ],
    "agent_values": ["agent_values_pkey"],
    "agent_intents": ["agent_intents_pkey"],
    "agent_sweeps": ["agent_sweeps_pkey"],
    "agent_schema_migrations": ["agent_schema_migrations_pkey"],
}
INDEXES = [
    "agent_actions_by_time",
    "agent_actions_claimed_for_another",
    "agent_actions_one_live_undo",
    "agent_actions_one_per_position",
    "agent_actions_open_repeats",
    "agent_actions_open_unknown",
    "agent_actions_parked",
    "agent_actions_pkey",
    "agent_actions_repeats",
    "agent_actions_settled",
    "agent_actions_undoing",
    "agent_actions_undoing_fact",
    "agent_approvals_by_run",
    "agent_approvals_by_time",
    "agent_approvals_pkey",
    "agent_approvals_waiting",
    "agent_domain_keys_pkey",
    "agent_intents_pkey",
    "agent_intents_relying",
    "agent_messages_one_completion_per_turn",
    "agent_messages_one_per_request",
    "agent_messages_pkey",
    "agent_questions_by_run",
    "agent_questions_by_time",
    "agent_questions_pkey",
    "agent_questions_waiting",
    "agent_relay_by_time",
    "agent_relay_due",
    "agent_relay_in_order",
    "agent_relay_pkey",
    "agent_relay_shown",
    "agent_relay_waiting",
    "agent_requests_pkey",
    "agent_runs_by_parent",
    "agent_runs_by_workflow",
    "agent_runs_lost",
    "agent_runs_newest",
    "agent_runs_open",
    "agent_runs_pkey",
    "agent_runs_uncleared",
    "agent_schema_migrations_pkey",
    "agent_states_pkey",
    "agent_sweeps_pkey",
    "agent_threads_newest",
    "agent_threads_pkey",
    "agent_values_by_thread",
    "agent_values_pkey",
]


def ask(url: str, statement: LiteralString, **parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)
        return [] if cursor.description is None else cursor.fetchall()


def tables(url: str) -> set[str]:
    return {
        name for (name,) in ask(url, "select tablename from pg_tables where tablename ~ 'agent'")
    }


async def until_blocked(url: str, sessions: int) -> None:
    """Return when Postgres shows that so many sessions of the database wait for a lock."""
    deadline = time.monotonic() + 60
    found = -1
    while time.monotonic() < deadline:
        ((found,),) = ask(
            url,
            "select count(*) from pg_stat_activity "
            "where datname = current_database() and wait_event_type = 'Lock' "
            "and backend_type = 'client backend'",
        )
        if found == sessions:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{found} sessions wait for a lock, not {sessions}")


@pytest.mark.parametrize("default", ["read committed", "serializable"])
async def test_six_workers_that_start_at_once_apply_each_migration_once(
    empty_url: str, default: LiteralString
) -> None:
    """Whatever isolation level the database has by default."""
    name = urlsplit(empty_url).path[1:]
    level = sql.SQL("alter database {} set default_transaction_isolation = {}")
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(level.format(sql.Identifier(name), sql.Literal(default)))
    for _ in range(20 if default == "read committed" else 2):
        applied = await asyncio.gather(*(migrate(empty_url) for _ in range(6)))

        assert sorted(applied) == [[], [], [], [], [], VERSIONS]
        assert [version for (version,) in ask(
            empty_url, "select version from agent_schema_migrations order by version"
        )] == VERSIONS  # fmt: skip
        assert tables(empty_url) == set(CONSTRAINTS)
        ask(empty_url, "drop schema public cascade")
        ask(empty_url, "create schema public")


async def test_a_worker_killed_in_mid_migration_leaves_nothing_and_the_next_one_goes_on(
    empty_url: str,
) -> None:
    code = (
        "import asyncio; from commitline.ledger import migrate; "
        f"asyncio.run(migrate({empty_url!r}))"
    )
    with psycopg.connect(empty_url) as obstacle:
        # It comes as far as agent_actions, whose name is taken by a session that has not decided.
        obstacle.execute("create table agent_actions ()")
        doomed = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        await until_blocked(empty_url, 1)
        next_one = asyncio.create_task(migrate(empty_url))
        await until_blocked(empty_url, 2)

        doomed.kill()
        await doomed.wait()
        seen = tables(empty_url)
        obstacle.rollback()

    applied = await next_one

    assert doomed.returncode == -9
    assert seen == set()
    assert applied == VERSIONS
    assert tables(empty_url) == set(CONSTRAINTS)
    assert await check_schema(empty_url) == VERSIONS[-1]


async def test_a_migration_that_fails_leaves_nothing_and_says_why(empty_url: str) -> None:
    ask(empty_url, "create table agent_actions ()")

    with pytest.raises(SchemaMismatch, match='relation "agent_actions" already exists') as refused:
        await migrate(empty_url)

    assert "create schema ledger" in refused.value.remedy
    assert tables(empty_url) == {"agent_actions"}


async def test_a_migration_that_is_held_back_lets_claims_pass_and_says_by_whom(
    empty_url: str,
) -> None:
    await migrate(empty_url)
    told: list[str] = []
    async with ledger_pool(empty_url, size=2) as pool:
        ledger = ActionLedger(pool)
        await opened(ledger, 1)
        with psycopg.connect(empty_url, application_name="forgotten") as holder:
            holder.execute("select from agent_actions limit 1")
            pid = holder.info.backend_pid
            migrating = asyncio.create_task(
                migrate(empty_url, known=NEXT_RELEASE, tell=told.append)
            )
            await until_blocked(empty_url, 1)
            await dispatched(ledger, request("0.0"), at())  # within a ledger call's deadline
            while not told:
                assert not migrating.done()
                await asyncio.sleep(0.02)
            holder.rollback()
        applied = await migrating

    assert applied == [2]
    assert told[0].startswith(f"session {pid} (user postgres, forgotten, idle in transaction")


async def test_a_migration_that_is_held_back_for_long_gives_up_and_changes_nothing(
    empty_url: str,
) -> None:
    await migrate(empty_url)
    with psycopg.connect(empty_url, application_name="forgotten") as holder:
        holder.execute("select from agent_actions limit 1")
        with pytest.raises(MigrationHeldBack, match="forgotten") as held_back:
            await migrate(empty_url, known=NEXT_RELEASE, patience_seconds=0)

    assert held_back.value.code == "CL250"
    assert await check_schema(empty_url) == 1


async def test_migrating_again_does_nothing_and_keeps_what_is_there(database_url: str) -> None:
    ask(
        database_url,
        "insert into agent_runs (run_key, workflow_id, agent, input_digest, opened_attempt_at) "
        "values ('r/1', 'r', 'a', 'i', now())",
    )

    applied = await migrate(database_url)

    assert applied == []
    assert ask(database_url, "select run_key from agent_runs") == [("r/1",)]


# --- From one version to the next ---------------------------------------------------------
# This release has one migration. The next one is the tests' own; `known` is how a release of
# that version sees the ledger's migrations.

SECOND_SQL: Any = (Path(__file__).parent / "0002_of_the_tests.sql").read_text("utf-8")
SECOND: Final = Migration(2, "0002_of_the_tests.sql", SECOND_SQL)
NEXT_RELEASE: Final = [*migrations(), SECOND]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def everything_in(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of every table, as the columns of this release show them."""
    columns = ask(
        url,
        "select table_name, string_agg(quote_ident(column_name), ', ' order by ordinal_position) "
        "from information_schema.columns where table_schema = 'public' "
        "and column_name not in ('note', 'priority') and table_name <> 'agent_schema_migrations' "
        "and table_name <> 'agent_notes' group by 1",
    )
    with psycopg.connect(url) as connection:
        return {
            table: connection.execute(
                sql.SQL("select {} from {} order by 1, 2").format(
                    sql.SQL(cast("LiteralString", names)), sql.Identifier(table)
                )
            ).fetchall()
            for table, names in columns
        }


def request(position: str, **changes: Any) -> ActionRequest:
    usual = ActionRequest(
        run_key=RunKey("r/1"),
        position=Position(position),
        tool="ship",
        args='{"n":1}',
        effect=Effect.LOOKUP,
        requested_digest="d",
        effective_digest=f"d{position}",
        can_look_up=True,
        settles_after=timedelta(minutes=1),
    )
    return replace(usual, **changes)


def at(second: int = 0) -> Attempt:
    return Attempt(NOON + timedelta(seconds=second), uuid.uuid4(), timedelta(minutes=2))


async def opened(ledger: ActionLedger, second: int = 0) -> Run:
    return await ledger.runs.open(
        run_key=RunKey("r/1"),
        workflow_id="r",
        agent="a",
        input_digest="i",
        attempt_at=NOON + timedelta(seconds=second),
        thread_id="r/1",
        spec='{"name":"a"}',
    )


async def dispatched(ledger: ActionLedger, given: ActionRequest, by: Attempt) -> Dispatched:
    claim = await ledger.claim(given, by)
    assert isinstance(claim, Dispatched)
    return claim


async def leave_one_of_each(ledger: ActionLedger) -> Dispatched:
    """Leave an action in each state, and a conversation; return the claim of an unknown one."""
    await opened(ledger)
    await ledger.threads.open("r/1", agent="a")
    await ledger.threads.commit(
        Turn("r/1", 0, RunKey("r/1"), 0, 0, [NewMessage("assistant", '{"text":"hi"}')], state="{}")
    )
    await dispatched(ledger, request("0.0"), at())
    await dispatched(ledger, request("0.1", effect=Effect.IDEMPOTENT), at())
    await dispatched(ledger, request("0.2", effect=Effect.AT_MOST_ONCE), at())
    order = {"domain_key": "order", "effect": Effect.AT_MOST_ONCE, "effective_digest": "order"}
    unknown = await dispatched(ledger, request("0.3", **order), at())
    await ledger.park(unknown, "lost", over=False)
    done = await dispatched(ledger, request("0.4", domain_key="paid"), at())
    await ledger.record(done, Outcome.ok('{"id":1}'))
    with pytest.raises(IdempotencyKeyConflict):
        await ledger.claim(request("0.5", domain_key="paid", effective_digest="other"), at())
    by = at()
    await dispatched(ledger, request("0.6"), by)
    assert await ledger.hand_back(request("0.6"), by)
    assert isinstance(await ledger.claim(request("1.3", **order), at()), Parked)
    return unknown


async def test_the_rows_of_a_release_are_kept_by_the_next_migration_and_can_be_claimed(
    empty_url: str,
) -> None:
    await migrate(empty_url)
    async with ledger_pool(empty_url, size=2) as pool:
        unknown = await leave_one_of_each(ActionLedger(pool))
    before = everything_in(empty_url)

    applied = await migrate(empty_url, known=NEXT_RELEASE)

    assert applied == [2]
    assert everything_in(empty_url) == before
    assert {len(rows) for rows in before.values()} > {0, 1}
    async with ledger_pool(empty_url, size=2) as pool:
        ledger = ActionLedger(pool)
        await claim_what_is_left(ledger)
        await record_what_is_left(ledger, unknown)


async def claim_what_is_left(ledger: ActionLedger) -> None:
    for second in (1, 2):  # until the first attempt's deadline, not until that of this one
        found = await ledger.claim(request("0.0"), at(second))
        assert isinstance(found, LookUp)
        assert timedelta(minutes=2) < found.settles_in <= timedelta(minutes=3)
    sent_again = await dispatched(ledger, request("0.1"), at(1))
    assert sent_again.taken_over
    assert (await ledger.fail_try(sent_again)) == 1
    assert isinstance(await ledger.claim(request("0.2"), at(1)), Parked)
    unknown = await ledger.claim(request("0.3"), at(1))
    assert isinstance(unknown, Parked)
    assert unknown.action.parked_reason == "lost"
    done = await ledger.claim(request("0.4"), at(1))
    assert isinstance(done, AlreadyDone)
    assert done.action.recorded == Outcome.ok('{"id":1}')
    with pytest.raises(IdempotencyKeyConflict, match=r"was used by r/1:0\.4"):
        await ledger.claim(request("0.5"), at(1))
    assert not (await dispatched(ledger, request("0.6"), at(1))).taken_over


async def record_what_is_left(ledger: ActionLedger, unknown: Dispatched) -> None:
    """Record late, as an attempt of the release before does."""
    ended = Outcome.error(kind="ToolRefused", message="no", effect_possible=False)

    assert await ledger.record(unknown, ended) == ended

    pending = await ledger.threads.pending_notices("r/1")
    assert [(one.position, one.recorded) for one in pending] == [("0.3", ended), ("1.3", ended)]


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_every_query_of_this_release_fits_the_database_of_the_next_one(
    next_url: str, name: str
) -> None:
    numbers: dict[str, str] = {}
    without_comments = re.sub(r"--.*", "", QUERIES[name])
    numbered = re.sub(
        r"%\((\w+)\)[sb]",
        lambda found: numbers.setdefault(found[1], f"${len(numbers) + 1}"),
        without_comments,
    )
    queries = numbered.strip().removesuffix(";").split(";")

    with psycopg.connect(next_url) as connection:
        prepared = [connection.pgconn.prepare(b"", query.encode()) for query in queries]

    assert [one.error_message for one in prepared] == [b""] * len(queries)


async def test_a_worker_of_this_release_works_beside_one_of_the_next(next_url: str) -> None:
    async with ledger_pool(next_url, size=2) as pool:
        ledger = ActionLedger(pool)
        unknown = await leave_one_of_each(ledger)
        # A worker of the next release has written what this one does not know.
        ask(next_url, "update agent_actions set note = 'seen', priority = 7")
        ask(next_url, "update agent_runs set note = 'seen'")
        ask(next_url, "update agent_threads set note = 'seen'")
        run = await opened(ledger, 1)
        conversation = await ledger.threads.read(RunKey("r/1"), "r/1")
        await claim_what_is_left(ledger)
        await record_what_is_left(ledger, unknown)
        ended = await ledger.runs.end(RunKey("r/1"), attempt_at=NOON + timedelta(seconds=2))

    assert (run.state, run.thread_id, run.spec) == ("running", "r/1", '{"name":"a"}')
    assert [message.message for message in conversation.messages] == ['{"text":"hi"}']
    assert ended.state == "ended"
    assert ask(next_url, "select distinct note, priority from agent_actions") == [("seen", 7)]


async def test_a_worker_of_this_release_accepts_the_database_of_the_next(next_url: str) -> None:
    assert await check_schema(next_url) == 2
    assert await migrate(next_url) == []


@pytest.fixture
async def next_url(empty_url: str) -> str:
    """A database that the next release has migrated."""
    await migrate(empty_url, known=NEXT_RELEASE)
    return empty_url


async def test_workers_of_two_releases_that_start_at_once_apply_each_migration_once(
    empty_url: str,
) -> None:
    await migrate(empty_url)
    async with ledger_pool(empty_url, size=2) as pool:
        await leave_one_of_each(ActionLedger(pool))
    before = everything_in(empty_url)

    applied = await asyncio.gather(
        *(migrate(empty_url, known=known) for known in (NEXT_RELEASE, migrations()) * 3)
    )

    assert sorted(applied) == [[], [], [], [], [], [2]]
    assert everything_in(empty_url) == before
    assert ask(empty_url, "select version, name from agent_schema_migrations order by 1") == [
        *((one.version, one.name) for one in migrations()),
        (2, SECOND.name),
    ]


async def test_a_second_migration_that_fails_leaves_the_first_and_its_rows(
    empty_url: str,
) -> None:
    await migrate(empty_url)
    async with ledger_pool(empty_url, size=2) as pool:
        await leave_one_of_each(ActionLedger(pool))
    before = everything_in(empty_url)
    broken = SECOND._replace(sql=SECOND.sql + "; alter table agent_nothing add column x integer")

    with pytest.raises(psycopg.errors.UndefinedTable, match="agent_nothing"):
        await migrate(empty_url, known=[*migrations(), broken])

    assert tables(empty_url) == set(CONSTRAINTS)
    assert everything_in(empty_url) == before
    assert await check_schema(empty_url) == 1
    assert await migrate(empty_url, known=NEXT_RELEASE) == [2]


# --- Databases of another line of migrations ----------------------------------------------

EARLIER_NAMES: Final = ["0001_runs_actions_completions.sql", "0002_settlements.sql"]
"""Of the numbering before 0.1.0, which had eleven migrations."""


@pytest.fixture
def earlier_url(empty_url: str) -> str:
    """A database as it was made before 0.1.0, as far as the numbering goes."""
    ask(
        empty_url,
        "create table agent_schema_migrations (version integer not null primary key, "
        "name text not null, applied_at timestamptz not null default now())",
    )
    ask(empty_url, "create table agent_completions (run_key text)")
    for number, name in enumerate(EARLIER_NAMES, 1):
        ask(
            empty_url,
            "insert into agent_schema_migrations (version, name) values (%(number)s, %(name)s)",
            number=number,
            name=name,
        )
    return empty_url


async def test_a_database_of_the_earlier_numbering_is_refused_by_name_and_left_as_it_is(
    earlier_url: str,
) -> None:
    for work in (migrate, check_schema):
        with pytest.raises(SchemaMismatch) as refused:
            await work(earlier_url)

        assert refused.value.message == (
            "the database was made by other migrations: its number 1 is "
            "0001_runs_actions_completions.sql, this code's is 0001_schema.sql; "
            "nothing was changed"
        )
        assert "delete its folder `.commitline`" in refused.value.remedy
        assert "drop the database" in refused.value.remedy

    assert tables(earlier_url) == {"agent_schema_migrations", "agent_completions"}
    assert ask(earlier_url, "select name from agent_schema_migrations order by version") == [
        (name,) for name in EARLIER_NAMES
    ]


def test_the_command_says_how_to_begin_anew(earlier_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from commitline.cli import main; main()", "migrate"],
        env={**os.environ, "COMMITLINE_DATABASE_URL": earlier_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    shown = " ".join((done.stdout + done.stderr).split())
    assert "0001_runs_actions_completions.sql" in shown
    assert ".commitline" in shown
    assert "drop the database" in shown


# --- The schema ---------------------------------------------------------------------------


async def test_migrating_holds_no_lock_afterwards(empty_url: str) -> None:
    await migrate(empty_url)

    assert ask(empty_url, "select count(*) from pg_locks where locktype = 'advisory'") == [(0,)]


def test_migrating_up_gives_the_stated_schema(database_url: str) -> None:
    constraints = ask(
        database_url,
        "select conrelid::regclass::text, array_agg(conname::text order by conname) "
        "from pg_constraint where connamespace = 'public'::regnamespace and contype <> 'n' "
        "group by 1",
    )
    indexes = ask(
        database_url, "select indexname from pg_indexes where schemaname = 'public' order by 1"
    )

    assert dict(constraints) == CONSTRAINTS
    assert [name for (name,) in indexes] == INDEXES


def test_a_message_in_python_has_the_columns_of_its_table_but_for_what_hides_it(
    database_url: str,
) -> None:
    columns = ask(
        database_url,
        "select column_name from information_schema.columns where table_name = 'agent_messages'",
    )

    found = {name for (name,) in columns} - {field.name for field in fields(StoredMessage)}

    # Only what a fork has not taken back is read; its thread is the one that was asked for.
    assert found == {"thread_id", "superseded_at"}


def test_every_constraint_has_the_name_that_a_migration_gives_it(database_url: str) -> None:
    written = {
        name
        for _, _, text in migrations()
        for name in re.findall(r"^\s*(?:add )?constraint (\w+)", text, re.MULTILINE)
    }

    found = ask(
        database_url,
        "select conname from pg_constraint where connamespace = 'public'::regnamespace "
        "and contype <> 'n' and conname <> 'agent_schema_migrations_pkey'",
    )

    assert {name for (name,) in found} == written


@pytest.mark.parametrize(
    ("row", "table"),
    [
        (Action, "agent_actions"),
        (Run, "agent_runs"),
        (Thread, "agent_threads"),
        (Approval, "agent_approvals"),
        (Question, "agent_questions"),
        (RelayEntry, "agent_relay"),
    ],
)
def test_a_row_in_python_has_the_columns_of_its_table(
    database_url: str, row: type[Any], table: str
) -> None:
    columns = ask(
        database_url,
        "select column_name from information_schema.columns where table_name = %(table)s",
        table=table,
    )

    # `now` is the database's clock when the row was read.
    # When the relay looked, and what it found, is between its sweeps.
    found = {name for (name,) in columns} - {"looked_at", "cleared_at"}
    # By these alone a relay finds what it may take.
    found -= {"namespace", "waits_for"} if row is RelayEntry else set()
    # By this alone a statement judges whether an attempt before this one may still send.
    found -= {"others_may_send"} if row is Action else set()
    # An approval and a question have the workflow id of their run, and whether that is over.
    of_run = {"workflow_id", "run_over"} if row in (Approval, Question) else set()
    others = {"now"} | of_run
    assert found == {field.name for field in fields(row)} - others


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("agent_actions_effect_is_known", {effect.value for effect in Effect} - {"read"}),
        ("agent_actions_status_is_known", set(get_args(ActionStatus))),
        ("agent_actions_outcome_is_known", set(get_args(OutcomeKind))),
        ("agent_runs_state_is_known", set(get_args(RunState))),
        ("agent_messages_role_is_known", set(get_args(MessageRole))),
        ("agent_relay_why_is_known", set(get_args(RelayTask))),
    ],
)
def test_python_and_postgres_know_the_same_values(
    database_url: str, constraint: str, values: set[str]
) -> None:
    ((definition,),) = ask(
        database_url,
        "select pg_get_constraintdef(oid) from pg_constraint where conname = %(constraint)s",
        constraint=constraint,
    )

    assert set(re.findall(r"'(\w+)'", definition)) == values


def test_migrations_are_numbered_without_a_gap_and_none_is_overlooked() -> None:
    folder = files("commitline.ledger.sql") / "migrations"
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("__"))

    assert all(re.fullmatch(r"\d{4}_[a-z0-9_]+\.sql", name) for name in names)
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert [(number, name) for number, name, _ in migrations()] == [
        (int(name[:4]), name) for name in names
    ]


async def test_an_empty_database_is_refused(empty_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"has schema 0, this code needs {VERSIONS[-1]}"):
        await check_schema(empty_url)

    assert tables(empty_url) == set()


async def test_an_older_database_is_refused(database_url: str) -> None:
    ask(database_url, "delete from agent_schema_migrations")

    with pytest.raises(SchemaMismatch) as refused:
        await check_schema(database_url)

    assert refused.value.message == (
        f"the database has schema {VERSIONS[-1] - 1}, this code needs {VERSIONS[-1]}"
    )


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_database_that_is_not_in_utf8_is_refused_by_name(
    devstack: DevStack, encoding: str
) -> None:
    name = f"encoded_{uuid.uuid4().hex}"
    url = urlsplit(devstack.database_url)._replace(path=f"/{name}").geturl()
    made = sql.SQL("create database {} encoding {} template template0 locale 'C'")
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(made.format(sql.Identifier(name), sql.Literal(encoding)))

        for looks in (migrate(url), check_schema(url), commits_at_risk(url)):
            with pytest.raises(SchemaMismatch, match=f"the database is in {encoding}") as refused:
                await looks
            assert "encoding 'UTF8' template template0" in refused.value.remedy

        connection.execute(sql.SQL("drop database {}").format(sql.Identifier(name)))


async def test_whatever_encoding_a_database_has_for_its_clients_every_text_is_kept(
    empty_url: str,
) -> None:
    name = sql.Identifier(urlsplit(empty_url).path[1:])
    with psycopg.connect(empty_url, autocommit=True) as connection:
        connection.execute(sql.SQL("alter database {} set client_encoding = 'LATIN1'").format(name))
    await migrate(empty_url)

    async with ledger_pool(empty_url, size=1) as pool, pool.connection() as connection:
        cursor = await connection.execute("select %s::text as text", ("заказ №1",))
        found = await cursor.fetchone()

    assert found == {"text": "заказ №1"}


async def test_a_newer_database_is_worked_with_and_left_as_it_is(database_url: str) -> None:
    ask(database_url, "insert into agent_schema_migrations values (9999, '9999_newer.sql')")

    version = await check_schema(database_url)
    applied = await migrate(database_url)

    assert version == 9999
    assert applied == []


async def test_a_database_that_cannot_be_reached_is_unavailable(empty_url: str) -> None:
    nowhere = urlsplit(empty_url)._replace(path="/nowhere").geturl()

    for work in (migrate(nowhere), check_schema(nowhere)):
        with pytest.raises(LedgerUnavailable, match="no database: "):
            await work
