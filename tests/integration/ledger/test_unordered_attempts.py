"""Attempts without an order: neither has lost to the other, and what one of them knows counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from commitline.errors import Fenced
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Claim,
    Dispatched,
    Effect,
    LookUp,
    Outcome,
    Parked,
)
from commitline.ledger.claim_rules import Verdict, judge_own
from commitline.ledger.pool import Pool
from commitline.tests import builders
from commitline.tests.builders import DECLINED, dispatched, relay_request
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.shipments import (
    DEADLINE,
    DOMAIN_KEY,
    RECEIPT,
    RUN_A,
    action,
    all_sent,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")

OTHER_RECEIPT = Outcome.ok('{"id":"sh_2"}')


def attempt(second: float = 0, *, unordered: bool = True) -> Attempt:
    return replace(builders.attempt(second, deadline=DEADLINE), unordered=unordered)


MIXED = [pair for pair in product([True, False], repeat=2) if any(pair)]
"""Which of two attempts are unordered: one of them at least."""


@pytest.mark.parametrize(("first", "second"), MIXED)
@pytest.mark.parametrize("began", [-1, 0, 1], ids=["before", "at once", "after"])
async def test_whenever_it_began_an_attempt_takes_over_by_effect_and_is_not_fenced(
    ledger: ActionLedger, began: float, first: bool, second: bool
) -> None:
    claims: list[Claim] = []
    for effect in (Effect.IDEMPOTENT, Effect.LOOKUP, Effect.AT_MOST_ONCE):
        request = action(f"0.{len(claims)}", effect=effect, can_look_up=effect is Effect.LOOKUP)
        await dispatched(ledger, request, attempt(unordered=first))
        claims.append(await ledger.claim(request, attempt(began, unordered=second)))

    sent_again, asked, parked = claims
    assert isinstance(sent_again, Dispatched)
    assert sent_again.taken_over
    assert isinstance(asked, LookUp)
    assert asked.settles_in > DEADLINE, "the other one may still send it"
    assert isinstance(parked, Parked)


async def test_two_that_take_the_row_from_each_other_go_on_with_one_key(
    ledger: ActionLedger,
) -> None:
    request, a, b = action(effect=Effect.IDEMPOTENT), attempt(), attempt()

    claims = [await dispatched(ledger, request, by) for by in (a, b, a, b)]

    assert [claim.taken_over for claim in claims] == [False, True, True, True]
    assert len({claim.idempotency_key for claim in claims}) == 1


async def test_an_attempt_knows_its_own_claim_by_its_token(ledger: ActionLedger) -> None:
    request, by = action(effect=Effect.AT_MOST_ONCE, can_look_up=False), attempt()
    first = await dispatched(ledger, request, by)

    assert await ledger.claim(request, by) == first


@pytest.mark.parametrize(("first", "second"), MIXED)
@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.LOOKUP, Effect.AT_MOST_ONCE])
async def test_what_either_knows_to_have_happened_settles_the_row_at_once(
    ledger: ActionLedger, effect: Effect, first: bool, second: bool
) -> None:
    request = action(effect=effect, can_look_up=effect is Effect.LOOKUP, domain_key=DOMAIN_KEY)
    one = await dispatched(ledger, request, attempt(unordered=first))
    other = await ledger.claim(request, attempt(unordered=second))

    assert await ledger.record(one, RECEIPT) == RECEIPT

    claim = other.call if isinstance(other, LookUp) else other
    if isinstance(claim, Dispatched):
        assert await ledger.record(claim, OTHER_RECEIPT) == RECEIPT, "the first one stands"
    assert (await row(ledger, request.key)).state == "ok"


async def test_nobody_denies_what_another_has_taken_over(ledger: ActionLedger) -> None:
    request = action(effect=Effect.IDEMPOTENT, domain_key=DOMAIN_KEY)
    one = await dispatched(ledger, request, attempt())
    other = await dispatched(ledger, request, attempt())

    with pytest.raises(Fenced):
        await ledger.record(one, DECLINED)

    assert other.taken_over, "so the guard does not believe its refusal either"
    assert (await row(ledger, request.key)).state == "dispatched"
    assert await ledger.record(other, RECEIPT) == RECEIPT


async def test_what_was_parked_beside_the_only_one_that_sent_it_is_settled_by_its_refusal(
    ledger: ActionLedger,
) -> None:
    request = action(effect=Effect.AT_MOST_ONCE, can_look_up=False)
    one = await dispatched(ledger, request, attempt())
    assert isinstance(await ledger.claim(request, attempt()), Parked)

    assert await ledger.record(one, DECLINED) == DECLINED


async def test_not_found_counts_when_nobody_can_send_it_any_more(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(settles_after=timedelta(minutes=1))
    one = await dispatched(ledger, request, attempt())
    await all_sent(pool)
    claim = await ledger.claim(request, attempt())
    assert isinstance(claim, LookUp)
    assert claim.settles_in < timedelta()
    await ledger.send_after_lookup(request, claim.call)

    with pytest.raises(Fenced):
        await ledger.record(one, DECLINED)


async def test_of_two_that_ask_only_the_one_that_holds_the_row_sends_it(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action()
    await dispatched(ledger, request, attempt())
    await all_sent(pool)
    asked = [await ledger.claim(request, attempt()) for _ in range(2)]
    first, second = (claim.call for claim in asked if isinstance(claim, LookUp))

    with pytest.raises(Fenced):
        await ledger.send_after_lookup(request, first)
    await ledger.send_after_lookup(request, second)


async def test_a_row_that_was_once_without_an_order_stays_so(ledger: ActionLedger) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    await dispatched(ledger, request, attempt())
    await dispatched(ledger, request, attempt(10, unordered=False))

    earlier = await dispatched(ledger, request, attempt(5, unordered=False))

    assert earlier.taken_over


async def test_attempts_with_an_order_are_fenced_as_before(ledger: ActionLedger) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    await dispatched(ledger, request, attempt(10, unordered=False))

    with pytest.raises(Fenced):
        await ledger.claim(request, attempt(5, unordered=False))


async def test_the_relay_waits_for_the_lease_whoever_has_it(ledger: ActionLedger) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    await dispatched(ledger, request, attempt(100))
    found = await ledger.get(request.key)
    assert found is not None

    relay = replace(builders.attempt(50, scheduled=50), unordered=False)
    assert judge_own(found, relay_request(found), relay) is Verdict.WAIT


@pytest.mark.parametrize(
    ("effect", "then"), [(Effect.IDEMPOTENT, Dispatched), (Effect.AT_MOST_ONCE, Parked)]
)
async def test_after_a_failover_a_first_attempt_takes_over_what_may_be_lost(
    ledger: ActionLedger, pool: Pool, effect: Effect, then: type
) -> None:
    await sql(pool, "update agent_runs set timeline = '0000000F'")
    request = action(effect=effect, can_look_up=False)

    claim = await ledger.claim(request, replace(attempt(), repeats=True))

    assert isinstance(claim, then)
    if isinstance(claim, Dispatched):
        assert claim.taken_over


async def test_on_the_same_server_a_first_attempt_that_may_be_none_just_sends(
    ledger: ActionLedger,
) -> None:
    request: ActionRequest = action(effect=Effect.AT_MOST_ONCE, can_look_up=False)

    claim = await dispatched(ledger, request, replace(attempt(), repeats=True))

    assert not claim.taken_over
    assert await ledger.record(claim, RECEIPT) == RECEIPT
    assert isinstance(await ledger.claim(request, attempt()), AlreadyDone)


@pytest.mark.parametrize(("turn", "lost"), [("before", True), ("after", False), ("none", True)])
async def test_a_restart_has_lost_no_call_of_a_turn_that_was_committed_since(
    ledger: ActionLedger, pool: Pool, turn: str, lost: bool
) -> None:
    await sql(pool, "update agent_runs set timeline = regexp_replace(timeline, '/[^/]*$', '/0')")
    await ledger.threads.open(RUN_A, agent="support")
    await sql(
        pool,
        "insert into agent_messages"
        " (thread_id, version, ordinal, role, message, run_key, step, epoch, created_at)"
        " select %(run)s, 1, 0, 'assistant', '{}', %(run)s, 0, 0, case %(turn)s"
        " when 'before' then pg_postmaster_start_time() - interval '1 s' else now() end"
        " where %(turn)s <> 'none'",
        run=RUN_A,
        turn=turn,
    )
    request = action(effect=Effect.AT_MOST_ONCE, can_look_up=False)

    claim = await ledger.claim(request, replace(attempt(), repeats=True))

    assert isinstance(claim, Parked if lost else Dispatched)
