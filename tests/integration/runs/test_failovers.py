"""What a failover may bring: a clock that jumps, and a ledger without its last commits."""

from __future__ import annotations

import time
from datetime import timedelta

import psycopg
from psycopg import AsyncConnection, sql

from commitline import NEVER_HAPPENED, Effect, StillInProgress, tool
from commitline.activities.contract.conversation import Completion, ToolCall

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import within

SENT: list[float] = []
CALLED = SENT


class NoAnswer(ConnectionError):
    """The provider has what it was sent, and its answer is lost."""

    retry_after = timedelta(seconds=0.5)


async def find(args: dict[str, str], key: str) -> object:
    """The provider shows what it was sent after a while."""
    return "shipped" if time.monotonic() > SENT[0] + 1.2 else NEVER_HAPPENED


@tool(effect=Effect.LOOKUP, lookup=find, lookup_settles_after=timedelta(seconds=2))
async def ship(order_id: str) -> str:
    """Ship an order."""
    SENT.append(time.monotonic())
    raise NoAnswer


CLOCK = """
create schema clock;
create table clock.ahead (by interval);
insert into clock.ahead values ('0');
create function clock.clock_timestamp() returns timestamptz language sql volatile
    as 'select pg_catalog.clock_timestamp() + by from clock.ahead';
"""


async def with_a_clock_that_can_jump(url: str) -> None:
    """Give sessions that begin from now on a clock which runs ahead as ``clock.ahead`` says."""
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(CLOCK)
        path = sql.SQL("alter database {} set search_path = clock, pg_catalog, public")
        await connection.execute(path.format(sql.Identifier(connection.info.dbname)))


async def test_never_happened_does_not_count_because_the_databases_clock_jumps_ahead(
    bench: Bench,
) -> None:
    await with_a_clock_that_can_jump(bench.settings.database_url)
    call = Completion("", [ToolCall("1", "ship", '{"order_id":"4821"}')])

    async def failed() -> bool:
        return bool(await bench.sql("select 1 from agent_actions where failures = 1"))

    async with bench.serving(one_agent([ship], [call, Completion("done")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await eventually(failed)
        await bench.sql("update clock.ahead set by = '1 hour'")
        ran = await within(bench.outcome(run))

    assert len(SENT) == 1
    assert [(one.status, one.content) for one in ran.results] == [("ok", '"shipped"')]


async def test_a_retry_takes_its_call_for_lost_where_the_run_is_gone_with_it(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    def mail(to: str) -> str:
        """Mail. Meanwhile a failover loses what was committed last."""
        SENT.append(time.monotonic())
        with psycopg.connect(bench.settings.database_url, autocommit=True) as connection:
            connection.execute("delete from agent_actions")
            connection.execute("delete from agent_runs")
        raise StillInProgress("the bank is at work on it")

    call = Completion("", [ToolCall("1", "mail", '{"to":"ada"}')])

    async with bench.serving(one_agent([mail], [call, Completion("done")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        ran = await within(bench.outcome(run))

    assert len(SENT) == 1
    assert [one.status for one in ran.results] == ["unknown"]
