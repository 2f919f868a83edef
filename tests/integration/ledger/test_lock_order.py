"""The order of locks: no two writers of a conversation wait for each other.

A deadlock would not be resolved here (see conftest), so a wrong order shows as a time-out.
"""

from __future__ import annotations

import asyncio

import pytest

from commitline.identity import Position
from commitline.ledger import ActionLedger, Parked, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, DID_NOT_HAPPEN, attempt, dispatched, parked
from commitline.tests.integration.database import holding, sql, until_blocked
from commitline.tests.integration.ledger.conversations import (
    DOMAIN_KEY,
    OTHER,
    RECEIPT,
    RUN_A,
    RUN_B,
    RUN_C,
    RUN_D,
    THREAD,
    action,
    give_up,
    handed_back,
    holding_action,
    holding_thread,
    in_this_order,
    turn,
    until_blocked_or_done,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_a_fork_and_a_settlement_of_what_its_turns_repeat_do_not_wait_for_each_other(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    # "…:10.0" sorts before "…:8.0" and "…:9.0".
    for step in range(11):
        await threads.commit(turn(step, step=step))
    between = action("8.0", args='{"order_id":"8"}')
    await dispatched(ledger, between)
    original = await parked(ledger, action("9.0"))
    repeated = await ledger.claim(action("10.0"), attempt())
    assert isinstance(repeated, Parked)

    async with holding_action(pool, between.key):
        forking = asyncio.ensure_future(threads.fork(RUN_A, 8))
        await until_blocked(pool, 1)
        settling = asyncio.ensure_future(ledger.settle(original.key, RECEIPT, by="ada"))
        await until_blocked_or_done(pool, 2, settling)

    assert {one.key for one in await settling} == {original.key, repeated.action.key}
    assert await forking == 1


async def test_a_fork_and_a_settlement_of_what_it_takes_back_do_not_wait_for_each_other(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    first = await parked(ledger, action("0.0", domain_key=DOMAIN_KEY))
    await ledger.settle(first.key, DID_NOT_HAPPEN, by="ada")
    await threads.commit(turn(0, told=[first.key]))
    await handed_back(ledger, action("0.1", domain_key=DOMAIN_KEY))

    settled, forked = await in_this_order(
        pool,
        holding(pool, "select from agent_domain_keys for update"),
        ledger.settle(first.key, DID_NOT_HAPPEN, by="ada"),
        threads.fork(RUN_A, 0),
    )

    assert [one.key for one in settled] == [first.key]
    assert forked == 1


async def test_an_intent_that_comes_back_while_its_turn_is_given_up_is_void_and_nobody_waits(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    before, intent, after = (
        action("0.0", args='{"order_id":"0"}'),
        action("0.1", domain_key=DOMAIN_KEY),
        action("0.2", args='{"order_id":"2"}'),
    )
    by = attempt()
    for request in (before, after):
        await dispatched(ledger, request)
    await dispatched(ledger, intent, by)
    positions = [before.position, intent.position, after.position]

    async with holding_action(pool, after.key):
        async with holding_action(pool, before.key):
            giving_up = asyncio.ensure_future(give_up(threads, RUN_A, positions, by=RUN_C))
            await until_blocked(pool, 1)
            handing_back = asyncio.ensure_future(ledger.hand_back(intent, by))
            await until_blocked_or_done(pool, 2, handing_back)
        await until_blocked(pool, 1)
        claiming = asyncio.ensure_future(
            ledger.claim(action(run=RUN_B, domain_key=DOMAIN_KEY), attempt(1))
        )
        await until_blocked(pool, 2)

    found = await giving_up
    await handing_back
    await claiming
    assert {one.state for one in found.values()} <= {"unknown", "error"}


async def test_giving_up_and_a_settlement_of_what_its_calls_repeat_do_not_wait_for_each_other(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    # Its rows lie in the order of these claims.
    await sql(pool, "truncate agent_relay, agent_actions")
    original = await parked(ledger, action("0.0"))
    for request in (action("1.9"), action(run=RUN_C), action("1.10")):
        assert isinstance(await ledger.claim(request, attempt()), Parked)

    async with holding_action(pool, action(run=RUN_C).key):
        settling = asyncio.ensure_future(ledger.settle(original.key, RECEIPT, by="ada"))
        await until_blocked(pool, 1)
        giving_up = asyncio.ensure_future(
            give_up(threads, RUN_A, [Position("1.9"), Position("1.10")], by=RUN_B)
        )
        await until_blocked_or_done(pool, 2, giving_up)

    assert len(await settling) == 4
    assert set(await giving_up) == {"1.9", "1.10"}


async def test_two_attempts_that_repeat_an_unknown_at_once_are_both_answered_unknown(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = await parked(ledger, action())
    repeated = action(run=RUN_B)

    claims = await in_this_order(
        pool,
        holding_action(pool, original.key),
        ledger.claim(repeated, attempt(0)),
        ledger.claim(repeated, attempt(1)),
    )

    assert [type(claim).__name__ for claim in claims] == ["Parked", "Parked"]
    assert {claim.action.duplicate_of for claim in claims} == {original.key}


async def test_two_attempts_that_send_a_released_business_fact_at_once_send_it_once(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await dispatched(ledger, action(domain_key=DOMAIN_KEY))
    await ledger.record(first, DECLINED)
    anew = action(run=RUN_B, domain_key=DOMAIN_KEY)

    claims = await in_this_order(
        pool,
        holding(pool, "select from agent_domain_keys for update"),
        ledger.claim(anew, attempt(0)),
        ledger.claim(anew, attempt(1)),
    )

    assert [type(claim).__name__ for claim in claims] == ["Dispatched", "Parked"]


async def test_commits_receives_and_deletions_of_other_conversations_do_not_wait(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    async with holding_thread(pool):
        await threads.commit(turn(0, RUN_D, thread_id=OTHER))
        await threads.receive(OTHER, "r1", '"hello"', agent="support")
        await threads.delete(OTHER)
        await threads.read(RUN_A, THREAD)
        await dispatched(ledger, action())
        await threads.pending_notices(THREAD)
