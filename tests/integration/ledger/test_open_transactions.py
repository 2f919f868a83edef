"""An application's transaction stays open: who needs its locks keeps no connection meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from commitline import Effect, tool
from commitline.errors import IdempotencyKeyConflict
from commitline.identity import RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    Busy,
    Dispatched,
    Outcome,
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
)

RUN, OTHER = RunKey("support/1"), RunKey("support/2")
ORDER = {"order_id": "4821"}
SOON = 3.0
"""Seconds: far less than a ledger call may take."""


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}")
async def ship(order_id: str) -> None:
    """Ship an order."""


def action(position: str, *, run: RunKey = RUN, **given: Any) -> ActionRequest:
    return action_request(run, position, **given)


@pytest_asyncio.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """Two connections."""
    async with ledger_pool(database_url, size=2) as pool:
        yield pool


@pytest_asyncio.fixture
async def ledger(pool: Pool) -> ActionLedger:
    ledger = ActionLedger(pool)
    for run in (RUN, OTHER):
        await open_run(ledger, run)
    return ledger


@pytest_asyncio.fixture
async def application(database_url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """A connection of an application; its transaction ends when the test says so."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        yield connection
        await connection.rollback()


async def goes_on(ledger: ActionLedger) -> float:
    """Have a run that needs no lock of the application's make a call; return the seconds."""
    began = time.monotonic()
    claim = await dispatched(ledger, action("0.0", run=OTHER, domain_key="order-of-others"))
    assert await ledger.record(claim, Outcome.ok("1")) == Outcome.ok("1")
    return time.monotonic() - began


async def test_claims_of_a_fact_that_an_open_transaction_intends_are_busy_soon(
    ledger: ActionLedger, application: psycopg.AsyncConnection
) -> None:
    await intend(application, ship, ORDER)
    requests = [action(f"0.{call}", domain_key="order-4821") for call in range(20)]

    claiming = asyncio.gather(*(ledger.claim(request, attempt()) for request in requests))
    await asyncio.sleep(0)
    others = await goes_on(ledger)
    claims = await claiming
    await application.rollback()

    assert claims == [Busy(None)] * 20
    assert others < SOON
    assert isinstance(await ledger.claim(requests[0], attempt(1)), Dispatched)
    assert [one.tries for one in await ledger.list(RUN)] == [1]


async def refuse(ledger: ActionLedger, claim: Dispatched) -> object:
    return await ledger.record(claim, DECLINED)


async def settle(ledger: ActionLedger, claim: Dispatched) -> object:
    await ledger.park(claim, "its answer was lost")
    return [one.recorded for one in await ledger.settle(claim.key, DECLINED, by="ada")]


async def undo(ledger: ActionLedger, claim: Dispatched) -> object:
    await ledger.record(claim, Outcome.ok("1"))
    undoing = action(f"1{claim.place[1][1:]}", undoes_domain_key=claim.domain_key)
    return await ledger.claim(undoing, attempt())


@pytest.mark.parametrize(
    ("work", "answer"), [(refuse, DECLINED), (settle, [DECLINED]), (undo, Busy(None))]
)
async def test_an_outcome_that_an_open_transaction_holds_up_is_not_lost_and_holds_up_nobody(
    ledger: ActionLedger,
    application: psycopg.AsyncConnection,
    work: Callable[[ActionLedger, Dispatched], Awaitable[object]],
    answer: object,
) -> None:
    claims = []
    for call in range(8):
        fact = str(call)
        request = action(f"0.{call}", domain_key=f"order-{fact}", tool="ship")
        claims.append(await dispatched(ledger, request))
        with suppress(IdempotencyKeyConflict):  # the lock is there all the same
            await intend(application, ship, {"order_id": fact})

    working = asyncio.gather(*(work(ledger, claim) for claim in claims))
    await asyncio.sleep(0)
    others = await goes_on(ledger)
    await asyncio.wait({working}, timeout=0.5)
    over = working.done()
    await application.rollback()

    assert others < SOON
    assert over == (work is undo)
    assert await working == [answer] * 8


async def test_a_relay_waits_for_no_entry_that_an_open_transaction_takes_out(
    ledger: ActionLedger, database_url: str, application: psycopg.AsyncConnection
) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as committed:
        await intend(committed, ship, ORDER)
        await intend(committed, ship, {"order_id": "another"})
    taken = await ledger.relay.take_due(["ship"], limit=9)
    await ledger.runs.stop(
        RunKey("outbox/order-4821"), workflow_id="", agent="", reason="", attempt_at=NOON
    )
    await intend(application, ship, ORDER)  # in the place of the one that is never sent now

    async with asyncio.timeout(SOON):
        for entry in taken:
            await ledger.relay.count_start(entry)
        queued = {one.key: one.starts for one in await ledger.relay.list()}

    assert queued == {"outbox/order-4821:0": 0, "outbox/order-another:0": 1}
