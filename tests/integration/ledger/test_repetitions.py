"""An unknown action of a conversation holds back every equal call of a later turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitline.identity import RunKey
from commitline.ledger import ActionLedger, Dispatched, Parked, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import attempt, dispatched, parked
from commitline.tests.integration.ledger.conversations import (
    OTHER,
    RECEIPT,
    RUN_A,
    RUN_B,
    RUN_D,
    THREAD,
    action,
    holding_action,
    in_this_order,
    open_run,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_an_unknown_of_another_run_of_the_conversation_is_not_repeated(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await parked(ledger, action())

    claim = await ledger.claim(action(run=RUN_B), attempt())

    assert isinstance(claim, Parked)
    assert (claim.action.key, claim.action.duplicate_of) == (action(run=RUN_B).key, first.key)
    assert (claim.action.dispatched_at, claim.action.thread_id) == (None, THREAD)


async def test_an_unknown_of_another_conversation_holds_nothing_back(ledger: ActionLedger) -> None:
    await parked(ledger, action())

    await dispatched(ledger, action(run=RUN_D, thread_id=OTHER))
    await dispatched(ledger, action("1.0", run=RUN_B, args='{"order_id":"4822"}'))


async def test_an_unknown_that_became_known_holds_nothing_back_any_more(
    ledger: ActionLedger,
) -> None:
    first = await parked(ledger, action())
    await ledger.settle(first.key, RECEIPT, by="ada")

    await dispatched(ledger, action(run=RUN_B))


@pytest.mark.parametrize("repeats", [False, True])
async def test_an_unknown_that_is_tried_again_holds_back_its_repetition_until_it_is_known(
    ledger: ActionLedger, *, repeats: bool
) -> None:
    first = await parked(ledger, action())
    assert await ledger.undo.reopen(first.key)

    claim = await ledger.claim(action(run=RUN_B), replace(attempt(), repeats=repeats))

    assert isinstance(claim, Parked)
    assert claim.action.duplicate_of == first.key
    await ledger.record(first, RECEIPT)
    repeat = await ledger.get(claim.action.key)
    assert repeat is not None
    assert repeat.recorded == RECEIPT
    await dispatched(ledger, action("1.0", run=RUN_B))


async def test_a_row_without_a_conversation_counts_for_its_run(ledger: ActionLedger) -> None:
    run, other = RunKey("single/x"), RunKey("single/y")
    for one in (run, other):
        await open_run(ledger, one, thread_id=None)
    await parked(ledger, action(run=run, thread_id=None))

    # The next release names the run's own conversation, which is the run's key.
    repeated = await ledger.claim(action("1.0", run=run, thread_id=run), attempt())
    older = await ledger.claim(action("2.0", run=run, thread_id=None), attempt())

    assert isinstance(repeated, Parked)
    assert isinstance(older, Parked)
    await dispatched(ledger, action(run=other, thread_id=None))
    await dispatched(ledger, action(run=RUN_A))


async def test_a_repetition_that_waits_for_a_settlement_is_sent_once_that_is_known(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await parked(ledger, action())

    settled, claim = await in_this_order(
        pool,
        holding_action(pool, first.key),
        ledger.settle(first.key, RECEIPT, by="ada"),
        ledger.claim(action(run=RUN_B), attempt()),
    )

    assert [one.key for one in settled] == [first.key]
    assert isinstance(claim, Dispatched)


async def test_a_settlement_that_waits_for_a_repetition_settles_it_too(
    ledger: ActionLedger, pool: Pool, threads: ThreadLedger
) -> None:
    first = await parked(ledger, action())

    claim, settled = await in_this_order(
        pool,
        holding_action(pool, first.key),
        ledger.claim(action(run=RUN_B), attempt()),
        ledger.settle(first.key, RECEIPT, by="ada"),
    )

    assert isinstance(claim, Parked)
    assert {one.key for one in settled} == {first.key, action(run=RUN_B).key}
    assert {one.key for one in await threads.pending_notices(THREAD)} == {
        one.key for one in settled
    }
