"""Tries that failed: how they are counted, and how long the next one may send."""

from __future__ import annotations

from datetime import timedelta

import pytest

from commitline.errors import Fenced
from commitline.ledger import ActionLedger, Effect, Parked
from commitline.ledger.pool import Pool
from commitline.tests.builders import dispatched
from commitline.tests.integration.ledger.shipments import (
    MINUTE,
    RECEIPT,
    SLACK,
    action,
    all_sent,
    asked,
    attempt,
    row,
    sent_until,
)

pytestmark = pytest.mark.usefixtures("two_runs")


async def test_a_failed_try_counts_once_per_claim_however_often_that_is_said(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, action(), attempt())

    counted = [await ledger.fail_try(claim) for _ in range(3)]

    assert counted == [1, 1, 1]
    assert (await row(ledger, claim.key)).failures == 1


async def test_failures_survive_whoever_takes_over(ledger: ActionLedger, pool: Pool) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    await ledger.fail_try(await dispatched(ledger, request, attempt()))
    lost = await dispatched(ledger, request, attempt(1))
    taken = await dispatched(ledger, request, attempt(2))
    assert await ledger.fail_try(taken) == 2

    wanted = action("3.1", effect=Effect.IDEMPOTENT)
    asking = action("0.1", effect=Effect.LOOKUP)
    await ledger.fail_try(await dispatched(ledger, asking, attempt()))
    ask = await asked(ledger, asking, attempt(1))

    assert (lost.failures, taken.failures) == (1, 1)
    assert (await row(ledger, request.key)).failures == 2
    assert ask.call.failures == 1
    assert (await dispatched(ledger, wanted, attempt())).failures == 0


async def test_a_try_that_is_over_sends_nothing_any_more(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action(), attempt())

    await ledger.fail_try(claim, over=True)

    found = await ledger.get(claim.key)
    assert found is not None
    assert found.sent_until is not None
    assert -SLACK < found.sent_until - found.now <= timedelta()
    ask = await asked(ledger, action(), attempt(1))
    assert MINUTE - SLACK < ask.settles_in <= MINUTE


async def test_a_try_that_was_over_before_stays_over_since_then(
    ledger: ActionLedger, pool: Pool
) -> None:
    claim = await dispatched(ledger, action(), attempt())
    await all_sent(pool)
    until = await sent_until(ledger, claim.key)

    await ledger.fail_try(claim, over=True)

    assert await sent_until(ledger, claim.key) == until


async def test_a_try_that_may_go_on_may_send_until_its_deadline(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action(), attempt())
    until = await sent_until(ledger, claim.key)

    await ledger.fail_try(claim, over=False)

    assert await sent_until(ledger, claim.key) == until
    assert (await row(ledger, claim.key)).failures == 1


@pytest.mark.parametrize("state", ["taken over", "done"])
async def test_who_does_not_own_the_action_counts_no_failure(
    ledger: ActionLedger, state: str
) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    claim = await dispatched(ledger, request, attempt())
    if state == "done":
        await ledger.record(claim, RECEIPT)
    else:
        await dispatched(ledger, request, attempt(1))
    before = await row(ledger, claim.key)

    with pytest.raises(Fenced):
        await ledger.fail_try(claim)

    assert await row(ledger, claim.key) == before


async def test_what_is_in_progress_downstream_uses_up_no_failure(ledger: ActionLedger) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    await ledger.fail_try(await dispatched(ledger, request, attempt()))
    claim = await dispatched(ledger, request, attempt(1))

    assert await ledger.fail_try(claim, in_progress=True) == 1

    found = await row(ledger, request.key)
    assert (found.failures, found.in_progress) == (1, True)


async def test_what_is_in_progress_downstream_is_called_again_once_whatever_its_effect(
    ledger: ActionLedger,
) -> None:
    request = action(effect=Effect.AT_MOST_ONCE, can_look_up=False)
    first = await dispatched(ledger, request, attempt())
    await ledger.fail_try(first, in_progress=True)

    again = await dispatched(ledger, request, attempt(1))
    dispatch = await row(ledger, request.key)
    lost = await ledger.claim(request, attempt(2))

    assert again.taken_over
    assert again.idempotency_key == first.idempotency_key
    assert (dispatch.in_progress, dispatch.tries) == (False, 2)
    assert isinstance(lost, Parked)
    assert (await row(ledger, request.key)).tries == 2


async def test_what_is_in_progress_again_is_called_again(ledger: ActionLedger) -> None:
    request = action(effect=Effect.AT_MOST_ONCE, can_look_up=False)
    for second in range(4):
        claim = await dispatched(ledger, request, attempt(second))
        assert await ledger.fail_try(claim, in_progress=True) == 0


async def test_what_failed_for_good_after_it_was_in_progress_is_not_called_again(
    ledger: ActionLedger,
) -> None:
    request = action(effect=Effect.AT_MOST_ONCE, can_look_up=False)
    claim = await dispatched(ledger, request, attempt())
    await ledger.fail_try(claim, in_progress=True)
    await ledger.fail_try(claim)

    assert isinstance(await ledger.claim(request, attempt(1)), Parked)


async def test_what_is_in_progress_is_still_asked_about_where_it_is_looked_up(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, action(), attempt())
    await ledger.fail_try(claim, in_progress=True)

    ask = await asked(ledger, action(), attempt(1))
    await ledger.send_after_lookup(action(), ask.call)

    assert not (await row(ledger, claim.key)).in_progress
