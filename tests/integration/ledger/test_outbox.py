"""The outbox: an action that is committed together with the application's own rows."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg.sql import SQL as sql_text
from psycopg.sql import Identifier
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from commitline import Effect, State, Tool, tool
from commitline.canonical import dumps, parse
from commitline.errors import (
    ActionNotFound,
    IdempotencyKeyConflict,
    IntentRefused,
    InvalidArguments,
    InvalidIdempotencyKey,
    NoTransaction,
    PlanDivergence,
    SchemaMismatch,
)
from commitline.idempotency_key import default_idempotency_key
from commitline.identity import ActionKey, Position, RunKey, sub_run_key
from commitline.ledger import (
    Accepted,
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Busy,
    Dispatched,
    LookUp,
    NewMessage,
    Outcome,
    Turn,
    intend,
    ledger_pool,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import (
    DECLINED,
    NOON,
    action_request,
    attempt,
    dispatched,
    open_run,
    relay_request,
)
from commitline.tests.integration.database import (
    holding,
    sql,
    until_blocked,
    with_default_isolation,
)

RUN = RunKey("support/1")


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
async def refund(order_id: str) -> None:
    """Refund an order."""


@tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-charge",
    key_ttl=timedelta(hours=36),
    compensate=refund,
)
async def charge(order_id: str, cents: int = 100) -> str:
    """Charge an order."""
    raise NotImplementedError


@tool(effect=Effect.AT_MOST_ONCE)
def mail(to: str) -> None:
    """Send a mail; it has no key from the domain."""


@tool(effect=Effect.IDEMPOTENT, undoes="order-{order_id}-charge", idempotency_key="re-{order_id}")
async def take_back(order_id: str) -> None:
    """Take a charge back."""


class Till(State):
    cents: int = 0


@pytest_asyncio.fixture
async def url(ledger_database_url: str, pool: Pool) -> str:
    async with pool.connection() as connection:
        await connection.execute("drop table if exists orders")
        await connection.execute("create table orders (id text primary key)")
    return ledger_database_url


# --- every kind of connection -------------------------------------------------------------
# What the application does: an order of its own, and the charge; the second charge is refused.

ORDER = "insert into orders values ('1')"


def by_psycopg(url: str, commit: bool) -> ActionKey:
    # Rows and parameters as the application likes them are no business of the ledger's.
    likes: Any = {"row_factory": dict_row, "cursor_factory": psycopg.RawCursor}
    with psycopg.Connection[DictRow].connect(url, **likes) as conn:
        conn.execute(ORDER)
        key: ActionKey = intend(conn, charge, {"order_id": "1"})
        with pytest.raises(IdempotencyKeyConflict):
            intend(conn, charge, {"order_id": "1", "cents": 7})
        if not commit:
            conn.rollback()
    return key


async def by_async_psycopg(url: str, commit: bool) -> ActionKey:
    async with await AsyncConnection[DictRow].connect(url, row_factory=dict_row) as conn:
        await conn.execute(ORDER)
        key: ActionKey = await intend(conn, charge, {"order_id": "1"})
        with pytest.raises(IdempotencyKeyConflict):
            await intend(conn, charge, {"order_id": "1", "cents": 7})
        if not commit:
            await conn.rollback()
    return key


def by_connection(url: str, commit: bool) -> ActionKey:
    engine = create_engine(url)
    with engine.connect() as conn:
        conn.execute(text(ORDER))
        key: ActionKey = intend(conn, charge, {"order_id": "1"})
        with pytest.raises(IdempotencyKeyConflict):
            intend(conn, charge, {"order_id": "1", "cents": 7})
        conn.commit() if commit else conn.rollback()
    engine.dispose()
    return key


def by_session(url: str, commit: bool) -> ActionKey:
    engine = create_engine(url)
    with Session(engine) as session:
        session.execute(text(ORDER))
        key: ActionKey = intend(session, charge, {"order_id": "1"})
        with pytest.raises(IdempotencyKeyConflict):
            intend(session, charge, {"order_id": "1", "cents": 7})
        session.commit() if commit else session.rollback()
    engine.dispose()
    return key


async def by_async_connection(url: str, commit: bool) -> ActionKey:
    engine = create_async_engine(url)
    async with engine.connect() as conn:
        await conn.execute(text(ORDER))
        key: ActionKey = await intend(conn, charge, {"order_id": "1"})
        with pytest.raises(IdempotencyKeyConflict):
            await intend(conn, charge, {"order_id": "1", "cents": 7})
        await (conn.commit() if commit else conn.rollback())
    await engine.dispose()
    return key


async def by_async_session(url: str, commit: bool) -> ActionKey:
    engine = create_async_engine(url)
    async with AsyncSession(engine) as session:
        await session.execute(text(ORDER))
        key: ActionKey = await intend(session, charge, {"order_id": "1"})
        with pytest.raises(IdempotencyKeyConflict):
            await intend(session, charge, {"order_id": "1", "cents": 7})
        await (session.commit() if commit else session.rollback())
    await engine.dispose()
    return key


KINDS: list[Callable[[str, bool], ActionKey | Awaitable[ActionKey]]] = [
    by_psycopg,
    by_async_psycopg,
    by_connection,
    by_session,
    by_async_connection,
    by_async_session,
]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_action_is_committed_with_the_row_or_not_at_all(
    kind: Callable[[str, bool], Any], url: str, pool: Pool, ledger: ActionLedger
) -> None:
    """And a conflict leaves the transaction as it was."""
    place = url if "psycopg" in kind.__name__ else url.replace("postgresql:", "postgresql+psycopg:")

    for commit in (False, True):
        made: Any = kind(place, commit)
        key = ActionKey(await made if inspect.isawaitable(made) else made)

        assert await orders(pool) == (["1"] if commit else [])
        action = await ledger.get(key)
        assert (action is not None) is commit
        assert await queue(pool) == ([key] if commit else [])


async def orders(pool: Pool) -> list[str]:
    async with pool.connection() as connection:
        cursor = await connection.execute("select id from orders")
        return [row["id"] for row in await cursor.fetchall()]


async def queue(pool: Pool) -> list[str]:
    async with pool.connection() as connection:
        cursor = await connection.execute("select key from agent_relay order by seq")
        return [row["key"] for row in await cursor.fetchall()]


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[AsyncConnection[Any]]:
    async with await AsyncConnection.connect(url) as conn:
        yield conn


async def committed(url: str, made: Tool, args: dict[str, Any], **options: Any) -> ActionKey:
    async with transaction(url) as conn:
        return await intend(conn, made, args, **options)


async def the(ledger: ActionLedger, key: ActionKey) -> Action:
    found = await ledger.get(key)
    assert found is not None
    return found


# --- what is written ----------------------------------------------------------------------


async def test_what_is_intended_is_fixed_now_and_sent_by_nobody_yet(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    key = await committed(url, charge, {"order_id": "4821"}, order_key="customer-7")

    action = await the(ledger, key)
    run = await ledger.runs.get(action.run_key)
    assert key == "outbox/order-4821-charge:0"
    assert (action.state, action.relayed, action.tool) == ("intent", True, "charge")
    assert action.args == '{"order_id":"4821","cents":100}'
    assert (action.idempotency_key, action.generation) == ("order-4821-charge", 1)
    # What the tool's definition decides is the relay's to write; until then the least is promised.
    assert (action.effect, action.key_ttl) == (Effect.AT_MOST_ONCE, None)
    assert (action.position, action.compensator) == ("0", None)
    assert run is not None
    assert (run.run_key, run.agent, run.state) == ("outbox/order-4821-charge", "outbox", "running")
    async with pool.connection() as connection:
        cursor = await connection.execute("select why, tool, order_key, starts from agent_relay")
        assert await cursor.fetchall() == [
            {"why": "send", "tool": "charge", "order_key": "customer-7", "starts": 0}
        ]


async def test_without_a_key_from_the_domain_each_call_is_an_action_of_its_own(
    url: str, ledger: ActionLedger
) -> None:
    first, second = [await committed(url, mail, {"to": "\0ä"}) for _ in range(2)]

    assert first != second
    for key in (first, second):
        action = await the(ledger, key)
        assert (action.domain_key, action.state) == (None, "intent")
        assert action.idempotency_key == default_idempotency_key(key)
        assert action.args == '{"to":"\\u0000\\u00e4"}'  # as it was given


async def test_a_literal_key_wins_over_the_tools_and_is_the_same_fact_again(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    keys = [
        await committed(url, charge, {"order_id": order}, idempotency_key="invoice: 7/2")
        for order in ("1", "1")
    ]

    assert keys == ["outbox/invoice: 7/2:0"] * 2
    assert (await the(ledger, keys[0])).domain_key == "invoice: 7/2"
    assert await queue(pool) == keys[:1]


# --- one business fact --------------------------------------------------------------------


def request(position: str = "0.0", *, made: Tool = charge, **options: Any) -> ActionRequest:
    effective = made.effective({"order_id": "1"})
    return action_request(
        RUN,
        position,
        tool=made.name,
        args=effective,
        effect=made.effect,
        requested_digest="as the plan has it",
        effective_digest=made.sameness(effective),
        domain_key=made.domain_key(effective),
        thread_id="a thread",
        **options,
    )


async def carried_out(ledger: ActionLedger, key: ActionKey, outcome: Outcome) -> None:
    claim = await dispatched(ledger, relay_request(await the(ledger, key)), attempt(1))
    await ledger.record(claim, outcome)


async def test_an_agent_that_asks_for_what_lies_in_the_outbox_waits_for_its_receipt(
    url: str, ledger: ActionLedger
) -> None:
    """It neither doubles it, nor takes it from the relay, nor takes it for dead."""
    await open_run(ledger, RUN)
    key = await committed(url, charge, {"order_id": "1"})

    waits = await ledger.claim(request(), attempt())
    await carried_out(ledger, key, Outcome.ok('"receipt"'))
    then = await ledger.claim(request(), attempt())

    assert waits == Busy(key)
    assert isinstance(then, AlreadyDone)
    assert (then.action.duplicate_of, then.action.result) == (key, '"receipt"')


async def test_what_an_agent_does_or_did_is_not_intended_again(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    await open_run(ledger, RUN)
    claim = await ledger.claim(request(), attempt())
    assert isinstance(claim, Dispatched)

    under_way = await committed(url, charge, {"order_id": "1"})
    await ledger.record(claim, Outcome.ok("1"))
    done = await committed(url, charge, {"order_id": "1"})
    with pytest.raises(IdempotencyKeyConflict) as refused:
        await committed(url, charge, {"order_id": "1", "cents": 7})

    assert under_way == done == refused.value.existing == claim.key
    assert "another tool or other arguments" in refused.value.message
    assert "cents" not in refused.value.message
    assert await queue(pool) == []


async def test_a_fact_that_was_proven_not_to_be_is_intended_in_its_next_generation(
    url: str, ledger: ActionLedger
) -> None:
    key = await committed(url, charge, {"order_id": "1"})
    declined = Outcome.error(kind="Declined", message="no", effect_possible=False)
    await carried_out(ledger, key, declined)

    again = await committed(url, charge, {"order_id": "1", "cents": 7})

    action = await the(ledger, again)
    assert again == "outbox/order-1-charge~2:0"
    assert (action.idempotency_key, action.generation) == ("order-1-charge~2", 2)
    assert action.domain_key == "order-1-charge"
    assert await ledger.outcome(key) == declined


async def test_an_intent_that_nobody_sends_any_more_gives_way(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    """An agent's whose run has ended; and what was detached by a run that was stopped."""
    await open_run(ledger, RUN)
    claim = await ledger.claim(request(), by := attempt())
    assert isinstance(claim, Dispatched)
    assert await ledger.hand_back(request(), by)
    await ledger.runs.end(RUN, attempt_at=NOON + timedelta(minutes=2))

    anew = await committed(url, charge, {"order_id": "1"})

    assert anew == "outbox/order-1-charge~2:0"
    assert await ledger.outcome(claim.key) is not None
    await ledger.runs.stop(
        RunKey("outbox/order-1-charge~2"),
        workflow_id="outbox",
        agent="",
        reason="called off",
        attempt_at=NOON,
    )
    third = await committed(url, charge, {"order_id": "1"})
    assert third == "outbox/order-1-charge~3:0"
    assert await queue(pool) == [third]


