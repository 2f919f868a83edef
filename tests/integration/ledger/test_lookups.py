"""Lookups: who looks an action up, from when on "not found" counts, and who sends it then."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from commitline.errors import Fenced, RunNotRunning
from commitline.identity import RunKey
from commitline.ledger import (
    ActionLedger,
    AlreadyDone,
    Busy,
    Dispatched,
    Effect,
    LookUp,
    Outcome,
    Parked,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import LEASE, NOON, ORDER, OVER, dispatched
from commitline.tests.integration.database import sql, until_blocked
from commitline.tests.integration.ledger.shipments import (
    DEADLINE,
    DOMAIN_KEY,
    HOUR,
    MINUTE,
    RECEIPT,
    RUN_A,
    RUN_B,
    SLACK,
    action,
    all_sent,
    asked,
    attempt,
    row,
    sent_until,
    stop,
)

pytestmark = pytest.mark.usefixtures("two_runs")


# --- asking ------------------------------------------------------------------------------


async def test_a_looked_up_action_that_a_later_attempt_finds_is_asked_about_and_not_sent(
    ledger: ActionLedger,
) -> None:
    first = await dispatched(ledger, action(), attempt())
    later = attempt(1)

    ask = await asked(ledger, action(), later)

    assert ask.call == replace(first, attempt=later, taken_over=True)
    found = await row(ledger, first.key)
    assert (found.looking_up, found.tries, found.state) == (True, 1, "dispatched")
    assert (found.claim_token, found.attempt_at) == (later.token, later.started_at)


async def test_the_asking_attempt_whose_commit_was_not_answered_asks_and_does_not_send(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, action(), attempt())
    later = attempt(1)
    first = await asked(ledger, action(), later)
    before = await row(ledger, first.call.key)

    again = await asked(ledger, action(), later)

    assert again.call == first.call
    assert again.settles_in - first.settles_in < timedelta()
    after = await row(ledger, first.call.key)
    assert (after.looking_up, after.tries, after.sent_until) == (True, 1, before.sent_until)


async def test_what_was_found_is_recorded_by_the_attempt_that_asked(ledger: ActionLedger) -> None:
    first = await dispatched(ledger, action(), attempt())
    ask = await asked(ledger, action(), attempt(1))

    assert await ledger.record(ask.call, RECEIPT) == RECEIPT

    assert await ledger.record(first, Outcome.ok('"late"')) == RECEIPT


async def test_only_the_last_one_that_asks_owns_the_action(ledger: ActionLedger) -> None:
    first = await dispatched(ledger, action(), attempt())
    lost = await asked(ledger, action(), attempt(1))
    ask = await asked(ledger, action(), attempt(2))

    for claim in (first, lost.call):
        with pytest.raises(Fenced):
            await ledger.record(claim, RECEIPT)
        with pytest.raises(Fenced):
            await ledger.send_after_lookup(action(), claim)
        with pytest.raises(Fenced):
            await ledger.fail_try(claim)
    with pytest.raises(Fenced):
        await ledger.claim(action(), attempt(1))

    assert await ledger.record(ask.call, RECEIPT) == RECEIPT


async def test_an_attempt_that_asks_in_vain_leaves_it_unknown_and_to_nobody_while_it_asks(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, action(), attempt())
    ask = await asked(ledger, action(), attempt(1))

    parked = await ledger.park(ask.call, "asked what became of it", over=False)

    assert (parked.state, parked.leased) == ("unknown", True)
    assert isinstance(await ledger.claim(action(), attempt(2)), Parked)
    with pytest.raises(Fenced):
        await ledger.send_after_lookup(action(), ask.call)


async def test_who_cannot_ask_parks_it_also_after_another_one_asked(ledger: ActionLedger) -> None:
    await dispatched(ledger, action(), attempt())
    await asked(ledger, action(), attempt(1))

    claim = await ledger.claim(action(can_look_up=False), attempt(2))

    assert isinstance(claim, Parked)
    assert claim.action.parked_reason is not None
    assert claim.action.parked_reason.endswith("has no lookup for ship")


async def test_a_business_fact_whose_attempt_died_is_asked_about_by_who_wants_it_next(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    wanted = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    first = await dispatched(ledger, original, attempt())
    by = attempt(5)

    meanwhile = await ledger.claim(wanted, by)
    await all_sent(pool)
    ask = await asked(ledger, wanted, by)
    again = await asked(ledger, wanted, by)
    itself = await ledger.claim(original, attempt(6))
    await ledger.record(ask.call, RECEIPT)
    receipt = await ledger.claim(wanted, by)

    assert meanwhile == Busy(original.key)
    assert ask.call == again.call
    assert (ask.call.key, ask.call.settles_for) == (original.key, wanted.key)
    assert (ask.call.idempotency_key, ask.call.args) == (first.idempotency_key, ORDER)
    assert ask.settles_in < timedelta()
    assert itself == Busy(wanted.key)
    assert isinstance(receipt, AlreadyDone)
    assert receipt.action.duplicate_of == original.key


async def test_a_business_fact_that_somebody_asks_about_is_waited_for(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    await dispatched(ledger, original, attempt())
    await all_sent(pool)
    await asked(ledger, original, attempt(1))

    claim = await ledger.claim(action("3.1", run=RUN_B, domain_key=DOMAIN_KEY), attempt(5))

    assert claim == Busy(original.key)


async def test_a_business_fact_that_surely_never_happened_is_sent_for_who_wants_it_next(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = action(domain_key=DOMAIN_KEY)
    wanted = action("3.1", run=RUN_B, domain_key=DOMAIN_KEY)
    await dispatched(ledger, original, attempt())
    await all_sent(pool)
    ask = await asked(ledger, wanted, attempt(5))
    await stop(ledger, RUN_A)  # the run that began it does not count

    await ledger.send_after_lookup(wanted, ask.call)

    found = await row(ledger, original.key)
    assert (found.looking_up, found.tries, found.claimed_by) == (False, 2, wanted.key)


# --- from when on "not found" counts -----------------------------------------------------


async def test_an_attempt_may_send_until_its_deadline_from_its_claim(ledger: ActionLedger) -> None:
    for position, domain_key in (("0.0", None), ("0.1", DOMAIN_KEY)):
        claim = await dispatched(ledger, action(position, domain_key=domain_key), attempt())

        found = await row(ledger, claim.key)
        assert found.dispatched_at is not None
        assert found.lease_until is not None
        until = await sent_until(ledger, claim.key)
        assert DEADLINE <= until - found.dispatched_at + timedelta(seconds=1) < DEADLINE + SLACK
        assert abs(found.lease_until - until - (LEASE - DEADLINE)) < timedelta(seconds=1)


async def test_an_attempt_without_a_deadline_may_send_as_long_as_its_lease(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, action(), attempt(deadline=None))

    found = await row(ledger, claim.key)
    assert found.sent_until is not None
    assert found.lease_until is not None
    assert abs(found.lease_until - found.sent_until) < timedelta(seconds=1)


async def test_not_found_counts_when_no_attempt_can_send_any_more_and_it_would_show(
    ledger: ActionLedger, pool: Pool
) -> None:
    await dispatched(ledger, action(), attempt())

    early = await asked(ledger, action(), attempt(1))
    await all_sent(pool, ago=timedelta(seconds=30))
    soon = await asked(ledger, action(), attempt(2))
    await all_sent(pool, ago=2 * MINUTE)
    now = await asked(ledger, action(), attempt(3))

    assert DEADLINE + MINUTE - SLACK < early.settles_in <= DEADLINE + MINUTE
    assert timedelta(seconds=30) - SLACK < soon.settles_in <= timedelta(seconds=30)
    assert -MINUTE - SLACK < now.settles_in <= -MINUTE


async def test_asking_does_not_put_off_when_not_found_counts(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action(), attempt())
    until = await sent_until(ledger, claim.key)

    for second in (1, 2, 3):
        await asked(ledger, action(), attempt(second, deadline=HOUR))

    assert await sent_until(ledger, claim.key) == until


async def test_an_attempt_that_goes_on_may_send_no_longer_than_it_could(
    ledger: ActionLedger,
) -> None:
    by = attempt()
    claim = await dispatched(ledger, action(), by)
    before = await row(ledger, claim.key)

    await dispatched(ledger, action(), by)

    assert await row(ledger, claim.key) == before


async def test_an_attempt_that_calls_again_may_send_until_its_own_deadline(
    ledger: ActionLedger,
) -> None:
    request = action(effect=Effect.IDEMPOTENT)
    await dispatched(ledger, request, attempt())
    before = await sent_until(ledger, request.key)

    await dispatched(ledger, request, attempt(1, deadline=HOUR))

    assert abs(await sent_until(ledger, request.key) - before - (HOUR - DEADLINE)) < SLACK


# --- sending what never happened ---------------------------------------------------------


async def test_what_surely_never_happened_is_sent_and_has_a_deadline_of_its_own(
    ledger: ActionLedger, pool: Pool
) -> None:
    await dispatched(ledger, action(), attempt())
    await all_sent(pool)
    ask = await asked(ledger, action(), attempt(1))
    before = await row(ledger, ask.call.key)

    await ledger.send_after_lookup(action(), ask.call)

    after = await row(ledger, ask.call.key)
    assert (after.looking_up, after.tries, after.claim_token) == (False, 2, ask.call.token)
    assert after.dispatched_at == before.dispatched_at
    assert after.sent_until is not None
    assert after.lease_until is not None
    assert before.lease_until is not None
    assert after.lease_until > before.lease_until
    assert abs(after.lease_until - after.sent_until - (LEASE - DEADLINE)) < timedelta(seconds=1)
    assert await ledger.record(ask.call, RECEIPT) == RECEIPT


async def test_sending_after_asking_is_safe_to_repeat(ledger: ActionLedger) -> None:
    await dispatched(ledger, action(), attempt())
    ask = await asked(ledger, action(), attempt(1))

    await ledger.send_after_lookup(action(), ask.call)
    await ledger.send_after_lookup(action(), ask.call)

    found = await row(ledger, ask.call.key)
    assert (found.looking_up, found.claim_token) == (False, ask.call.token)


async def test_the_attempt_that_sends_goes_on_if_it_claims_again(ledger: ActionLedger) -> None:
    await dispatched(ledger, action(), attempt())
    by = attempt(1)
    ask = await asked(ledger, action(), by)
    await ledger.send_after_lookup(action(), ask.call)

    again = await dispatched(ledger, action(), by)

    assert again == ask.call


async def test_an_attempt_after_the_one_that_sent_asks_again_and_waits_for_its_deadline(
    ledger: ActionLedger, pool: Pool
) -> None:
    await dispatched(ledger, action(), attempt())
    await all_sent(pool)
    first = await asked(ledger, action(), attempt(1))
    await ledger.send_after_lookup(action(), first.call)

    ask = await asked(ledger, action(), attempt(2))

    assert first.settles_in < timedelta()
    assert DEADLINE + MINUTE - SLACK < ask.settles_in <= DEADLINE + MINUTE
    assert (await row(ledger, ask.call.key)).tries == 2


@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
async def test_nothing_is_sent_after_asking_in_a_run_that_does_not_run(
    ledger: ActionLedger, pool: Pool, state: str
) -> None:
    await dispatched(ledger, action(), attempt())
    ask = await asked(ledger, action(), attempt(1))
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s",
        state=state, noon=NOON,
    )  # fmt: skip
    before = await row(ledger, ask.call.key)

    with pytest.raises(RunNotRunning, match=state):
        await ledger.send_after_lookup(action(), ask.call)

    assert await row(ledger, ask.call.key) == before


async def test_nothing_is_sent_after_asking_for_a_run_that_the_ledger_does_not_know(
    ledger: ActionLedger,
) -> None:
    await dispatched(ledger, action(), attempt())
    ask = await asked(ledger, action(), attempt(1))

    with pytest.raises(RunNotRunning):
        await ledger.send_after_lookup(action(run=RunKey("other/e9")), ask.call)


async def test_nothing_is_sent_after_asking_once_the_action_is_known(ledger: ActionLedger) -> None:
    await dispatched(ledger, action(), attempt())
    ask = await asked(ledger, action(), attempt(1))
    await ledger.record(ask.call, RECEIPT)

    with pytest.raises(Fenced):
        await ledger.send_after_lookup(action(), ask.call)

    assert (await row(ledger, ask.call.key)).recorded == RECEIPT


async def test_sending_after_asking_waits_for_a_stop_that_is_about_to_commit(
    ledger: ActionLedger, pool: Pool
) -> None:
    await dispatched(ledger, action(), attempt())
    ask = await asked(ledger, action(), attempt(1))
    async with pool.connection() as connection, connection.transaction():
        await connection.execute("update agent_runs set state = 'stopping'")
        sending = asyncio.create_task(ledger.send_after_lookup(action(), ask.call))
        await until_blocked(pool, 1)

    with pytest.raises(RunNotRunning):
        await sending

    assert (await row(ledger, ask.call.key)).looking_up


@pytest.mark.parametrize("looks_up", [True, False], ids=["looks up", "calls again"])
async def test_a_take_over_gets_the_span_of_the_attempt_that_was_lost_also_by_another_run(
    ledger: ActionLedger, *, looks_up: bool
) -> None:
    first, second, third = (f"00-{number:032x}-{number:016x}-01" for number in (1, 2, 3))
    effect = Effect.LOOKUP if looks_up else Effect.IDEMPOTENT
    request = action(effect=effect, can_look_up=looks_up, domain_key=DOMAIN_KEY)
    await dispatched(ledger, request, replace(attempt(lease=OVER), trace_parent=first))

    taken = await ledger.claim(request, replace(attempt(1, lease=OVER), trace_parent=second))
    found = await ledger.get(request.key)
    other = await ledger.claim(
        replace(request, run_key=RUN_B), replace(attempt(2), trace_parent=third)
    )

    calls = [one.call if isinstance(one, LookUp) else one for one in (taken, other)]
    assert [one.lost_trace for one in calls if isinstance(one, Dispatched)] == [first, second]
    assert found is not None
    assert found.trace_parent == second
