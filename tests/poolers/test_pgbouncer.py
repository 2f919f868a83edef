"""The ledger behind a real PgBouncer in transaction mode, with three sessions for six clients.

`make test-pgbouncer` runs it with the PgBouncer that is installed, whatever its version. `make
test` and `make test-full` do not: it comes with no Python package.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from commitline.identity import RunKey
from commitline.ledger import ActionLedger, Outcome, ledger_pool, migrate
from commitline.ledger.notifications import listen
from commitline.ledger.pool import PREPARE_AFTER, Pool
from commitline.tests.builders import action_request, attempt, dispatched, open_run
from commitline.tests.poolers.pgbouncer import KEEPS_STATEMENTS, SESSIONS, pgbouncer, version

pytestmark = pytest.mark.pgbouncer

RUN = RunKey("support-4821/e1")
CLIENTS = 2 * SESSIONS
UNUSUAL: dict[LiteralString, LiteralString] = {
    "default_transaction_isolation": "serializable",
    "synchronous_commit": "off",
    "datestyle": "'German, DMY'",
    "intervalstyle": "sql_standard",
    "timezone": "'Asia/Kathmandu'",
    "search_path": "elsewhere, public",
    "commitline.lock_timeout": "'70ms'",
}
SPY: LiteralString = """
create table seen (kept text, waits text);
create function spy() returns trigger language plpgsql as $$
begin
    insert into seen values (current_setting('synchronous_commit'),
                             current_setting('lock_timeout'));
    return null;
end
$$;
create trigger zz_spy after insert on agent_actions for each row execute function spy();
"""


@pytest.fixture
def direct(database_url: str) -> Iterator[psycopg.Connection]:
    """A way past the pooler, to a database whose sessions begin as nobody would want them to."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        of = sql.Identifier(connection.info.dbname)
        for name, value in UNUSUAL.items():
            setting = sql.SQL("alter database {} set {} = {}")
            connection.execute(setting.format(of, sql.SQL(name), sql.SQL(value)))
        yield connection


@pytest.fixture
def url(direct: psycopg.Connection, database_url: str) -> Iterator[str]:
    """The same database through a PgBouncer."""
    with pgbouncer(database_url) as url:
        yield url


@pytest_asyncio.fixture(params=[None, True])
async def pool(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    """A pool as it is by default, and one that is told to prepare its statements."""
    async with ledger_pool(url, size=CLIENTS, prepared_statements=request.param) as pool:
        await pool.resize(CLIENTS, CLIENTS)
        await pool.wait()
        yield pool


async def test_a_migration_is_applied_once_by_any_number_of_workers(
    url: str, direct: psycopg.Connection
) -> None:
    direct.execute("drop schema public cascade")
    direct.execute("create schema public")

    applied = await asyncio.gather(*(migrate(url) for _ in range(CLIENTS)))

    assert sorted(map(bool, applied)) == [*[False] * (CLIENTS - 1), True]


async def test_actions_are_carried_out_side_by_side_with_a_migration_in_between(
    pool: Pool, direct: psycopg.Connection
) -> None:
    ledger = ActionLedger(pool)
    await open_run(ledger, RUN)

    await side_by_side(ledger, range(60))
    direct.execute("alter table agent_actions add added text")
    await side_by_side(ledger, range(60, 120))

    actions = await ledger.list(RUN, limit=200)
    assert [one.state for one in actions] == 120 * ["ok"]
    assert {one.tries for one in actions} == {1}


async def test_what_the_ledger_sets_holds_for_its_transaction_and_stays_with_no_session(
    pool: Pool, direct: psycopg.Connection
) -> None:
    direct.execute(SPY)
    ledger = ActionLedger(pool)
    await open_run(ledger, RUN)

    await side_by_side(ledger, range(30))

    seen = direct.execute("select distinct * from seen").fetchall()
    left = [await settings_of(pool) for _ in range(CLIENTS)]
    assert seen == [("on", "70ms")]
    assert left == CLIENTS * [["serializable", "off", "0"]]


async def test_statements_are_prepared_only_if_it_is_told_to_and_this_pgbouncer_keeps_them(
    pool: Pool, request: pytest.FixtureRequest
) -> None:
    told = request.node.callspec.params["pool"]
    for _ in range(CLIENTS * (PREPARE_AFTER + 2)):
        await ActionLedger(pool).get(action_request(RUN, "1.0").key)

    prepared = [await prepared_in(pool) for _ in range(CLIENTS)]

    assert any(prepared) is (told is True and version() >= KEEPS_STATEMENTS)


async def test_a_listener_says_that_a_pooler_stands_between_and_others_hear_nothing(
    url: str, pool: Pool, direct: psycopg.Connection
) -> None:
    said = asyncio.Queue[tuple[bool, str]]()
    looks = asyncio.Queue[None]()

    async def look() -> None:
        looks.put_nowait(None)

    listening = asyncio.create_task(
        listen(url, on_notice=look, on_hearing=lambda *told: said.put_nowait(told))
    )
    try:
        hears, why = await said.get()
        direct.execute("notify commitline_relay, 'announced'")
        await ActionLedger(pool).get(action_request(RUN, "1.0").key)
        while not looks.empty():
            looks.get_nowait()
        async with asyncio.timeout(10):
            await looks.get()  # by the clock
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    assert (hears, why) == (False, "announcements do not arrive: a pooler stands between")


async def side_by_side(ledger: ActionLedger, steps: range) -> None:
    """Claim and record actions, as many at once as there are clients."""
    free = asyncio.Semaphore(CLIENTS)

    async def carry_out(step: int) -> None:
        # Not equal to another step's, which it would wait for.
        request = replace(action_request(RUN, f"{step}.0"), effective_digest=f"of step {step}")
        async with free:
            claim = await dispatched(ledger, request, attempt(step))
            await ledger.record(claim, Outcome.ok('"done"'))

    await asyncio.gather(*map(carry_out, steps))


async def settings_of(pool: Pool) -> list[str]:
    """How the next session is set between two transactions of the ledger."""
    async with pool.connection() as connection:
        found = await connection.execute(
            "select current_setting('transaction_isolation') as isolation, "
            "current_setting('synchronous_commit') as kept, "
            "current_setting('lock_timeout') as waits"
        )
        (row,) = await found.fetchall()
        return list(row.values())


async def prepared_in(pool: Pool) -> list[str]:
    """What the next session has prepared."""
    async with pool.connection() as connection:
        found = await connection.execute("select statement from pg_prepared_statements")
        return [row["statement"] for row in await found.fetchall()]