async def test_a_detached_call_of_a_run_that_has_ended_is_still_to_be_sent(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    await open_run(ledger, RUN)
    detached = request(detached=True)
    claim = await ledger.claim(detached, attempt())
    await ledger.runs.end(RUN, attempt_at=NOON + timedelta(minutes=2))

    existing = await committed(url, charge, {"order_id": "1"})
    await open_run(ledger, RUN)

    assert isinstance(claim, Accepted)
    assert existing == claim.action.key == detached.key
    assert await queue(pool) == [detached.key]


async def test_what_undoes_is_linked_to_what_holds_the_fact_and_is_the_undo_of_that_one(
    url: str, ledger: ActionLedger
) -> None:
    first = await committed(url, charge, {"order_id": "1"})
    back = await committed(url, take_back, {"order_id": "1"})
    await carried_out(ledger, first, Outcome.ok("1"))
    await carried_out(ledger, back, Outcome.ok("null"))

    second = await committed(url, charge, {"order_id": "1"})
    back_again = await committed(url, take_back, {"order_id": "1"})

    assert (await the(ledger, first)).undone_by == back
    assert (await the(ledger, back)).undoes == first
    assert second == "outbox/order-1-charge~2:0"
    assert back_again == "outbox/re-1~of2:0"
    assert (await the(ledger, back_again)).undoes == second


async def test_a_refund_that_comes_before_its_charge_leaves_that_in_the_queue(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    charged = await committed(url, charge, {"order_id": "1"})
    back = await committed(url, take_back, {"order_id": "1"})

    await carried_out(ledger, back, DECLINED)

    assert await queue(pool) == [charged]


@pytest.mark.parametrize("first", ["is recorded", "is unknown"])
async def test_a_refund_that_was_intended_is_not_made_beside_another_one(
    url: str, ledger: ActionLedger, first: str
) -> None:
    await open_run(ledger, RUN)
    charged = await dispatched(ledger, request(compensator="refund"), attempt())
    await ledger.record(charged, Outcome.ok("1"))
    intended = await committed(url, take_back, {"order_id": "1"})
    await ledger.undo.begin(RUN, why="it failed", failed=True, attempt_at=NOON)
    undo = request("undo-0.0", made=refund, undoes=charged.key, purpose="undo")
    sent = await dispatched(ledger, undo, attempt(1))
    by_the_relay = relay_request(await the(ledger, intended))

    at_work = await ledger.claim(by_the_relay, attempt(2))
    if first == "is recorded":
        await ledger.record(sent, Outcome.ok("null"))
    else:
        await ledger.park(sent, "no answer")
    then = await ledger.claim(by_the_relay, attempt(3))

    assert at_work == Busy(sent.key)
    assert isinstance(then, AlreadyDone)
    outcome = await ledger.outcome(intended)
    assert outcome is not None
    assert not outcome.effect_possible
    kind = "AlreadyUndone" if first == "is recorded" else "MayBeUndone"
    assert parse(outcome.result)["type"] == kind
    if first == "is recorded":
        with pytest.raises(IntentRefused, match="nothing is left to undo"):
            await committed(url, take_back, {"order_id": "1"})
        await committed(url, charge, {"order_id": "1"})
    assert await committed(url, take_back, {"order_id": "1"}) != intended, "its key is free"


async def test_a_fact_that_is_just_being_undone_is_not_relied_on(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    await open_run(ledger, RUN)
    claim = await ledger.claim(request(compensator="refund"), attempt())
    assert isinstance(claim, Dispatched)
    await ledger.record(claim, Outcome.ok("1"))
    assert await committed(url, charge, {"order_id": "1"}) == claim.key
    await ledger.undo.begin(RUN, why="it failed", failed=True, attempt_at=NOON)

    async with transaction(url) as conn:
        await conn.execute(ORDER)
        with pytest.raises(IntentRefused, match="just being undone"):
            await intend(conn, charge, {"order_id": "1"})

    assert await orders(pool) == ["1"], "it aborts no transaction"
    await ledger.undo.finish(RUN, attempt_at=NOON, passed=frozenset([ActionKey(f"{RUN}:undo-0.0")]))
    assert await committed(url, charge, {"order_id": "1"}) == claim.key, "it stands"


async def test_an_undo_that_is_tried_again_holds_its_fact(url: str, ledger: ActionLedger) -> None:
    await open_run(ledger, RUN)
    claim = await ledger.claim(request(compensator="take_back"), attempt())
    assert isinstance(claim, Dispatched)
    await ledger.record(claim, Outcome.ok("1"))
    await ledger.undo.begin(RUN, why="it failed", failed=True, attempt_at=NOON)
    undo = replace(
        request("undo-0.0", undoes=claim.key, purpose="undo"), tool="take_back", domain_key="re-1"
    )
    trying = attempt()
    tried = await ledger.claim(undo, trying)
    assert isinstance(tried, Dispatched)
    assert await ledger.hand_back(tried, trying, failures=1)

    with suppress(IdempotencyKeyConflict):
        await committed(url, take_back, {"order_id": "1"})

    assert (await the(ledger, tried.key)).state == "intent"


async def test_a_fact_that_is_about_to_be_undone_or_may_have_been_is_not_relied_on(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    async def refused(match: str) -> None:
        async with transaction(url) as conn:
            with pytest.raises(IntentRefused, match=match):
                await intend(conn, charge, {"order_id": "1"})

    await open_run(ledger, RUN)
    claim = await ledger.claim(request(compensator="refund"), attempt())
    assert isinstance(claim, Dispatched)
    await ledger.record(claim, Outcome.ok("1"))
    stop: dict[str, Any] = {"workflow_id": "w", "agent": "a", "reason": "no", "attempt_at": NOON}
    await ledger.runs.stop(RUN, **stop)
    assert await committed(url, charge, {"order_id": "1"}) == claim.key, "it stands"

    await ledger.runs.stop(RUN, **stop, compensate=True)
    await refused("just being undone")

    await ledger.undo.begin(RUN, why="no", failed=False, attempt_at=NOON)
    refund = replace(request("undo-0.0", undoes=claim.key, purpose="undo"), domain_key=None)
    sent = await ledger.claim(refund, attempt())
    assert isinstance(sent, Dispatched)
    await ledger.park(sent, "no answer")
    await ledger.undo.finish(RUN, attempt_at=NOON, passed=frozenset([sent.key]))
    await refused("perhaps undone")

    never = Outcome.error(kind="DidNotHappen", message="ada looked", effect_possible=False)
    await ledger.settle(sent.key, never, by="ada")
    assert await committed(url, charge, {"order_id": "1"}) == claim.key, "it stands"
    queued = "insert into agent_relay (key, why, tool) values (%(key)s, 'undo', 'refund')"
    await sql(pool, queued, key=claim.key)
    await refused("just being undone")
    await sql(pool, "update agent_relay set due_at = now() - interval '3 minutes'")
    assert await committed(url, charge, {"order_id": "1"}) == claim.key, "no relay takes it up"


async def test_two_that_intend_one_fact_at_once_have_one_action(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    async with transaction(url) as first, transaction(url) as second:
        key = await intend(first, charge, {"order_id": "1"})
        waiting = asyncio.create_task(intend(second, charge, {"order_id": "1"}))
        await until_blocked(pool)
        await first.commit()
        assert await waiting == key

    # And where the first one does not commit, it is the second one's.
    async with transaction(url) as first, transaction(url) as second:
        gone = await intend(first, charge, {"order_id": "2"})
        waiting = asyncio.create_task(intend(second, charge, {"order_id": "2"}))
        await until_blocked(pool)
        await first.rollback()
        assert await waiting == gone

    assert await queue(pool) == [key, gone]


async def test_those_of_one_order_are_queued_in_the_order_of_their_commits(
    url: str, pool: Pool
) -> None:
    async with transaction(url) as first, transaction(url) as second, transaction(url) as other:
        a = await intend(first, mail, {"to": "a"}, order_key="customer 7")
        waiting = asyncio.create_task(intend(second, mail, {"to": "b"}, order_key="customer 7"))
        await until_blocked(pool)
        c = await intend(other, mail, {"to": "c"}, order_key="customer 8")  # waits for nobody
        await other.commit()
        await first.commit()
        b = await waiting

    assert await queue(pool) == [a, c, b]


# --- isolation levels ---------------------------------------------------------------------

BELOW = sub_run_key(RUN, Position("3.0"))


async def charged(ledger: ActionLedger, run: RunKey = RUN) -> ActionKey:
    """A charge that stands, and that `refund` undoes."""
    owner = None if run == RUN else "clerk"
    asked = replace(request(compensator="refund"), run_key=run, owner=owner)
    claim = await dispatched(ledger, asked, attempt())
    await ledger.record(claim, Outcome.ok("1"))
    return claim.key


async def stopped(ledger: ActionLedger) -> None:
    stop: dict[str, Any] = {"workflow_id": "w", "agent": "a", "reason": "no", "attempt_at": NOON}
    await ledger.runs.stop(RUN, **stop, compensate=True)


def own_refund(key: str | None = "re-1", **other: Any) -> ActionRequest:
    """A refund of that charge which a model calls."""
    refund = request("1.0", made=take_back, undoes_domain_key="order-1-charge", **other)
    return replace(refund, domain_key=key)


Change: TypeAlias = Callable[[ActionLedger], Awaitable[object]]


async def its_undo_begins(ledger: ActionLedger) -> Change:
    await charged(ledger)
    return lambda ledger: ledger.undo.begin(RUN, why="no", failed=True, attempt_at=NOON)


async def a_stop_undoes_it(ledger: ActionLedger) -> Change:
    await charged(ledger)
    return stopped


async def a_stop_undoes_it_from_above(ledger: ActionLedger) -> Change:
    given: dict[str, Any] = {"agent": "b", "input_digest": "", "attempt_at": NOON}
    await ledger.sub_runs.assign(BELOW, workflow_id="clerk", by="support", **given)
    await charged(ledger, BELOW)
    await ledger.runs.end(BELOW, attempt_at=NOON + timedelta(minutes=2), owner="clerk")
    return stopped


async def the_model_undoes_it(ledger: ActionLedger) -> Change:
    await charged(ledger)
    return lambda ledger: ledger.claim(own_refund(), attempt(1))


async def the_model_undoes_it_by_a_call_without_a_key(ledger: ActionLedger) -> Change:
    await charged(ledger)
    return lambda ledger: ledger.claim(own_refund(key=None), attempt(1))


async def a_refund_that_was_handed_back_goes_on(ledger: ActionLedger) -> Change:
    await charged(ledger)
    claim = await dispatched(ledger, own_refund(), by := attempt(1))
    assert await ledger.hand_back(claim, by)
    return lambda ledger: ledger.claim(own_refund(), attempt(2))


async def the_relay_is_to_undo_it(ledger: ActionLedger) -> Change:
    asked = replace(request(compensator="refund"), effect=Effect.AT_MOST_ONCE)
    claim = await dispatched(ledger, asked, attempt())
    await ledger.park(claim, "no answer")
    await ledger.undo.begin(RUN, why="no", failed=True, attempt_at=NOON)
    await ledger.undo.finish(RUN, attempt_at=NOON, passed=frozenset([claim.key]))
    return lambda ledger: ledger.record(claim, Outcome.ok("1"))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize(
    "change",
    [
        its_undo_begins,
        a_stop_undoes_it,
        a_stop_undoes_it_from_above,
        the_model_undoes_it,
        the_model_undoes_it_by_a_call_without_a_key,
        a_refund_that_was_handed_back_goes_on,
        the_relay_is_to_undo_it,
    ],
)
async def test_a_transaction_that_began_before_the_undo_does_not_rely_on_what_is_undone(
    url: str,
    ledger: ActionLedger,
    level: str,
    change: Callable[[ActionLedger], Awaitable[Change]],
) -> None:
    """It sees the charge as it stood. Repeated, it is told."""
    await open_run(ledger, RUN)
    undoes = await change(ledger)
    url = with_default_isolation(url, level)
    async with transaction(url) as conn:
        await conn.execute("select count(*) from agent_actions")
        await undoes(ledger)

        with pytest.raises(psycopg.errors.SerializationFailure):
            await intend(conn, charge, {"order_id": "1"})
        await conn.rollback()

        with pytest.raises(IntentRefused, match="just being undone"):
            await intend(conn, charge, {"order_id": "1"})


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
async def test_every_isolation_level_relies_on_what_stands_and_waits_for_nobody(
    url: str, ledger: ActionLedger, pool: Pool, level: str
) -> None:
    await open_run(ledger, RUN)
    key = await charged(ledger)
    async with (
        transaction(with_default_isolation(url, level)) as conn,
        holding(pool, "select from agent_runs, agent_actions for update"),  # not committed
    ):
        assert await intend(conn, charge, {"order_id": "1"}) == key
        new = await intend(conn, mail, {"to": "a"}, idempotency_key="a mail")
        assert await intend(conn, mail, {"to": "a"}, idempotency_key="a mail") == new
    async with transaction(with_default_isolation(url, level)) as conn:
        assert await intend(conn, charge, {"order_id": "1"}) == key
        # And it holds up no undo, though it is not committed yet.
        assert await ledger.undo.begin(RUN, why="no", failed=True, attempt_at=NOON)

    assert await queue(pool) == [new]


# --- what is refused ----------------------------------------------------------------------


async def test_what_cannot_be_intended_is_refused_and_the_transaction_goes_on(
    url: str, pool: Pool
) -> None:
    @tool(effect=Effect.READ)
    def look(order_id: str) -> None: ...

    @tool(effect=Effect.AT_MOST_ONCE, approval=lambda args: False)
    def pay(order_id: str) -> None: ...

    @tool(effect=Effect.AT_MOST_ONCE)
    def put(till: Till, order_id: str) -> None: ...

    refused: list[tuple[Tool, dict[str, Any], dict[str, Any], type[Exception]]] = [
        (look, {"order_id": "1"}, {}, IntentRefused),
        (pay, {"order_id": "1"}, {}, IntentRefused),
        (put, {"order_id": "1"}, {}, IntentRefused),
        (mail, {"to": "x" * 1_000_000}, {}, InvalidArguments),
        (charge, {"order": "1"}, {}, InvalidArguments),
        (charge, {"order_id": ""}, {}, InvalidIdempotencyKey),
        (charge, {"order_id": object()}, {}, InvalidArguments),
        *(
            (charge, {"order_id": "1"}, {"idempotency_key": key}, InvalidIdempotencyKey)
            for key in ("", " ", "a~2", "ä", "a\nb", "k" * 248)
        ),
        *(
            (charge, {"order_id": "1"}, {"order_key": key}, InvalidIdempotencyKey)
            for key in ("", "a\0b", "k" * 256)
        ),
    ]
    async with transaction(url) as conn:
        await conn.execute(ORDER)
        for made, args, options, error in refused:
            with pytest.raises(error):
                await intend(conn, made, args, **options)

    assert await orders(pool) == ["1"]
    assert await queue(pool) == []


async def test_a_connection_without_a_transaction_is_refused(url: str, pool: Pool) -> None:
    engine = create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with (
        psycopg.connect(url, autocommit=True) as conn,
        engine.connect() as other,
        Session(engine) as session,
    ):
        none_of_them: list[Any] = [conn, other, session, engine, pool, conn.cursor()]
        for no_transaction in none_of_them:
            with pytest.raises(NoTransaction):
                intend(no_transaction, charge, {"order_id": "1"})
        assert await queue(pool) == []

        with conn.transaction():
            key = intend(conn, charge, {"order_id": "1"})
    engine.dispose()

    assert await queue(pool) == [key]


async def test_a_database_without_an_outbox_says_so(url: str) -> None:
    async with transaction(url) as conn:
        await conn.execute("drop function commitline_intend")
        with pytest.raises(SchemaMismatch):
            await intend(conn, charge, {"order_id": "1"})


# --- what a role may -----------------------------------------------------------------------
# An application's: it may execute the two functions, and nothing else.


@pytest.fixture
def role(url: str) -> Iterator[Callable[[], str]]:
    """Make roles with the rights that the docs ask for; each call returns the URL of another."""
    made: list[str] = []

    def make() -> str:
        name = f"shop_{uuid.uuid4().hex}"
        made.append(name)
        grants = (
            "create role {} login",
            "grant usage on schema public to {}",
            "grant execute on function commitline_intend(json), commitline_outcome(text) to {}",
        )
        with psycopg.connect(url, autocommit=True) as owner:
            for grant in grants:
                owner.execute(sql_text(grant).format(Identifier(name)))
        return (
            urlsplit(url)
            ._replace(netloc=f"{name}@{url.rpartition('@')[2].partition('/')[0]}")
            .geturl()
        )

    yield make
    with psycopg.connect(url, autocommit=True) as owner:
        for name in made:
            owner.execute(sql_text("drop owned by {}").format(Identifier(name)))
            owner.execute(sql_text("drop role {}").format(Identifier(name)))


async def test_an_application_may_intend_and_read_how_its_own_ended_and_nothing_else(
    url: str, ledger: ActionLedger, role: Callable[[], str]
) -> None:
    shop, other = role(), role()
    key = await committed(shop, charge, {"order_id": "1"})
    with pytest.raises(IdempotencyKeyConflict) as refused:
        await committed(other, charge, {"order_id": "1", "cents": 7})
    await carried_out(ledger, key, Outcome.ok('"receipt"'))

    for forbidden in (
        "select args from agent_actions",
        "update agent_runs set state = 'running'",
        "insert into agent_intents values ('outbox/order-1-charge:0', current_user)",
        "delete from agent_relay",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(other) as conn:
            conn.execute(forbidden)
    async with ledger_pool(shop) as its, ledger_pool(other) as others:
        assert await ActionLedger(its).outcome(key) == Outcome.ok('"receipt"')
        with pytest.raises(ActionNotFound):
            await ActionLedger(others).outcome(key)
        assert await committed(other, charge, {"order_id": "1"}) == key
        assert await ActionLedger(others).outcome(key) == Outcome.ok('"receipt"')
    assert "cents" not in refused.value.message


async def test_a_role_that_was_granted_nothing_may_not_intend(
    url: str, role: Callable[[], str]
) -> None:
    nobody = role()
    name = urlsplit(nobody).username or ""
    with psycopg.connect(url, autocommit=True) as owner:
        revoke = "revoke execute on function commitline_intend(json) from {}"
        owner.execute(sql_text(revoke).format(Identifier(name)))

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await committed(nobody, charge, {"order_id": "1"})


async def test_tables_of_the_caller_are_never_taken_for_the_ledgers(
    ledger: ActionLedger, role: Callable[[], str]
) -> None:
    async with transaction(role()) as conn:
        for table in ("agent_actions", "agent_runs", "agent_domain_keys", "agent_intents"):
            await conn.execute(
                sql_text("create temp table {} (key text)").format(Identifier(table))
            )
        await conn.execute("set local search_path = pg_temp, public")
        key = await intend(conn, charge, {"order_id": "1"})

    assert (await the(ledger, key)).state == "intent"


async def test_a_role_that_another_one_has_set_intends_under_its_own_name(
    url: str, role: Callable[[], str]
) -> None:
    name = urlsplit(role()).username or ""
    async with transaction(url) as conn:
        await conn.execute(sql_text("set local role {}").format(Identifier(name)))
        key = await intend(conn, mail, {"to": "a"})
    with psycopg.connect(url) as owner:
        said = owner.execute("select role from agent_intents where key = %s", (key,)).fetchall()

    assert said == [(name,)]


@pytest.mark.parametrize("key", ["a~2", "ä", "a\nb", " ", "", "k" * 248])
async def test_a_request_that_python_would_not_have_made_is_refused_by_the_database(
    key: str, url: str, pool: Pool
) -> None:
    forged = {"tool": "mail", "args": "{}", "domain_key": key}

    with pytest.raises(psycopg.errors.InvalidParameterValue, match="no domain key"):
        async with transaction(url) as conn:
            await conn.execute("select commitline_intend(%s::json)", (dumps(forged),))

    assert await queue(pool) == []


# --- what became of it --------------------------------------------------------------------


async def test_the_outcome_is_waited_for_and_none_while_it_is_not_known(
    url: str, ledger: ActionLedger
) -> None:
    with pytest.raises(ActionNotFound):
        await ledger.outcome(ActionKey("outbox/nothing:0"), wait_seconds=30)
    key = await committed(url, charge, {"order_id": "1"})
    assert await ledger.outcome(key) is None
    assert await ledger.outcome(key, wait_seconds=0.1) is None
    waiting = asyncio.create_task(ledger.outcome(key, wait_seconds=30))

    await carried_out(ledger, key, Outcome.ok('"receipt"'))

    assert await waiting == Outcome.ok('"receipt"')


async def test_a_person_calls_an_intent_off(url: str, ledger: ActionLedger, pool: Pool) -> None:
    key = await committed(url, charge, {"order_id": "1"})
    never = Outcome.error(kind="DidNotHappen", message="not wanted", effect_possible=False)

    await ledger.settle(key, never, by="ada")

    assert await ledger.outcome(key) == never
    assert await queue(pool) == []
    assert await committed(url, charge, {"order_id": "1"}) == "outbox/order-1-charge~2:0"


async def test_the_relay_sends_what_never_happened_also_after_the_end_of_its_run(
    url: str, ledger: ActionLedger
) -> None:
    """A detached call of a tool that can be asked, whose first attempt was lost."""
    await open_run(ledger, RUN)
    looked_up = replace(request(detached=True), effect=Effect.LOOKUP)
    await ledger.claim(looked_up, attempt())
    await ledger.runs.end(RUN, attempt_at=NOON + timedelta(minutes=2))
    asks = replace(relay_request(await the(ledger, looked_up.key)), can_look_up=True)
    assert isinstance(await ledger.claim(asks, attempt(1)), Dispatched)

    again = await ledger.claim(asks, attempt(2))
    assert isinstance(again, LookUp)
    await ledger.send_after_lookup(asks, again.call)
    await ledger.record(again.call, Outcome.ok("1"))

    assert await ledger.outcome(looked_up.key) == Outcome.ok("1")
    settled = await the(ledger, looked_up.key)
    assert settled.settled_at is not None  # the conversation is to be told


async def test_what_was_told_of_a_detached_call_is_told_again_whatever_became_of_it(
    url: str, ledger: ActionLedger
) -> None:
    """And nobody but the relay sends it, not even its own run under newer code."""
    await open_run(ledger, RUN)
    detached = request(detached=True)
    claims = [await ledger.claim(detached, attempt())]
    claims.append(await ledger.claim(request(), attempt(1)))  # no longer detached, in its code
    await carried_out(ledger, detached.key, Outcome.ok("1"))
    claims.append(await ledger.claim(detached, attempt(2)))

    assert [type(claim) for claim in claims] == [Accepted] * 3
    with pytest.raises(PlanDivergence):
        await ledger.claim(replace(detached, requested_digest="another plan"), attempt(3))


async def test_what_a_fork_takes_back_before_it_was_sent_is_never_sent(
    url: str, ledger: ActionLedger, pool: Pool
) -> None:
    await open_run(ledger, RUN, thread_id="a thread", spec="{}")
    await ledger.threads.open("a thread", agent="a")
    message = NewMessage("assistant", "{}")
    await ledger.threads.commit(Turn("a thread", 0, RUN, 0, 0, [message]))
    unsent, sent = request("0.0", detached=True), request("0.1", made=refund, detached=True)
    for one in (unsent, sent):
        assert isinstance(await ledger.claim(one, attempt()), Accepted)
    claim = await ledger.claim(relay_request(await the(ledger, sent.key)), attempt(1))
    assert isinstance(claim, Dispatched)

    await ledger.threads.fork(RUN, 0)

    assert await queue(pool) == [sent.key]
    assert (await the(ledger, unsent.key)).state == "error"
    assert (await the(ledger, sent.key)).state == "dispatched"  # the relay answers for it
    assert await committed(url, charge, {"order_id": "1"}) == "outbox/order-1-charge~2:0"
