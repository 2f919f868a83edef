"""Migrations: many workers at once, one that is killed, and the schema that comes of it."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, LiteralString, cast, get_args
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import DictRow, dict_row

from commitline.devstack import DevStack
from commitline.errors import IdempotencyKeyConflict, LedgerUnavailable, SchemaMismatch
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Dispatched,
    Effect,
    LookUp,
    Outcome,
    Owned,
    Parked,
    Run,
    StoredMessage,
    Thread,
    check_schema,
    ledger_pool,
    migrate,
)
from commitline.ledger.records import ActionStatus, OutcomeKind, RunState
from commitline.ledger.sql import migrations
from commitline.ledger.threads import MessageRole

VERSIONS = [number for number, _, _ in migrations()]

CONSTRAINTS = {
    "agent_runs": [
        "agent_runs_ended_says_when",
        "agent_runs_fork_says_where",
        "agent_runs_parent_exists",
        "agent_runs_pkey",
        "agent_runs_state_is_known",
        "agent_runs_stop_says_why",
        "agent_runs_sub_agent_has_an_owner",
        "agent_runs_undo_is_final",
        "agent_runs_undo_ended_had_begun",
    ],
    "agent_actions": [
        "agent_actions_a_receipt_changes_nothing",
        "agent_actions_changes_come_with_an_outcome",
        "agent_actions_decision_is_signed",
        "agent_actions_dispatch_is_complete",
        "agent_actions_done_is_complete",
        "agent_actions_effect_is_known",
        "agent_actions_failures_count_from_zero",
        "agent_actions_generation_counts_from_one",
        "agent_actions_ok_had_its_effect",
        "agent_actions_one_per_position",
        "agent_actions_outcome_is_known",
        "agent_actions_parked_is_pending",
        "agent_actions_parked_says_why",
        "agent_actions_pkey",
        "agent_actions_run_exists",
        "agent_actions_status_is_known",
        "agent_actions_told_in_a_version_what_was_settled",
        "agent_actions_told_what_was_settled",
        "agent_actions_undoes_another",
    ],
    "agent_approvals": [
        "agent_approvals_decision_is_known",
        "agent_approvals_decision_is_signed",
        "agent_approvals_edits_are_approved",
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
    ],
    "agent_completions": [
        "agent_completions_pkey",
        "agent_completions_run_exists",
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
    "agent_schema_migrations": ["agent_schema_migrations_pkey"],
}
INDEXES = [
    "agent_actions_claimed_for_another",
    "agent_actions_one_per_position",
    "agent_actions_open_unknown",
    "agent_actions_parked",
    "agent_actions_pkey",
    "agent_actions_repeats",
    "agent_actions_settled",
    "agent_actions_undoing",
    "agent_approvals_by_run",
    "agent_approvals_pkey",
    "agent_approvals_waiting",
    "agent_completions_pkey",
    "agent_domain_keys_pkey",
    "agent_messages_one_completion_per_turn",
    "agent_messages_one_per_request",
    "agent_messages_pkey",
    "agent_questions_by_run",
    "agent_questions_pkey",
    "agent_questions_waiting",
    "agent_relay_due",
    "agent_relay_in_order",
    "agent_relay_pkey",
    "agent_requests_pkey",
    "agent_runs_by_parent",
    "agent_runs_by_workflow",
    "agent_runs_open",
    "agent_runs_pkey",
    "agent_schema_migrations_pkey",
    "agent_states_pkey",
    "agent_threads_pkey",
    "agent_values_by_thread",
    "agent_values_pkey",
]


@pytest.fixture
def empty_url(devstack: DevStack) -> Iterator[str]:
    """A database without anything in it."""
    name = f"empty_{uuid.uuid4().hex}"
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    yield urlsplit(devstack.database_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(devstack.database_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


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


async def test_six_workers_that_start_at_once_apply_each_migration_once(empty_url: str) -> None:
    for _ in range(20):
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

    with pytest.raises(
        psycopg.errors.DuplicateTable, match='relation "agent_actions" already exists'
    ):
        await migrate(empty_url)

    assert tables(empty_url) == {"agent_actions"}


async def test_migrating_again_does_nothing_and_keeps_what_is_there(database_url: str) -> None:
    ask(
        database_url,
        "insert into agent_runs (run_key, workflow_id, agent, input_digest, opened_attempt_at) "
        "values ('r/1', 'r', 'a', 'i', now())",
    )

    applied = await migrate(database_url)

    assert applied == []
    assert ask(database_url, "select run_key from agent_runs") == [("r/1",)]


def migrate_to(url: str, newest: int) -> None:
    """Bring an empty database to where an older release left it."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "create table agent_schema_migrations (version integer not null primary key, "
            "name text not null, applied_at timestamptz not null default now())"
        )
        for version, name, text in migrations():
            if version <= newest:
                connection.execute(text)
                connection.execute(
                    "insert into agent_schema_migrations (version, name) values (%s, %s)",
                    (version, name),
                )


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD_ROWS: LiteralString = """
insert into agent_runs (run_key, workflow_id, agent, input_digest, opened_attempt_at)
values ('r/1', 'r', 'a', 'i', %(noon)s);
insert into agent_domain_keys values ('order', 1, 'r/1:0.3');
insert into agent_actions (
    key, run_key, position, tool, args, effect, requested_digest, effective_digest,
    idempotency_key, domain_key, claim_token, claimed_by, attempt_at, lease_until, tries,
    dispatched_at, status, outcome, effect_possible, result, done_at, parked_at, parked_reason,
    duplicate_of)
select 'r/1:' || position, 'r/1', position, 'ship', '{"n":1}', effect, 'd', 'd' || position,
       case when duplicate_of is null then 'key-' || position end, domain_key,
       case when tries > 0 then %(token)s::uuid end,
       case when tries > 0 then 'r/1:' || position end,
       case when tries > 0 then %(noon)s end,
       case when tries > 0 then now() + interval '2 minutes' end, tries,
       case when tries > 0 then now() - interval '1 minute' end,
       case when outcome is null then 'pending' else 'done' end, outcome, outcome = 'ok',
       case outcome when 'ok' then '{"id":1}'
                    when 'error' then '{"type":"Conflict","message":"it stands"}' end::json,
       case when outcome is not null then now() end,
       case when parked is not null then now() end, parked, duplicate_of
  from (values
    ('0.0', 'lookup',       1, null,    null,   null,   null),
    ('0.1', 'idempotent',   2, null,    null,   null,   null),
    ('0.2', 'at_most_once', 1, null,    null,   null,   null),
    ('0.3', 'at_most_once', 1, null,    'lost', null,   'order'),
    ('0.4', 'idempotent',   1, 'ok',    null,   null,   null),
    ('0.5', 'idempotent',   0, 'error', null,   'r/1:0.4', null),
    ('0.6', 'lookup',       0, null,    null,   null,   null),
    ('1.3', 'at_most_once', 0, null,    'the same', 'r/1:0.3', 'order')
  ) as old (position, effect, tries, outcome, parked, duplicate_of, domain_key)
"""


