"""Connections: few, held for a statement, replaced when they break, without a memory."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow, dict_row

from commitline.errors import LedgerUnavailable, Unstorable
from commitline.identity import RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    Busy,
    Dispatched,
    Outcome,
    ledger_pool,
    migrate,
)
from commitline.ledger.pool import PREPARE_AFTER, Pool
from commitline.tests.builders import DECLINED, action_request, attempt, dispatched, open_run

RUN = RunKey("support-4821/e1")
KEY_DATA = re.compile(rb"(K\0\0\0\x0c)....", re.DOTALL)
"""Postgres's message with a session's process id, by which a client cancels what it requested."""


def action(position: str = "0.0", *, domain_key: str | None = None) -> ActionRequest:
    return action_request(RUN, position, tool="charge_card", domain_key=domain_key)


UNUSUAL = {
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Asia/Kathmandu",
    "client_encoding": "latin1",
    "bytea_output": "escape",
    "extra_float_digits": "-10",
    "standard_conforming_strings": "off",
}
"""How a database may write values by default, besides ISO and UTF-8."""


class Observer:
    """A session of the test's own, outside the pool."""

    def __init__(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        self._connection = connection

    async def ask(self, statement: LiteralString) -> list[Mapping[str, Any]]:
        cursor = await self._connection.execute(statement)
        return list(await cursor.fetchall())

    async def alter(self, statement: LiteralString) -> None:
        await self._connection.execute(statement)

    async def states(self) -> list[str]:
        """What the ledger's sessions are doing."""
        rows = await self.ask(
            "select state from pg_stat_activity "
            "where datname = current_database() and application_name = 'commitline'"
        )
        return [row["state"] for row in rows]

    async def until(self, condition: LiteralString) -> None:
        """Return when it holds for one of the ledger's sessions."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = await self.ask(
                "select 1 from pg_stat_activity where datname = current_database() "
                "and application_name = 'commitline' and " + condition
            )
            if found:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"no session with {condition}")

    async def kill(self, condition: LiteralString) -> int:
        """Terminate the ledger's sessions for which it holds; return how many."""
        rows = await self.ask(
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity where "
            "datname = current_database() and application_name = 'commitline' and " + condition
        )
        return len(rows)

    @asynccontextmanager
    async def holding(self, statement: LiteralString) -> AsyncIterator[None]:
        """Keep the locks of a statement, uncommitted."""
        async with self._connection.transaction():
            await self._connection.execute(statement)
            yield


@pytest_asyncio.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """Two connections, both open. They wait for the locks that the tests hold."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        wait = sql.SQL("alter database {} set commitline.lock_timeout = '1min'")
        connection.execute(wait.format(sql.Identifier(connection.info.dbname)))
    async with ledger_pool(database_url, size=2) as pool:
        await pool.resize(2, 2)
        await pool.wait()
        yield pool


@pytest_asyncio.fixture
async def ledger(pool: Pool) -> ActionLedger:
    """A ledger over the two, with one run."""
    ledger = ActionLedger(pool)
    await open_run(ledger, RUN)
    return ledger


@pytest_asyncio.fixture
async def observer(database_url: str) -> AsyncIterator[Observer]:
    """A session that watches and disturbs the ledger's."""
    async with await psycopg.AsyncConnection[DictRow].connect(
        database_url, autocommit=True, row_factory=dict_row
    ) as connection:
        yield Observer(connection)


async def use_both(pool: Pool) -> list[int]:
    """Take both connections at once and use each."""
    async with pool.connection() as one, pool.connection() as other:
        return [
            (await (await connection.execute("select 1 as one")).fetchall())[0]["one"]
            for connection in (one, other)
        ]


async def test_two_connections_serve_forty_tools_that_are_at_work_at_the_same_time(
    ledger: ActionLedger, pool: Pool, observer: Observer
) -> None:
    all_at_work = asyncio.Barrier(41)

    async def one(call: int) -> Outcome:
        claim = await dispatched(ledger, action(f"0.{call}"), attempt())
        async with all_at_work:  # passed only if nobody holds a connection in here
            pass
        await asyncio.sleep(0.3)
        return await ledger.record(claim, Outcome.ok(str(call)))

    actions = asyncio.gather(*(one(call) for call in range(40)))
    async with all_at_work:
        states = await observer.states()
        available = pool.get_stats()["pool_available"]
    recorded = await actions

    assert states == ["idle", "idle"]
    assert available == 2
    assert [outcome.result for outcome in recorded] == [str(call) for call in range(40)]
    stats = pool.get_stats()
    assert stats.get("requests_errors", 0) == 0
    assert stats.get("returns_bad", 0) == 0
    assert stats["pool_size"] == 2


async def test_cancels_at_any_moment_leave_two_usable_connections_and_no_open_transaction(
    ledger: ActionLedger, pool: Pool, observer: Observer
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def one(call: int, second: int) -> Outcome:
        request = action(f"0.{call}", domain_key=f"order-{call % 10}")
        claim = await ledger.claim(request, attempt(second))
        if isinstance(claim, Dispatched):
            await asyncio.sleep(chance.random() / 200)
            return await ledger.record(claim, DECLINED)
        return DECLINED

    tasks = []
    for call in range(50):
        task = asyncio.create_task(one(call, 0))
        asyncio.get_running_loop().call_later(chance.random() / 20, task.cancel)
        tasks.append(task)
    ended = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(
        outcome == DECLINED or isinstance(outcome, asyncio.CancelledError) for outcome in ended
    )
    assert await use_both(pool) == [1, 1]
    assert await observer.states() == ["idle", "idle"]
    assert pool.get_stats().get("requests_waiting", 0) == 0
    # Whoever comes next, one by one, finds every action either done or free to be taken over.
    later = [await one(call, 1) for call in range(50)]
    assert later == [DECLINED] * 50


async def test_a_cancelled_claim_is_seen_through_so_that_it_can_be_handed_back(
    ledger: ActionLedger, observer: Observer
) -> None:
    request, by = action(), attempt()
    async with observer.holding("select from agent_runs for update"):
        claiming = asyncio.create_task(ledger.claim(request, by))
        await observer.until("wait_event_type = 'Lock'")
        claiming.cancel()
        claiming.cancel()

    with pytest.raises(asyncio.CancelledError):
        await claiming

    stored = await ledger.get(request.key)
    assert stored is not None
    assert stored.claim_token == by.token
    assert await ledger.hand_back(request, by)


async def test_connections_killed_while_a_model_thinks_are_not_noticed(
    ledger: ActionLedger, pool: Pool, observer: Observer
) -> None:
    assert await observer.kill("true") == 2
    claim = await dispatched(ledger, action(), attempt())
    await use_both(pool)
    assert await observer.kill("true") == 2

    recorded = await ledger.record(claim, Outcome.ok("1"))

    assert recorded == Outcome.ok("1")
    assert await use_both(pool) == [1, 1]


async def test_a_connection_killed_in_mid_claim_costs_no_second_row_and_no_error(
    ledger: ActionLedger, observer: Observer
) -> None:
    async with observer.holding("select from agent_runs for update"):
        claiming = asyncio.create_task(ledger.claim(action(domain_key="order"), attempt()))
        await observer.until("wait_event_type = 'Lock'")
        assert await observer.kill("wait_event_type = 'Lock'") == 1
        await observer.until("wait_event_type = 'Lock'")  # it has come back by itself

    claim = await claiming

    assert isinstance(claim, Dispatched)
    assert [found.tries for found in await ledger.list()] == [1]


async def test_a_connection_killed_in_mid_record_costs_no_outcome(
    ledger: ActionLedger, observer: Observer
) -> None:
    claim = await dispatched(ledger, action(domain_key="order"), attempt())
    async with observer.holding("select from agent_actions for update"):
        recording = asyncio.create_task(ledger.record(claim, DECLINED))
        await observer.until("wait_event_type = 'Lock'")
        assert await observer.kill("wait_event_type = 'Lock'") == 1
        await observer.until("wait_event_type = 'Lock'")

    recorded = await recording
    anew = await dispatched(ledger, action("1.0", domain_key="order"), attempt(1))

    assert recorded == DECLINED
    assert anew.idempotency_key == "order~2"


async def test_a_connection_to_a_demoted_primary_is_dropped(
    ledger: ActionLedger, pool: Pool, observer: Observer
) -> None:
    async with pool.connection() as one, pool.connection() as other:
        for connection in (one, other):
            await connection.execute("set default_transaction_read_only = on")

    claim = await ledger.claim(action(), attempt())

    assert isinstance(claim, Dispatched)
    assert [found.tries for found in await ledger.list()] == [1]


@pytest.mark.parametrize("method", ["claim", "record", "park"])
async def test_a_statement_that_is_not_answered_is_given_up_and_the_pool_stays_usable(
    ledger: ActionLedger, pool: Pool, observer: Observer, method: str
) -> None:
    request = action(domain_key="order")
    claim = await dispatched(ledger, request, attempt())
    hasty = ActionLedger(pool, statement_seconds=0.2)
    works: dict[str, Callable[[], Awaitable[object]]] = {
        "claim": lambda: hasty.claim(request, attempt(1)),
        "record": lambda: hasty.record(claim, DECLINED),
        "park": lambda: hasty.park(claim, "lost"),
    }

    async with observer.holding("select from agent_actions for update"):
        with pytest.raises(LedgerUnavailable, match=r"did not answer within 0\.2 s"):
            await works[method]()
        usable = await use_both(pool)

    assert usable == [1, 1]
    assert [state for state in await observer.states() if state != "idle"] == []
    stored = await ledger.get(request.key)
    assert stored is not None
    assert (stored.state, stored.tries) == ("dispatched", 1)
    assert await ledger.record(claim, Outcome.ok("1")) == Outcome.ok("1")


@pytest.mark.parametrize("text", ["a\x00b", "caf\udce9"], ids=["nul", "surrogate"])
async def test_what_postgres_cannot_hold_is_refused_for_good_and_the_pool_stays_usable(
    ledger: ActionLedger, pool: Pool, text: str
) -> None:
    for refused in (
        ledger.claim(action(domain_key=text), attempt()),
        ledger.runs.get(RunKey(text)),
        ledger.approvals.list(RunKey(text)),
    ):
        with pytest.raises(Unstorable, match="CL220") as found:
            await refused
        assert not found.value.retryable
    usable = await use_both(pool)

    assert usable == [1, 1]
    assert await ledger.list() == []


async def test_a_date_that_cannot_be_read_back_is_refused_for_good(
    ledger: ActionLedger, pool: Pool
) -> None:
    await dispatched(ledger, action(), attempt())
    async with pool.connection() as connection:
        await connection.execute("update agent_actions set created_at = '20000-01-01'")

    with pytest.raises(Unstorable, match="year"):
        await ledger.list()


async def test_a_pool_that_others_use_up_is_unavailable_and_not_an_error_of_another_kind(
    pool: Pool, ledger: ActionLedger
) -> None:
    hasty = ActionLedger(pool, statement_seconds=0.2)
    async with pool.connection(), pool.connection():
        with pytest.raises(LedgerUnavailable):
            await hasty.claim(action(), attempt())

    claim = await ledger.claim(action(), attempt())

    assert isinstance(claim, Dispatched)


async def test_nothing_depends_on_a_session_so_that_a_pooler_may_change_it_at_every_transaction(
    database_url: str, observer: Observer
) -> None:
    async with ledger_pool(database_url, size=3, prepared_statements=False) as pool:
        await pool.resize(3, 3)
        await pool.wait()
        ledger = ActionLedger(pool)
        sessions = {await session_of(pool) for _ in range(3)}  # the pool goes round

        for step in range(9):  # more than enough for psycopg to prepare a statement
            await whole_life(ledger, step)
        await migrate(database_url)

        assert len(sessions) == 3
        assert {await session_of(pool) for _ in range(3)} == sessions
        for _ in range(3):
            assert await memory_of(pool) == []
    assert await observer.ask("select 1 from pg_locks where locktype = 'advisory'") == []


async def test_how_a_database_writes_values_by_default_changes_nothing(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        of = sql.Identifier(connection.info.dbname)
        for name, value in UNUSUAL.items():
            setting = sql.SQL("alter database {} set {} = {}")
            connection.execute(setting.format(of, sql.Identifier(name), value))

    async with ledger_pool(database_url, size=1) as pool:
        ledger = ActionLedger(pool)
        await whole_life(ledger, 0)
        request = replace(action("9.0", domain_key="заказ"), key_ttl=timedelta(days=40, seconds=1))
        claim = await dispatched(ledger, request, attempt(9))
        await ledger.record(claim, Outcome.ok('"Ж \\\\ 0.1"'))
        found = await ledger.get(request.key)
        run = await ledger.runs.get(RUN)
        async with pool.connection() as own:
            told = await (await own.execute("show datestyle")).fetchall()
    migrated = await migrate(database_url)

    assert told == [{"DateStyle": "German, DMY"}]
    assert found is not None
    assert (found.domain_key, found.result, found.key_ttl) == (
        "заказ",
        '"Ж \\\\ 0.1"',
        request.key_ttl,
    )
    assert found.attempt_at == attempt(9).started_at
    assert abs(found.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert run is not None
    assert run.created_at <= found.created_at
    assert migrated == []


async def test_statements_are_prepared_where_a_connection_goes_straight_to_postgres(
    database_url: str,
) -> None:
    async with ledger_pool(database_url, size=1) as pool:
        for _ in range(PREPARE_AFTER + 2):
            await ActionLedger(pool).get(action().key)

        assert [found for found in await memory_of(pool) if "from agent_actions" in found]


async def test_a_list_is_planned_for_its_values_each_time(database_url: str) -> None:
    async with ledger_pool(database_url, size=1) as pool:
        ledger = ActionLedger(pool)
        for _ in range(PREPARE_AFTER + 2):
            await ledger.list(RUN)
            await ledger.find(agent="support")
            await ledger.runs.list(workflow_id="support-4821")
            await ledger.approvals.list(RUN)
            await ledger.questions.list(RUN)

        assert [found for found in await memory_of(pool) if "limit" in found] == []


@pytest.mark.parametrize(
    ("keeps", "told", "prepares"), [(True, None, False), (True, True, True), (False, True, False)]
)
async def test_behind_a_pooler_statements_are_prepared_if_a_setting_says_so_and_it_keeps_them(
    database_url: str, keeps: bool, told: bool | None, prepares: bool
) -> None:
    async with (
        pooler(database_url, keeps_statements=keeps) as url,
        ledger_pool(url, size=1, prepared_statements=told) as pool,
    ):
        for _ in range(PREPARE_AFTER + 2):
            await ActionLedger(pool).get(action().key)

        assert bool(await memory_of(pool)) is prepares


async def test_statements_that_a_migration_made_stale_in_every_session_are_used_no_more(
    database_url: str, observer: Observer
) -> None:
    async with ledger_pool(database_url, size=3) as pool:
        await pool.resize(3, 3)
        await pool.wait()
        ledger = ActionLedger(pool)
        await open_run(ledger, RUN)
        await dispatched(ledger, action(), attempt())
        for _ in range(3 * (PREPARE_AFTER + 2)):  # the pool goes round
            await ledger.get(action().key)
        prepared = [await memory_of(pool) for _ in range(3)]
        await observer.alter("alter table agent_actions add added text")

        found = [await ledger.get(action().key) for _ in range(6)]

        for statements in prepared:
            assert any("from agent_actions where key" in statement for statement in statements)
        assert [one.key for one in found if one is not None] == 6 * [action().key]


async def test_what_others_announce_in_a_session_is_not_kept(database_url: str) -> None:
    async with ledger_pool(database_url, size=1) as pool, pool.connection() as connection:
        await connection.execute("listen commitline_relay")
        await connection.execute("notify commitline_relay, 'of somebody else'")

        with pytest.warns(RuntimeWarning, match="handlers"):
            kept = [one async for one in connection.notifies(timeout=0)]

    assert kept == []


@asynccontextmanager
async def pooler(database_url: str, *, keeps_statements: bool) -> AsyncIterator[str]:
    """Pass bytes on as a pooler does; it tells each client another process id than its session's.

    One that keeps statements gives them other names.
    """
    info = conninfo_to_dict(database_url)
    tasks = list[asyncio.Task[None]]()

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while chunk := await source.read(65_536):
            if keeps_statements:
                chunk = chunk.replace(b"_pg3_", b"kept_")
            target.write(KEY_DATA.sub(lambda found: found[1] + b"\x7f\xff\xff\xff", chunk))
            await target.drain()
        target.close()

    async def serve(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_unix_connection(
            f"{info['host']}/.s.PGSQL.{info['port']}"
        )
        tasks.extend(
            map(asyncio.create_task, (pass_on(client, requests), pass_on(server, answers)))
        )

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield make_conninfo(database_url, host="127.0.0.1", port=port, sslmode="disable")
    await asyncio.gather(*tasks)


async def whole_life(ledger: ActionLedger, step: int) -> None:
    """Everything that a ledger does, once."""
    await open_run(ledger, RUN)
    # Not equal to an earlier step's, which stays unknown and would hold it back.
    plain = replace(action(f"{step}.0"), effective_digest=f"of step {step}")
    keyed = action(f"{step}.1", domain_key="order")
    other = action(f"{step}.2", domain_key="order")
    await ledger.claim(plain, by := attempt(step))
    assert await ledger.hand_back(plain, by)
    await ledger.park(await dispatched(ledger, plain, attempt(step)), "lost")
    claim = await dispatched(ledger, keyed, attempt(step))
    assert await ledger.claim(other, attempt(step)) == Busy(keyed.key)
    await ledger.record(claim, DECLINED)
    await ledger.list(RUN)


async def session_of(pool: Pool) -> int:
    async with pool.connection() as connection:
        return connection.info.backend_pid


async def memory_of(pool: Pool) -> list[str]:
    """What the session of the next connection remembers."""
    async with pool.connection() as connection:
        cursor = await connection.execute(
            "select 'prepared ' || statement as found from pg_prepared_statements "
            "union all select 'setting ' || name from pg_settings where source = 'session' "
            "union all select 'listens ' || pg_listening_channels() "
            "union all select 'cursor ' || name from pg_cursors where name <> '' "
            "union all select 'temporary ' || relname from pg_class where relpersistence = 't' "
            "union all select 'lock ' || locktype from pg_locks "
            "where locktype = 'advisory' and pid = pg_backend_pid()"
        )
        return [row["found"] for row in await cursor.fetchall()]
