"""Notices of a conversation: a commit that shows one to the model marks it as shown."""

from __future__ import annotations

import pytest

from commitline.errors import StaleThread
from commitline.ledger import ActionLedger, Parked, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import NOON, attempt, parked
from commitline.tests.integration.ledger.conversations import (
    OTHER,
    RECEIPT,
    RUN_A,
    RUN_B,
    RUN_C,
    RUN_D,
    THREAD,
    action,
    holding_thread,
    in_this_order,
    row,
    turn,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_what_was_settled_is_told_once_by_the_commit_that_tells_it(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await parked(ledger, action())
    assert await threads.pending_notices(THREAD) == []

    await ledger.settle(first.key, RECEIPT, by="ada")
    (found,) = await threads.pending_notices(THREAD)
    (again,) = await threads.pending_notices(THREAD)
    await threads.commit(turn(0, told=[first.key]))

    assert (found.key, found.state, found.decided_by) == (first.key, "ok", "ada")
    assert again.key == found.key
    assert await threads.pending_notices(THREAD) == []
    assert (await row(ledger, action())).notified_version == 1


async def test_a_commit_that_fails_tells_nothing(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await parked(ledger, action())
    await ledger.settle(first.key, RECEIPT, by="ada")
    await threads.commit(turn(0))

    with pytest.raises(StaleThread):
        await threads.commit(turn(0, RUN_B, told=[first.key]))

    assert [one.key for one in await threads.pending_notices(THREAD)] == [first.key]


async def test_of_two_turns_that_tell_one_settlement_at_once_one_tells_it(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    first = await parked(ledger, action())
    await ledger.settle(first.key, RECEIPT, by="ada")

    _, stale = await in_this_order(
        pool,
        holding_thread(pool),
        threads.commit(turn(0, RUN_B, told=[first.key])),
        threads.commit(turn(0, RUN_C, told=[first.key])),
    )
    await threads.commit(turn(1, RUN_C, told=[first.key]))

    assert isinstance(stale, StaleThread)
    assert (await row(ledger, action())).notified_version == 1


async def test_what_is_still_unknown_is_not_marked_as_told(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await parked(ledger, action())

    await threads.commit(turn(0, told=[first.key, "no such action"]))
    await ledger.settle(first.key, RECEIPT, by="ada")

    assert [one.key for one in await threads.pending_notices(THREAD)] == [first.key]


async def test_what_is_settled_after_a_run_has_ended_is_told_to_the_next_one_once(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await parked(ledger, action())
    elsewhere = await parked(ledger, action(run=RUN_D, thread_id=OTHER))
    await threads.commit(turn(0))
    await ledger.runs.end(RUN_A, attempt_at=NOON)

    for claim in (first, elsewhere):
        await ledger.settle(claim.key, RECEIPT, by="ada")

    (told,) = await threads.pending_notices(THREAD)
    assert told.key == first.key
    await threads.commit(turn(1, RUN_B, told=[told.key]))
    assert await threads.pending_notices(THREAD) == []
    assert [one.key for one in await threads.pending_notices(OTHER)] == [elsewhere.key]


async def test_a_late_answer_to_what_was_unknown_is_told_and_its_repetition_with_it(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await parked(ledger, action())
    repeated = await ledger.claim(action(run=RUN_B), attempt())
    assert isinstance(repeated, Parked)

    await ledger.record(first, RECEIPT)

    found = await threads.pending_notices(THREAD)
    assert {one.key for one in found} == {first.key, repeated.action.key}
    await threads.commit(turn(0, RUN_C, told=[one.key for one in found]))
    assert await threads.pending_notices(THREAD) == []
