"""Domain keys: one business fact happens once, across runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitline.errors import Fenced, IdempotencyKeyConflict
from commitline.identity import Position
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Busy,
    Dispatched,
    Effect,
    Outcome,
    Parked,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, attempt, dispatched
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.charges import (
    CHARGE,
    DOMAIN_KEY,
    LOST,
    OTHER_CHARGE,
    RECEIPT,
    RUN_B,
    action,
    counts,
    expire_lease,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")


async def test_a_done_business_fact_gives_its_receipt_marked_as_existing(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    asking = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    await ledger.record(await dispatched(ledger, original, attempt()), Outcome.ok(RECEIPT))

    first = await ledger.claim(asking, attempt(5))
    again = await ledger.claim(asking, attempt(6))

    assert isinstance(first, AlreadyDone)
    assert first.action.key == asking.key
    assert first.action.duplicate_of == original.key
    assert first.action.recorded == Outcome.ok(RECEIPT)
    assert isinstance(again, AlreadyDone)
    assert again.action.duplicate_of == original.key
    assert again.action.result == RECEIPT
    own = await row(pool, asking.key)
    assert (own["status"], own["idempotency_key"], own["dispatched_at"]) == ("done", None, None)
    assert (own["tries"], own["generation"]) == (0, 1)


async def test_an_unknown_business_fact_is_answered_unknown_in_a_row_that_names_it(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    asking = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    await ledger.park(await dispatched(ledger, original, attempt()), "the provider hung up")

    claims = [await ledger.claim(asking, attempt(second)) for second in (5, 6)]

    for claim in claims:
        assert isinstance(claim, Parked)
        assert claim.action.key == asking.key
        assert claim.action.duplicate_of == original.key
        assert claim.action.parked_reason == (f"the same as {original.key}, which is unknown")
    assert (await row(pool, asking.key))["idempotency_key"] is None


async def test_a_business_fact_that_somebody_is_doing_now_is_waited_for(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    await ledger.claim(original, attempt())

    claim = await ledger.claim(action("0.1", domain_key=DOMAIN_KEY), attempt(5))

    assert claim == Busy(original.key)
    assert await counts(pool) == (1, 1)


async def test_a_business_fact_whose_intent_was_handed_back_is_carried_out_by_who_asks(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    by = attempt()
    await ledger.claim(original, by)
    await ledger.hand_back(original, by)

    asking = action("0.1", domain_key=DOMAIN_KEY)
    claim = await ledger.claim(asking, attempt(5))

    assert isinstance(claim, Dispatched)
    assert (claim.key, claim.settles_for) == (original.key, asking.key)
    assert not claim.taken_over
    assert await counts(pool) == (1, 1)


async def test_an_equal_call_of_a_later_turn_is_not_sent_while_the_first_is_unknown(
    ledger: ActionLedger,
) -> None:
    mail = action(effect=Effect.AT_MOST_ONCE)
    await ledger.park(await dispatched(ledger, mail, attempt()), "the mail system went away")

    later = await ledger.claim(action("1.0", effect=Effect.AT_MOST_ONCE), attempt(5))
    beside = await ledger.claim(action("0.1", effect=Effect.AT_MOST_ONCE), attempt(5))
    await ledger.settle(mail.key, Outcome.ok('"sent"'), by="ada")
    afterwards = await ledger.claim(action("2.0", effect=Effect.AT_MOST_ONCE), attempt(9))

    assert isinstance(later, Parked)
    assert later.action.duplicate_of == mail.key
    assert isinstance(beside, Dispatched)
    assert isinstance(afterwards, Dispatched)


async def test_a_business_fact_whose_attempt_died_is_settled_with_its_own_key_and_arguments(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    asking = replace(
        action("3.1", run=RUN_B, domain_key=DOMAIN_KEY),
        args='{"amount_cents":4900,"order_id":"4821","currency":"usd"}',
    )
    await ledger.claim(original, attempt())
    await expire_lease(pool, original.key)

    settling = await dispatched(ledger, asking, attempt(5))
    await ledger.record(settling, Outcome.ok(RECEIPT))
    receipt = await ledger.claim(asking, attempt(5))

    assert settling.key == original.key
    assert settling.settles_for == asking.key
    assert settling.idempotency_key == DOMAIN_KEY
    assert settling.args == CHARGE
    assert settling.taken_over
    assert isinstance(receipt, AlreadyDone)
    assert receipt.action.key == asking.key
    assert receipt.action.duplicate_of == original.key
    assert receipt.action.result == RECEIPT
    assert (await row(pool, original.key))["claimed_by"] == asking.key


async def test_a_settlement_whose_commit_was_not_answered_goes_on(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    asking = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    by = attempt(5)
    await ledger.claim(original, attempt())
    await expire_lease(pool, original.key)
    settling = await ledger.claim(asking, by)

    again = await ledger.claim(asking, by)

    assert again == settling
    assert (await row(pool, original.key))["tries"] == 2


async def test_a_settlement_that_died_is_taken_over_by_its_own_next_attempt_at_once(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    asking = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    await ledger.claim(original, attempt())
    await expire_lease(pool, original.key)
    lost = await dispatched(ledger, asking, attempt(5))

    again = await dispatched(ledger, asking, attempt(6))

    assert (again.key, again.settles_for) == (original.key, asking.key)
    assert again.idempotency_key == DOMAIN_KEY
    with pytest.raises(Fenced):
        await ledger.record(lost, Outcome.ok(RECEIPT))


async def test_the_action_itself_waits_while_another_settles_it_and_then_has_the_outcome(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    asking = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    slow = await dispatched(ledger, original, attempt())
    await expire_lease(pool, original.key)
    settling = await dispatched(ledger, asking, attempt(5))

    meanwhile = await ledger.claim(original, attempt(6))
    with pytest.raises(Fenced):
        await ledger.record(slow, Outcome.ok("2"))
    await ledger.record(settling, Outcome.ok(RECEIPT))
    afterwards = await ledger.claim(original, attempt(6))

    assert meanwhile == Busy(asking.key)
    assert isinstance(afterwards, AlreadyDone)
    assert afterwards.action.result == RECEIPT
    assert afterwards.action.duplicate_of is None


async def test_the_action_itself_takes_over_from_a_settlement_that_died(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    asking = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    await ledger.claim(original, attempt())
    await expire_lease(pool, original.key)
    settling = await dispatched(ledger, asking, attempt(5))
    await expire_lease(pool, original.key)

    taken = await dispatched(ledger, original, attempt(6))

    assert taken.settles_for is None
    assert taken.idempotency_key == DOMAIN_KEY
    with pytest.raises(Fenced):
        await ledger.record(settling, Outcome.ok(RECEIPT))


@pytest.mark.parametrize("effect", [Effect.LOOKUP, Effect.AT_MOST_ONCE])
async def test_a_business_fact_that_must_not_be_sent_again_is_parked_when_its_attempt_died(
    ledger: ActionLedger, pool: Pool, effect: Effect
) -> None:
    original = action(domain_key=DOMAIN_KEY, effect=effect)
    asking = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY, effect=effect)
    await ledger.claim(original, attempt())
    await expire_lease(pool, original.key)

    claim = await ledger.claim(asking, attempt(5))

    assert isinstance(claim, Parked)
    assert claim.action.duplicate_of == original.key
    assert (await row(pool, original.key))["parked_reason"].startswith(LOST)


@pytest.mark.parametrize(
    "other",
    [
        action("3.1", run=RUN_B, domain_key=DOMAIN_KEY, args=OTHER_CHARGE),
        action("3.1", run=RUN_B, domain_key=DOMAIN_KEY, tool="charge_account"),
    ],
    ids=["arguments", "tool"],
)
@pytest.mark.parametrize("state", ["dispatched", "unknown", "ok"])
async def test_a_domain_key_used_for_something_else_is_refused_and_shows_no_strangers_arguments(
    ledger: ActionLedger, pool: Pool, other: ActionRequest, state: str
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    claim = await dispatched(ledger, original, attempt())
    if state == "unknown":
        await ledger.park(claim, "the provider hung up")
    if state == "ok":
        await ledger.record(claim, Outcome.ok(RECEIPT))
    before = await row(pool, original.key)

    with pytest.raises(IdempotencyKeyConflict) as refused:
        await ledger.claim(other, attempt(5))

    assert refused.value.existing == original.key
    assert refused.value.message == (
        "'order-4821-charge' was used by support-4821/e1:0.0 for another tool or other arguments, "
        f"and is now asked for {other.tool} {other.args}"
    )
    assert await row(pool, original.key) == before


async def test_what_was_refused_stays_refused_even_after_the_key_was_released(
    ledger: ActionLedger,
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    other = action("0.1", domain_key=DOMAIN_KEY, args=OTHER_CHARGE)
    claim = await dispatched(ledger, original, attempt())
    with pytest.raises(IdempotencyKeyConflict) as first:
        await ledger.claim(other, attempt(1))
    await ledger.record(claim, DECLINED)

    with pytest.raises(IdempotencyKeyConflict) as again:
        await ledger.claim(other, attempt(2))
    anew = await ledger.claim(replace(other, position=Position("1.0")), attempt(3))

    assert again.value.message == first.value.message
    assert again.value.existing == original.key
    assert isinstance(anew, Dispatched)
    assert anew.idempotency_key == "order-4821-charge~2"


async def test_an_error_without_effect_releases_the_key_to_the_next_generation(
    ledger: ActionLedger, pool: Pool
) -> None:
    keys = []
    for step in range(3):
        request = action(f"{step}.0", domain_key=DOMAIN_KEY)
        claim = await dispatched(ledger, request, attempt(step))
        keys.append((claim.idempotency_key, (await row(pool, request.key))["generation"]))

        await ledger.record(claim, DECLINED)

    assert keys == [
        ("order-4821-charge", 1),
        ("order-4821-charge~2", 2),
        ("order-4821-charge~3", 3),
    ]


async def test_a_released_action_still_replays_its_own_error(ledger: ActionLedger) -> None:
    await ledger.record(
        await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt()), DECLINED
    )
    await ledger.claim(action("1.0", domain_key=DOMAIN_KEY), attempt(1))

    again = await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(2))

    assert isinstance(again, AlreadyDone)
    assert again.action.recorded == DECLINED
    assert again.action.duplicate_of is None


async def test_a_released_key_may_be_used_with_other_arguments(ledger: ActionLedger) -> None:
    await ledger.record(
        await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt()), DECLINED
    )

    claim = await ledger.claim(action("1.0", domain_key=DOMAIN_KEY, args=OTHER_CHARGE), attempt(1))

    assert isinstance(claim, Dispatched)
    assert (claim.idempotency_key, claim.args) == ("order-4821-charge~2", OTHER_CHARGE)


async def test_recording_again_does_not_release_the_key_from_its_next_holder(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    await ledger.record(first, DECLINED)
    second = await dispatched(ledger, action("1.0", domain_key=DOMAIN_KEY), attempt(1))

    await ledger.record(first, DECLINED)

    (held,) = await sql(pool, "select held_by, generation from agent_domain_keys")
    assert (held["held_by"], held["generation"]) == (second.key, 2)


async def test_an_error_with_effect_keeps_the_key(ledger: ActionLedger) -> None:
    original = action(domain_key=DOMAIN_KEY)
    unkept = Outcome.error(kind="UnrepresentableResult", message="odd", effect_possible=True)
    await ledger.record(await dispatched(ledger, original, attempt()), unkept)

    claim = await ledger.claim(action("1.0", domain_key=DOMAIN_KEY), attempt(1))

    assert isinstance(claim, AlreadyDone)
    assert claim.action.duplicate_of == original.key
    assert claim.action.recorded == unkept


async def test_a_holder_whose_row_was_lost_has_its_key_and_generation_again(
    ledger: ActionLedger, pool: Pool
) -> None:
    await ledger.record(
        await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt()), DECLINED
    )
    holder = action("1.0", domain_key=DOMAIN_KEY)
    await ledger.claim(holder, attempt(1))
    await sql(pool, "delete from agent_actions where key = %(key)s", key=holder.key)

    again = await ledger.claim(holder, attempt(2))

    assert isinstance(again, Dispatched)
    assert again.idempotency_key == "order-4821-charge~2"
    assert (await row(pool, holder.key))["generation"] == 2


async def test_an_action_whose_hold_a_failover_lost_does_not_release_the_key_of_the_next_holder(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    await sql(pool, "delete from agent_domain_keys")
    second = await dispatched(ledger, action("1.0", domain_key=DOMAIN_KEY), attempt(1))

    await ledger.record(first, DECLINED)

    (held,) = await sql(pool, "select held_by from agent_domain_keys")
    assert held["held_by"] == second.key


async def test_a_key_whose_holder_was_lost_is_not_given_to_another_action(
    ledger: ActionLedger, pool: Pool
) -> None:
    await ledger.claim(action(domain_key=DOMAIN_KEY), attempt())
    await sql(pool, "delete from agent_actions")

    with pytest.raises(IdempotencyKeyConflict, match="whose record is gone"):
        await ledger.claim(action("1.0", domain_key=DOMAIN_KEY), attempt(1))


async def test_keys_that_differ_in_case_or_space_are_different_facts(
    ledger: ActionLedger,
) -> None:
    keys = ["order-a", "order-A", "order-a ", " order-a"]

    claims = [
        await ledger.claim(action(f"0.{call}", domain_key=key), attempt())
        for call, key in enumerate(keys)
    ]

    assert [claim.idempotency_key for claim in claims if isinstance(claim, Dispatched)] == keys
