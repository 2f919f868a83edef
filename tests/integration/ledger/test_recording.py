"""Handing back, recording and parking: which attempt may, and what stands."""

from __future__ import annotations

import pytest

from commitline.errors import Fenced
from commitline.ledger import ActionLedger, Effect, Outcome, Parked
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, attempt, dispatched
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.charges import DOMAIN_KEY, RECEIPT, action, row

pytestmark = pytest.mark.usefixtures("two_runs")


async def test_only_the_first_attempt_of_an_action_hands_it_back(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    first, second = attempt(), attempt(1)
    await ledger.claim(request, first)
    await ledger.claim(request, second)
    before = await row(pool, request.key)

    handed_back = [await ledger.hand_back(request, by) for by in (first, second)]

    assert handed_back == [False, False]
    assert await row(pool, request.key) == before


async def test_a_done_action_is_not_handed_back(ledger: ActionLedger, pool: Pool) -> None:
    by = attempt()
    await ledger.record(await dispatched(ledger, action(), by), Outcome.ok(RECEIPT))
    before = await row(pool, action().key)

    assert not await ledger.hand_back(action(), by)

    assert await row(pool, action().key) == before


async def test_an_action_handed_back_again_and_again_keeps_its_domain_key(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    for second in range(3):
        by = attempt(second)
        claim = await dispatched(ledger, request, by)
        assert (claim.idempotency_key, claim.taken_over) == (DOMAIN_KEY, False)

        assert await ledger.hand_back(request, by)
        assert not await ledger.hand_back(request, by)

    found = await row(pool, request.key)
    assert (found["tries"], found["dispatched_at"], found["claim_token"]) == (0, None, None)


async def test_recording_twice_keeps_the_first(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action(), attempt())

    first = await ledger.record(claim, Outcome.ok(RECEIPT))
    second = await ledger.record(claim, DECLINED)
    third = await ledger.record(claim, Outcome.ok("2"))

    assert first == second == third == Outcome.ok(RECEIPT)


async def test_a_fenced_attempt_that_records_late_is_refused_while_nothing_stands(
    ledger: ActionLedger, pool: Pool
) -> None:
    zombie = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(1))
    before = await row(pool, zombie.key)

    for outcome in (Outcome.ok(RECEIPT), DECLINED):
        with pytest.raises(Fenced):
            await ledger.record(zombie, outcome)
    with pytest.raises(Fenced):
        await ledger.park(zombie, "the zombie does not know")

    assert await row(pool, zombie.key) == before
    (held,) = await sql(pool, "select held_by from agent_domain_keys")
    assert held["held_by"] == zombie.key


@pytest.mark.parametrize("late", [Outcome.ok("2"), DECLINED], ids=["ok", "without effect"])
async def test_a_fenced_attempt_that_records_late_adopts_what_stands(
    ledger: ActionLedger, pool: Pool, late: Outcome
) -> None:
    zombie = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    taken = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt(1))
    await ledger.record(taken, Outcome.ok(RECEIPT))

    stands = await ledger.record(zombie, late)
    parked = await ledger.park(zombie, "the zombie does not know")

    assert stands == Outcome.ok(RECEIPT)
    assert parked.recorded == Outcome.ok(RECEIPT)
    (held,) = await sql(pool, "select held_by from agent_domain_keys")
    assert held["held_by"] == zombie.key


async def test_a_late_outcome_lands_on_a_parked_row_whose_claim_is_still_its_own(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(effect=Effect.AT_MOST_ONCE)
    slow = await dispatched(ledger, request, attempt())
    assert isinstance(await ledger.claim(request, attempt(1)), Parked)

    stands = await ledger.record(slow, Outcome.ok(RECEIPT))

    assert stands == Outcome.ok(RECEIPT)
    found = await row(pool, request.key)
    assert (found["status"], found["parked_at"], found["parked_reason"]) == ("done", None, None)


async def test_parking_twice_keeps_the_first_reason_and_the_time(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, action(), attempt())

    first = await ledger.park(claim, "first")
    second = await ledger.park(claim, "second")

    assert (first.parked_reason, second.parked_reason) == ("first", "first")
    assert first.parked_at == second.parked_at


async def test_recording_what_a_failover_lost_is_refused(ledger: ActionLedger, pool: Pool) -> None:
    claim = await dispatched(ledger, action(), attempt())
    await sql(pool, "delete from agent_actions")

    with pytest.raises(Fenced, match="is gone: a failover lost it") as refused:
        await ledger.record(claim, Outcome.ok(RECEIPT))
    assert refused.value.lost


async def test_a_lost_row_is_claimed_again_under_the_same_key(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await dispatched(ledger, action(), attempt())
    await sql(pool, "delete from agent_actions")

    again = await dispatched(ledger, action(), attempt(1))

    assert again.idempotency_key == first.idempotency_key