def old_action(position: str) -> ActionRequest:
    return ActionRequest(
        run_key=RunKey("r/1"),
        position=Position(position),
        tool="ship",
        args='{"n":1}',
        effect=Effect.LOOKUP,  # newer code; the row's own counts
        requested_digest="d",
        effective_digest=f"d{position}",
        can_look_up=True,
        settles_after=timedelta(minutes=1),
    )


async def test_what_an_older_release_left_is_kept_and_can_be_claimed(empty_url: str) -> None:
    migrate_to(empty_url, 2)
    token = uuid.uuid4()
    with psycopg.connect(empty_url, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(OLD_ROWS, {"noon": NOON, "token": token})
    columns = ", ".join(
        name
        for (name,) in ask(
            empty_url,
            "select column_name from information_schema.columns "
            "where table_name = 'agent_actions' order by ordinal_position",
        )
    )
    everything = sql.SQL("select {} from agent_actions order by key").format(sql.SQL(columns))
    with psycopg.connect(empty_url) as connection:
        before = connection.execute(everything).fetchall()

    assert await migrate(empty_url) == [version for version in VERSIONS if version > 2]

    with psycopg.connect(empty_url) as connection:
        assert connection.execute(everything).fetchall() == before
    assert ask(
        empty_url,
        "select distinct failures, sent_until, asking, in_progress, settled_at, notified_step, "
        "notified_version from agent_actions",
    ) == [(0, None, False, False, None, None, None)]
    async with ledger_pool(empty_url, size=2) as pool:
        ledger = ActionLedger(pool)
        await claim_what_is_old(ledger)
        assert await ledger.take_notices(RunKey("r/1"), 3) == []
        await record_what_is_old(ledger, token)


def later(second: int = 1) -> Attempt:
    return Attempt(NOON + timedelta(seconds=second), uuid.uuid4(), timedelta(hours=1))


async def claim_what_is_old(ledger: ActionLedger) -> None:
    for second in (1, 2):  # its lease, whoever asks, and not the lease of who asked last
        asked = await ledger.claim(old_action("0.0"), later(second))
        assert isinstance(asked, LookUp)
        assert timedelta(minutes=2) < asked.settles_in <= timedelta(minutes=3)
    sent_again = await ledger.claim(old_action("0.1"), later())
    assert isinstance(sent_again, Dispatched)
    assert (sent_again.taken_over, sent_again.idempotency_key) == (True, "key-0.1")
    assert (await ledger.fail_try(sent_again)) == 1
    lost = await ledger.claim(old_action("0.2"), later())
    assert isinstance(lost, Parked)
    unknown = await ledger.claim(old_action("0.3"), later())
    assert isinstance(unknown, Parked)
    assert unknown.action.parked_reason == "lost"
    done = await ledger.claim(old_action("0.4"), later())
    assert isinstance(done, AlreadyDone)
    assert done.action.recorded == Outcome.ok('{"id":1}')
    with pytest.raises(IdempotencyKeyConflict, match="it stands"):
        await ledger.claim(old_action("0.5"), later())
    intent = await ledger.claim(old_action("0.6"), later())
    assert isinstance(intent, Dispatched)
    assert not intent.taken_over


async def record_what_is_old(ledger: ActionLedger, token: uuid.UUID) -> None:
    """Have an attempt that the older release began tell its outcome late."""
    claim = Owned(ActionKey("r/1:0.3"), token, "order")
    ended = Outcome.error(kind="ToolRefused", message="no", effect_possible=False)

    assert await ledger.record(claim, ended) == ended

    told = await ledger.take_notices(RunKey("r/1"), 3)
    assert [(one.position, one.recorded) for one in told] == [("0.3", ended), ("1.3", ended)]


PREVIOUS = (Path(__file__).parent / "queries_of_0003.sql").read_text(encoding="utf-8")
"""The queries of the release before migration 0004."""


def previous_queries() -> dict[str, LiteralString]:
    found: list[tuple[str, Any]] = re.findall(
        r"^-- ([a-z_]+): .*?\n(.*?)(?=^-- [a-z_]+: |\Z)", PREVIOUS, re.MULTILINE | re.DOTALL
    )
    return {name: cast("LiteralString", text) for name, text in found}


class PreviousRelease:
    """A worker of the release before, as far as the database sees it."""

    def __init__(self, url: str) -> None:
        self._url = url

    def does(self, query: str, **parameters: Any) -> DictRow | None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            cursor = connection.cursor(row_factory=dict_row)
            cursor.execute(previous_queries()[query], parameters)
            return None if cursor.description is None else cursor.fetchone()

    def opens(self, run_key: str) -> DictRow | None:
        return self.does(
            "open_run",
            run_key=run_key,
            workflow_id="r",
            agent="a",
            input_digest="i",
            attempt_at=NOON,
        )

    def claims(self, query: str, at: str, token: uuid.UUID, **given: Any) -> DictRow | None:
        usual = {
            "key": f"r/1:{at}",
            "tool": "ship",
            "args": "{}",
            "run_key": "r/1",
            "position": at,
            "thread_id": None,
            "idempotency_key": f"key-{at}",
            "domain_key": None,
            "generation": 1,
            "effect": "at_most_once",
            "key_ttl": None,
            "requested_digest": "d",
            "effective_digest": "d",
            "token": token,
            "attempt_at": NOON,
            "lease": timedelta(minutes=1),
            "deadline": timedelta(seconds=30),
        }
        return self.does(query, **(usual | given))

    def records(self, at: str, token: uuid.UUID) -> DictRow | None:
        return self.does(
            "record",
            key=f"r/1:{at}",
            token=token,
            outcome="ok",
            effect_possible=True,
            result='{"id":1}',
        )

    def parks(self, at: str, token: uuid.UUID) -> DictRow | None:
        return self.does(
            "park", key=f"r/1:{at}", token=token, reason="lost", over=True, failures=None
        )


def test_the_previous_releases_queries_are_all_there() -> None:
    assert len(previous_queries()) == 33
    assert {"open_run", "claim_new", "record", "mark_notified"} <= set(previous_queries())


@pytest.mark.parametrize("name", sorted(previous_queries()))
def test_every_query_of_the_previous_release_fits_the_migrated_database(
    database_url: str, name: str
) -> None:
    numbers: dict[str, str] = {}
    query = re.sub(
        r"%\((\w+)\)s",
        lambda found: numbers.setdefault(found[1], f"${len(numbers) + 1}"),
        previous_queries()[name],
    )

    with psycopg.connect(database_url) as connection:
        prepared = connection.pgconn.prepare(b"", query.encode())

    assert prepared.error_message == b""


async def test_a_worker_of_the_previous_release_works_beside_a_new_one(database_url: str) -> None:
    old, token = PreviousRelease(database_url), uuid.uuid4()

    opened = old.opens("r/1")
    assert opened is not None
    assert (opened["state"], opened["spec"], opened["thread_id"]) == ("running", None, None)
    assert old.claims("claim_new", "0.0", token, domain_key="order") == {"key": "r/1:0.0"}
    assert old.records("0.0", token) == {"key": "r/1:0.0"}
    inserted = old.claims("insert_dispatched", "0.1", token)
    assert inserted is not None
    assert inserted["tries"] == 1
    assert old.records("0.1", token) == {"key": "r/1:0.1"}
    assert old.claims("claim_new", "0.2", token) == {"key": "r/1:0.2"}
    parked = old.parks("0.2", token)
    assert parked is not None
    assert parked["parked_reason"] == "lost"
    same = {"run_key": "r/1", "tool": "ship", "effective_digest": "d", "position": "1.0"}
    unknown = old.does("open_unknown", **same)
    assert unknown is not None
    assert unknown["key"] == "r/1:0.2"
    assert old.claims("claim_new", "1.0", token) is None
    completion = {"run_key": "r/1", "step": 0, "completion": '{"text":"hi"}'}
    assert old.does("record_completion", **completion) == {"completion": '{"text":"hi"}'}
    ended = old.does("end_run", run_key="r/1", attempt_at=NOON + timedelta(seconds=1))
    assert ended is not None
    assert ended["state"] == "ended"


async def test_a_new_worker_goes_on_with_what_one_of_the_previous_release_has_begun(
    database_url: str,
) -> None:
    old, token = PreviousRelease(database_url), uuid.uuid4()
    old.opens("r/1")
    old.does("record_completion", run_key="r/1", step=0, completion="{}")
    old.claims("claim_new", "0.0", token)
    old.parks("0.0", token)
    old.claims("claim_new", "0.1", token, effective_digest="other")
    old.records("0.1", token)
    request = replace(old_action("0.1"), args="{}", effective_digest="other")

    async with ledger_pool(database_url, size=2) as pool:
        ledger = ActionLedger(pool)
        opened = await open_again(ledger, "r/1")
        done = await ledger.claim(request, later(1))
        repeated = await ledger.claim(
            replace(request, position=Position("1.0"), effective_digest="d"), later(1)
        )

    # Its turns go on as they began; see `earlier_runs`.
    assert (opened.state, opened.spec) == ("running", None)
    assert isinstance(done, AlreadyDone)
    assert isinstance(repeated, Parked)
    assert repeated.action.duplicate_of == "r/1:0.0"


async def test_a_run_that_was_opened_and_had_no_turn_yet_keeps_a_conversation_from_then_on(
    database_url: str,
) -> None:
    PreviousRelease(database_url).opens("r/1")

    async with ledger_pool(database_url, size=2) as pool:
        opened = await open_again(ActionLedger(pool), "r/1")

    assert (opened.thread_id, opened.spec) == ("r/1", '{"name":"a"}')


async def test_a_worker_of_the_previous_release_claims_in_a_run_that_a_new_one_has_opened(
    database_url: str,
) -> None:
    old, token = PreviousRelease(database_url), uuid.uuid4()

    async with ledger_pool(database_url, size=2) as pool:
        ledger = ActionLedger(pool)
        kept = await open_again(ledger, "r/1")
        again = old.opens("r/1")
        claimed = old.claims("claim_new", "0.0", token)
        recorded = old.records("0.0", token)
        request = replace(old_action("0.0"), args="{}", effective_digest="d")
        done = await ledger.claim(request, later(1))

    assert again is not None
    assert again["thread_id"] == kept.thread_id == "r/1"
    assert claimed == recorded == {"key": "r/1:0.0"}
    assert isinstance(done, AlreadyDone)
    assert done.action.recorded == Outcome.ok('{"id":1}')


async def open_again(ledger: ActionLedger, run_key: str) -> Run:
    """Open a run as this release does."""
    return await ledger.open_run(
        run_key=RunKey(run_key),
        workflow_id="r",
        agent="a",
        input_digest="i",
        attempt_at=NOON + timedelta(seconds=1),
        thread_id=run_key,
        spec='{"name":"a"}',
    )


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
    ],
)
def test_a_row_in_python_has_the_columns_of_its_table(
    database_url: str, row: type[Action] | type[Run] | type[Thread], table: str
) -> None:
    columns = ask(
        database_url,
        "select column_name from information_schema.columns where table_name = %(table)s",
        table=table,
    )

    # `now` is the database's clock when the row was read.
    # When the relay looked is between its sweeps.
    found = {name for (name,) in columns} - {"looked_at"}
    assert found == {field.name for field in fields(row)} - {"now"}


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("agent_actions_effect_is_known", {effect.value for effect in Effect} - {"read"}),
        ("agent_actions_status_is_known", set(get_args(ActionStatus))),
        ("agent_actions_outcome_is_known", set(get_args(OutcomeKind))),
        ("agent_runs_state_is_known", set(get_args(RunState))),
        ("agent_messages_role_is_known", set(get_args(MessageRole))),
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
    ask(
        database_url,
        "delete from agent_schema_migrations where version = %(newest)s",
        newest=VERSIONS[-1],
    )

    with pytest.raises(SchemaMismatch) as refused:
        await check_schema(database_url)

    assert refused.value.message == (
        f"the database has schema {VERSIONS[-1] - 1}, this code needs {VERSIONS[-1]}"
    )


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
