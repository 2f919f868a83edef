"""What a failover or a restore brings: a clock that jumps, a ledger without its last commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from temporalio.api.enums.v1 import EventType
from temporalio.testing import ActivityEnvironment

from commitline import NEVER_HAPPENED, App, Effect, Plan, Tool, ToolContext, ToolRefused, step, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.encoding import pack, unpack
from commitline.activities.contract.outcomes import Unrecorded
from commitline.activities.contract.reply import Reply
from commitline.activities.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.activities.runs.gone_runs import GoneRuns
from commitline.activities.runs.missing_runs import MissingRuns
from commitline.activities.runs.outcomes import OutcomeActivities
from commitline.errors import (
    AnswerRefused,
    ApprovalRefused,
    RunNotRunning,
    RunUnrecorded,
    StaleThread,
)
from commitline.handles.run_workflow import LIVE
from commitline.identity import Position, RunKey, action_key
from commitline.ledger import ActionLedger, ledger_pool
from commitline.operating.run_facts import LOST, facts
from commitline.tests.integration.database import Backup

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import Signals, asked, computed_app, seen, turn_of, within
from .relay_bench import ledger_of

SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
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

    async def failed() -> bool:
        return bool(await bench.sql("select 1 from agent_actions where failures = 1"))

    async with bench.serving(
        one_agent([ship], [call(("ship", {"order_id": "4821"})), say("done")])
    ) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await eventually(failed)
        await bench.sql("update clock.ahead set by = '1 hour'")
        ran = await within(bench.outcome(run))

    assert len(SENT) == 1
    assert [(one.status, one.content) for one in ran.results] == [("ok", '"shipped"')]


async def test_a_retry_takes_its_call_for_lost_where_the_run_is_gone_with_it(bench: Bench) -> None:
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    @tool(effect=Effect.AT_MOST_ONCE)
    async def mail(to: str) -> None:
        """Mail, and hang until the attempt is lost."""
        SENT.append(time.monotonic())
        loop.call_soon_threadsafe(begun.set)
        await asyncio.Event().wait()

    script = [call(("mail", {"to": "ada"})), say("done")]
    async with bench.serving(one_agent([mail], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await within(begun.wait())
        await bench.sql("delete from agent_actions")
        await bench.sql("delete from agent_runs")
        await bench.reset_activity(run.id, "0.0")
        ran = await within(bench.outcome(run))

    assert len(SENT) == 1
    assert [one.status for one in ran.results] == ["unknown"]


async def test_a_run_that_is_lost_is_so_although_a_siblings_first_attempt_registers_it(
    bench: Bench, signals: Signals
) -> None:
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    @tool(effect=Effect.AT_MOST_ONCE)
    async def mail(to: str) -> None:
        """Mail, and the first time hang until the attempt is lost."""
        SENT.append(time.monotonic())
        loop.call_soon_threadsafe(begun.set)
        if len(SENT) == 1:
            await asyncio.Event().wait()

    @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
    def charge(order_id: str) -> str:
        """Charge, and keep whoever wants the same order charged waiting."""
        signals.began.set()
        signals.release.wait()
        return "charged"

    def calls(request: ModelRequest) -> Completion:
        if turn_of(request):
            return say("done")
        charges = ("charge", {"order_id": "4821"})
        return call(charges) if asked(request) == ["first"] else call(("mail", {"to": ""}), charges)

    async with bench.serving(computed_app(calls, mail, charge)[0]) as client:
        await client.start("agent", "first", id=fresh_id())
        await seen(signals.began)
        run = await client.start("agent", "second", id=fresh_id())
        key = await bench.run_key(run)
        await within(begun.wait())
        await bench.sql("delete from agent_actions where run_key = %(key)s", key=key)
        await bench.sql("delete from agent_runs where run_key = %(key)s", key=key)
        await eventually(
            lambda: bench.sql("select 1 from agent_runs where run_key = %(key)s", key=key)
        )
        await bench.reset_activity(run.id, "0.0")
        await eventually(run.actions)
        signals.release.set()
        ran = await within(bench.outcome(run))

    assert [one.status for one in ran.results] == ["unknown", "ok"]
    assert len(SENT) == 1


# --- a restore, while runs go on


@tool(effect=Effect.AT_MOST_ONCE)
def mail(url: str) -> str:
    """Mail, and do not know whether that worked."""
    lose_row(url)
    raise RuntimeError("reset by peer")


async def shipped(args: dict[str, str], key: str) -> object:
    """The provider shows what it was sent."""
    return "shipped" if SENT else NEVER_HAPPENED


@tool(effect=Effect.LOOKUP, lookup=shipped)
def send_parcel(url: str) -> str:
    """Ship, and get no answer."""
    lose_row(url)
    raise NoAnswer


def lose_row(url: str) -> None:
    """Do what cannot be taken back, while a restore loses the row of this very call."""
    SENT.append(time.monotonic())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from agent_actions")


@pytest.mark.parametrize(
    ("effect", "first", "calls"),
    [(Effect.AT_MOST_ONCE, None, 1), (Effect.IDEMPOTENT, ToolRefused("declined"), 2)],
)
async def test_what_is_known_of_a_call_counts_beside_the_attempt_that_has_its_lost_row_by_now(
    bench: Bench, signals: Signals, effect: Effect, first: Exception | None, calls: int
) -> None:
    """An ``ok`` stands; that nothing happened is not known where another one may have sent it."""

    @tool(effect=effect, local=True, tool_timeout=10)
    def act() -> str:
        """Act, while the row is lost and another attempt writes it."""
        SENT.append(time.monotonic())
        signals.began.set()
        signals.go_on.wait()
        if first is not None and len(SENT) == 1:
            raise first
        return "acted"

    async with bench.serving(one_agent([act], [call(("act", {})), say("done")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        async with another_has_the_row(bench):
            signals.go_on.set()
            await eventually(lambda: bench.sql(WAITS))
        ran = await within(bench.outcome(run))

    assert [(one.status, one.content) for one in ran.results] == [("ok", '"acted"')]
    assert [one.state for one in ran.actions] == ["ok"]
    assert len(SENT) == calls


WAITS = """
select 1 from pg_stat_activity
 where datname = current_database() and wait_event_type = 'Lock'
   and backend_type = 'client backend'
