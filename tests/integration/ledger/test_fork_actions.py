"""Forks and actions: positions of their own, and what becomes of the calls from before."""

from __future__ import annotations

import pytest

from commitline.errors import StaleThread
from commitline.ledger import ActionLedger, AlreadyDone, Dispatched, Parked, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import attempt, dispatched, parked
from commitline.tests.integration.ledger.conversations import (
    DOMAIN_KEY,
    OTHER,
    RECEIPT,
    RUN_A,
    RUN_B,
    RUN_D,
    THREAD,
    action,
    everything,
    handed_back,
    holding_run,
    in_this_order,
    row,
    three_turns,
    turn,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_a_fork_goes_on_at_positions_of_its_own(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await three_turns(threads)
    done = action("1.0")
    await ledger.record(await dispatched(ledger, done), RECEIPT)
    await threads.fork(RUN_A, 1)

    anew = await dispatched(ledger, action("e1-1.0"))

    assert anew.key == f"{RUN_A}:e1-1.0"
    assert (await row(ledger, done)).recorded == RECEIPT
    again = await ledger.claim(done, attempt(1))
    assert isinstance(again, AlreadyDone)
    await threads.commit(turn(4, step=1, epoch=1))
    await threads.fork(RUN_A, 1)
    await dispatched(ledger, action("e2-1.0", args='{"order_id":"2"}'))


async def test_the_execution_from_before_a_fork_starts_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    intent = action("1.0", domain_key=DOMAIN_KEY)
    await handed_back(ledger, intent)
    await threads.fork(RUN_A, 1)
    before = await everything(pool)

    for late in (action("1.1"), action("2.0"), action("2.1", domain_key="new")):
        with pytest.raises(StaleThread):
            await ledger.claim(late, attempt(1))
    assert isinstance(await ledger.claim(intent, attempt(1)), AlreadyDone)

    assert await everything(pool) == before
    # What both ways have in common goes on.
    assert isinstance(await ledger.claim(action("0.0"), attempt(1)), Dispatched)
    await threads.commit(turn(4, step=1, epoch=1))
    await threads.fork(RUN_A, 1)
    with pytest.raises(StaleThread):
        await ledger.claim(action("e1-1.0"), attempt(1))


async def test_a_claim_that_waits_for_a_fork_is_fenced_and_one_before_it_is_parked(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    forked, late = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        threads.fork(RUN_A, 2),
        ledger.claim(action("2.0"), attempt()),
    )
    await threads.commit(turn(4, step=2, epoch=1))
    early, again = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        ledger.claim(action("e1-2.0"), attempt()),
        threads.fork(RUN_A, 2),
    )

    assert (forked, again) == (1, 2)
    assert isinstance(late, StaleThread)
    assert isinstance(early, Dispatched)
    assert (await row(ledger, action("e1-2.0"))).state == "unknown"


async def test_a_fork_parks_what_may_have_been_sent_from_its_turn_on_and_voids_what_was_not(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await three_turns(threads)
    before = action("0.0", args='{"order_id":"0"}')
    sent = action("1.0", args='{"order_id":"1"}')
    later = action("12.0", args='{"order_id":"2"}')
    intent = action("2.0", domain_key=DOMAIN_KEY)
    foreign = action("undo of 1.0", args='{"order_id":"3"}')
    other = action("1.0", run=RUN_B, args='{"order_id":"4"}')
    for request in (before, later, foreign, other):
        await dispatched(ledger, request)
    claim = await dispatched(ledger, sent)
    await handed_back(ledger, intent)

    await threads.fork(RUN_A, 1)

    states = {one.position + one.run_key[-1]: one.state for one in await ledger.list()}
    assert states == {
        "0.0a": "dispatched",
        "1.0a": "unknown",
        "12.0a": "unknown",
        "2.0a": "error",
        "undo of 1.0a": "dispatched",
        "1.0b": "dispatched",
    }
    free = await dispatched(ledger, action("e1-1.0", domain_key=DOMAIN_KEY))
    assert free.idempotency_key == f"{DOMAIN_KEY}~2"
    await ledger.record(claim, RECEIPT)
    assert [one.key for one in await threads.pending_notices(THREAD)] == [sent.key]


async def test_an_unknown_that_a_fork_left_holds_back_its_repetition(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await three_turns(threads)
    await dispatched(ledger, action("1.0"))
    await threads.fork(RUN_A, 1)

    claim = await ledger.claim(action("e1-1.0"), attempt())

    assert isinstance(claim, Parked)
    assert claim.action.duplicate_of == action("1.0").key


async def test_what_was_told_in_what_a_fork_takes_back_is_told_again(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    early = await parked(ledger, action("0.0", args='{"order_id":"1"}'))
    late = await parked(ledger, action("0.1", args='{"order_id":"2"}'))
    other = await parked(ledger, action(run=RUN_D, thread_id=OTHER))
    for claim in (early, late, other):
        await ledger.settle(claim.key, RECEIPT, by="ada")
    await threads.commit(turn(0, told=[early.key]))
    await threads.commit(turn(1, step=1, told=[late.key]))
    for number in range(3):
        await threads.commit(turn(number, RUN_D, number, thread_id=OTHER, told=[other.key]))

    await threads.fork(RUN_A, 1)

    assert [one.key for one in await threads.pending_notices(THREAD)] == [late.key]
    assert await threads.pending_notices(OTHER) == []
    await threads.commit(turn(3, step=1, epoch=1, told=[late.key]))
    assert await threads.pending_notices(THREAD) == []
