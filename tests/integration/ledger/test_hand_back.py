"""Handing an action back: only by the attempt that dispatched it first and alone."""

from __future__ import annotations

import pytest

from commitline.ledger import ActionLedger, Effect, Parked
from commitline.ledger.pool import Pool
from commitline.tests.builders import dispatched
from commitline.tests.integration.ledger.shipments import (
    RECEIPT,
    action,
    all_sent,
    asked,
    attempt,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")


async def test_an_action_that_is_handed_back_keeps_its_failures_and_nothing_else(
    ledger: ActionLedger,
) -> None:
    by = attempt()
    claim = await dispatched(ledger, action(), by)

    assert await ledger.hand_back(claim, by, failures=1)

    found = await row(ledger, claim.key)
    assert (found.state, found.failures, found.tries) == ("intent", 1, 0)
    assert (found.sent_until, found.lease_until, found.attempt_at) == (None, None, None)
    again = await dispatched(ledger, action(), attempt(1))
    assert (again.failures, again.taken_over) == (1, False)


async def test_handing_back_without_a_failure_forgets_none(ledger: ActionLedger) -> None:
    for second, failures in enumerate([2, 0, 0]):
        by = attempt(second)
        claim = await dispatched(ledger, action(), by)
        assert await ledger.hand_back(claim, by, failures=failures)

    assert (await row(ledger, action().key)).failures == 2


async def test_an_action_that_is_only_asked_about_is_not_handed_back(ledger: ActionLedger) -> None:
    await dispatched(ledger, action(), attempt())
    by = attempt(1)
    ask = await asked(ledger, action(), by)
    before = await row(ledger, ask.call.key)

    assert not await ledger.hand_back(ask.call, by, failures=1)

    assert await row(ledger, ask.call.key) == before


async def test_an_action_that_was_sent_after_asking_is_not_handed_back(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, action(), attempt())
    by = attempt(1)
    ask = await asked(ledger, action(), by)
    await ledger.send_after_lookup(action(), ask.call)
    before = await row(ledger, ask.call.key)

    assert not await ledger.hand_back(ask.call, by)

    assert await row(ledger, ask.call.key) == before


@pytest.mark.parametrize("who", ["another attempt", "the second that dispatched it"])
async def test_only_who_dispatched_it_first_and_alone_hands_it_back(
    ledger: ActionLedger, who: str
) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    by = attempt()
    await dispatched(ledger, request, by)
    other = attempt(1)
    if who.startswith("the second"):
        await dispatched(ledger, request, other)
    before = await row(ledger, request.key)

    assert not await ledger.hand_back(request, other, failures=1)

    assert await row(ledger, request.key) == before


async def test_an_action_that_is_unknown_is_not_handed_back_and_can_be_settled(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(effect=Effect.AT_MOST_ONCE, can_look_up=False)
    by = attempt()
    slow = await dispatched(ledger, request, by)
    assert isinstance(await ledger.claim(request, attempt(1)), Parked)
    before = await row(ledger, request.key)

    assert not await ledger.hand_back(slow, by, failures=1)

    assert await row(ledger, request.key) == before
    await all_sent(pool)
    (settled,) = await ledger.settle(request.key, RECEIPT, by="ada")
    assert settled.state == "ok"