"""


@asynccontextmanager
async def another_has_the_row(bench: Bench) -> AsyncIterator[None]:
    """Lose the only row, and write it anew with the claim of another attempt, which is committed
    at the end: whoever looks for the row meanwhile finds none, and waits to write it."""
    async with await AsyncConnection.connect(bench.settings.database_url) as connection:
        await connection.execute("create temporary table kept as select * from agent_actions")
        await connection.execute("alter table kept drop column live_undo_of")  # it is computed
        await connection.execute("delete from agent_actions")
        await connection.commit()
        columns = [one.name for one in (await connection.execute("table kept")).description or ()]
        await connection.execute("update kept set claim_token = gen_random_uuid()")
        named = sql.SQL(", ").join(map(sql.Identifier, columns))
        insert = sql.SQL("insert into agent_actions ({}) table kept")
        await connection.execute(insert.format(named))
        yield


@pytest.mark.parametrize(("made", "status"), [(mail, "unknown"), (send_parcel, "ok")])
async def test_a_call_whose_row_is_lost_while_it_is_made_is_not_made_again(
    bench: Bench, made: Tool, status: str
) -> None:
    script = [call((made.name, {"url": bench.settings.database_url})), say("done")]

    ran = await within(bench.run(one_agent([made], script)))

    assert len(SENT) == 1
    assert [one.status for one in ran.results] == [status]
    assert [one.state for one in ran.actions] == [status]


async def test_an_unknown_outcome_whose_row_is_lost_before_it_is_recorded_is_unknown(
    database_url: str,
) -> None:
    key = action_key(RunKey("support-4821/e1"), Position("0.0"))
    handed_over = Unrecorded(key, str(uuid4()), None, reason="its answer was lost")

    async with ledger_pool(database_url) as pool:
        told = await OutcomeActivities(ActionLedger(pool)).record_outcome(pack(handed_over))

    assert unpack(Reply, told).status == "unknown"


async def test_a_run_that_knows_more_than_a_restored_ledger_ends_and_undoes_nothing(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    def take_back(order_id: str) -> str:
        """Undo it."""
        SENT.append(-1)
        return "taken back"

    @tool(effect=Effect.AT_MOST_ONCE, compensate=take_back)
    def charge(order_id: str) -> str:
        """Charge, and meanwhile the database is restored to before the run began."""
        SENT.append(time.monotonic())
        signals.began.set()
        signals.go_on.wait()
        return "charged"

    script = [call(("charge", {"order_id": "4821"})), say("done")]
    async with bench.serving(one_agent([charge], script)) as client:
        backup = await asyncio.to_thread(Backup, bench.settings.database_url)
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        await asyncio.to_thread(backup.put_back)
        signals.go_on.set()
        with pytest.raises(StaleThread):
            await within(run.result())
        actions = await run.actions()

    assert len(SENT) == 1
    assert [one.state for one in actions] == ["ok"], "this attempt knew how its call had ended"


async def test_a_run_that_waits_ends_by_name_where_a_restored_ledger_does_not_know_it(
    bench: Bench,
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, approval=True)
    def pay(cents: int) -> str:
        """Pay."""
        SENT.append(cents)
        return "paid"

    @tool(effect=Effect.AT_MOST_ONCE)
    async def ask(ctx: ToolContext) -> str:
        """Ask a person."""
        return str(await ctx.interrupt("how much?"))

    def calls(request: ModelRequest) -> Completion:
        if turn_of(request):
            return say("done")
        both = [("ask", {}), ("pay", {"cents": 100})]
        return call(*both if asked(request) == ["both"] else both[:1])

    async with bench.serving(computed_app(calls, pay, ask)[0]) as client:
        backup = await asyncio.to_thread(Backup, bench.settings.database_url)
        prompts = ("both", "both", "ask")
        runs = [await client.start("agent", one, id=fresh_id()) for one in prompts]
        told, deciding, answering = runs
        for run in runs:
            await eventually(run.questions)
        for run in (told, deciding):
            await eventually(run.approvals)
        await asyncio.to_thread(backup.put_back)
        with pytest.raises(ApprovalRefused, match="the ledger has nothing of it"):
            await deciding.decide("0.0", approve=True, by="ada")
        with pytest.raises(AnswerRefused, match="the ledger has nothing of it"):
            await answering.answer("0.0", 3, by="ada")
        async with ledger_of(bench) as ledger:
            # The runs of another task queue may be another ledger's.
            await MissingRuns(ledger, bench.temporal, task_queue=fresh_id()).tell()
            untold = await bench.history(told.id)

            async def ended() -> bool:
                # A new relay for each look: it looks once for each timeline.
                missing = MissingRuns(ledger, bench.temporal, task_queue=bench.settings.task_queue)
                relay = GoneRuns(ledger, bench.temporal, missing=missing)
                await ActivityEnvironment().run(relay.close_gone_runs)
                return await told.state() not in LIVE

            await eventually(ended)
        for refused in (told.undo(), told.undo_report(), told.reset(to_step=0)):
            with pytest.raises(RunUnrecorded):
                await refused
        shown = await facts(client, told)
        for run in runs:
            with pytest.raises(RunNotRunning, match="is not in the ledger"):
                await within(run.result())

    signals = [one for one in untold.events if one.event_type == SIGNALED]
    assert signals == []
    assert (shown["state"], shown["in_ledger"]) == ("failed", LOST)
    assert SENT == []


async def test_an_approval_that_the_ledger_has_lost_is_asked_for_anew_when_somebody_decides(
    bench: Bench,
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, approval=True)
    def pay(cents: int) -> str:
        """Pay."""
        SENT.append(cents)
        return "paid"

    script = [call(("pay", {"cents": 100})), say("done")]
    async with bench.serving(one_agent([pay], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await eventually(run.approvals)
        await bench.sql("delete from agent_approvals")
        with pytest.raises(ApprovalRefused, match="asks anew now"):
            await run.decide("0.0", approve=True, by="ada")
        await eventually(run.approvals)
        with pytest.raises(ApprovalRefused) as mistyped:
            await run.decide("7.0", approve=True, by="ada")
        await run.decide("0.0", approve=True, by="ada")
        await within(run.result())

    assert mistyped.value.message == f"nothing was asked about 7.0 of the run {run.id!r}"
    assert SENT == [100]


async def test_a_plan_goes_on_after_a_restore_and_leaves_unknown_what_was_at_work_in_the_copy(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    def charge(order_id: str) -> str:
        """Charge."""
        SENT.append(time.monotonic())
        signals.began.set()
        signals.release.wait()
        return "charged"

    @tool(effect=Effect.READ)
    def look(order_id: str) -> str:
        """Look, and meanwhile the database is restored to when the charge was at work."""
        signals.paused.set()
        signals.go_on.wait()
        return "looked"

    order = {"order_id": "4821"}
    steps = Plan("fulfil", [step(charge, order), step(look, order)])
    async with bench.serving(App(tools=[charge, look])) as client:
        run = await client.start_plan(steps, id=fresh_id())
        await seen(signals.began)
        backup = await asyncio.to_thread(Backup, bench.settings.database_url)
        signals.release.set()
        await seen(signals.paused)
        await asyncio.to_thread(backup.put_back)
        signals.go_on.set()
        result = await within(run.result())
        actions = await run.actions()

    assert [one.value for one in result.steps] == ["charged", "looked"]
    assert len(SENT) == 1
    assert [one.state for one in actions] == ["unknown"]
