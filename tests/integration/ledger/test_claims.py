"""The table of claims, row by row: what an attempt gets for an action that has a row or none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from commitline.errors import Fenced, PlanDivergence
from commitline.identity import ActionKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Dispatched,
    Effect,
    Outcome,
    Parked,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, NOON, attempt, dispatched
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.charges import (
    CHARGE,
    DOMAIN_KEY,
    LOST,
    OTHER_CHARGE,
    RECEIPT,
    RUN_A,
    action,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")


async def test_a_new_action_is_committed_as_dispatched_before_anything_is_sent(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(key_ttl=timedelta(hours=24))
    by = attempt()

    claim = await ledger.claim(request, by)

    assert claim == Dispatched(
        key=ActionKey("support-4821/e1:0.0"),
        tool="charge_card",
        args=CHARGE,
        idempotency_key="cl_2zx2bhc2odkkq6fcfxxnluueisyq7ovevlushviy",
        domain_key=None,
        attempt=by,
        effect=Effect.IDEMPOTENT,
    )
    found = await row(pool, request.key)
    assert (found["status"], found["tries"], found["effect"]) == ("pending", 1, "idempotent")
    assert found["key_ttl"] == timedelta(hours=24)
    assert (found["claim_token"], found["claimed_by"]) == (by.token, request.key)
    assert found["attempt_at"] == NOON
    assert found["dispatched_at"] is not None
    assert timedelta(minutes=4) < found["lease_until"] - found["dispatched_at"]


async def test_an_intent_is_dispatched_by_whoever_comes(ledger: ActionLedger) -> None:
    request = action()
    handed_back = attempt(10)
    await ledger.claim(request, handed_back)
    assert await ledger.hand_back(request, handed_back)

    claim = await ledger.claim(request, attempt(0))

    assert isinstance(claim, Dispatched)
    assert not claim.taken_over


async def test_an_intent_that_somebody_else_wrote_is_dispatched(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    await sql(
        pool,
        "with held as (insert into agent_domain_keys values (%(domain_key)s, 1, %(key)s)) "
        "insert into agent_actions (key, tool, args, run_key, position, idempotency_key, "
        "domain_key, effect, requested_digest, effective_digest) values (%(key)s, 'charge_card', "
        "%(args)s::json, %(run)s, '0.0', %(domain_key)s, %(domain_key)s, 'idempotent', "
        "%(digest)s, %(digest)s)",
        key=request.key,
        run=RUN_A,
        args=CHARGE,
        domain_key=DOMAIN_KEY,
        digest=request.requested_digest,
    )

    claim = await ledger.claim(request, attempt())

    assert isinstance(claim, Dispatched)
    assert (claim.idempotency_key, claim.taken_over) == (DOMAIN_KEY, False)


@pytest.mark.parametrize("second", [-1, 0, 1], ids=["earlier", "equal", "later"])
async def test_a_done_action_gives_its_outcome_to_every_attempt(
    ledger: ActionLedger, second: int
) -> None:
    request = action()
    claim = await dispatched(ledger, request, attempt())
    await ledger.record(claim, Outcome.ok(RECEIPT))

    again = await ledger.claim(request, attempt(second))

    assert isinstance(again, AlreadyDone)
    assert again.action.result == RECEIPT
    assert again.action.recorded == Outcome.ok(RECEIPT)
    assert again.action.duplicate_of is None


async def test_a_recorded_error_is_an_outcome_like_any_other(ledger: ActionLedger) -> None:
    request = action()
    await ledger.record(await dispatched(ledger, request, attempt()), DECLINED)

    again = await ledger.claim(request, attempt(1))

    assert isinstance(again, AlreadyDone)
    assert again.action.recorded == DECLINED


async def test_a_parked_action_answers_unknown_to_every_attempt(ledger: ActionLedger) -> None:
    request = action()
    by = attempt()
    await ledger.park(await dispatched(ledger, request, by), "the provider hung up")

    claims = [await ledger.claim(request, other) for other in (by, attempt(-1), attempt(1))]

    for claim in claims:
        assert isinstance(claim, Parked)
        assert claim.action.parked_reason == "the provider hung up"


async def test_an_attempt_whose_commit_was_not_answered_goes_on(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    by = attempt()
    first = await ledger.claim(request, by)

    again = await ledger.claim(request, by)

    assert again == first
    assert (await row(pool, request.key))["tries"] == 1


async def test_a_later_attempt_takes_over_with_the_stored_arguments_and_the_same_key(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await dispatched(ledger, action(), attempt())
    # Newer code fixes one more default; the plan's own arguments are the same.
    newer = replace(action(), args='{"amount_cents":4900,"currency":"usd"}', effective_digest="new")

    taken = await dispatched(ledger, newer, attempt(1))

    assert taken.taken_over
    assert taken.args == CHARGE
    assert taken.idempotency_key == first.idempotency_key
    found = await row(pool, taken.key)
    assert (found["tries"], found["attempt_at"]) == (2, NOON + timedelta(seconds=1))


async def test_a_takeover_keeps_the_time_from_which_the_provider_may_know_the_key(
    ledger: ActionLedger, pool: Pool
) -> None:
    await ledger.claim(action(), attempt())
    before = await row(pool, action().key)

    await ledger.claim(action(), attempt(1))

    after = await row(pool, action().key)
    assert after["dispatched_at"] == before["dispatched_at"]
    assert after["lease_until"] > before["lease_until"]


@pytest.mark.parametrize(
    ("effect", "key_ttl", "reason"),
    [
        (
            Effect.IDEMPOTENT,
            timedelta(hours=24),
            f"{LOST}, and the downstream system remembers its key only for 1 day, 0:00:00",
        ),
        (
            Effect.LOOKUP,
            None,
            f"{LOST}, and this worker has no lookup for charge_card",
        ),
        (Effect.AT_MOST_ONCE, None, f"{LOST}, and charge_card must not be sent twice"),
    ],
)
async def test_a_later_attempt_parks_what_must_not_be_sent_again(
    ledger: ActionLedger, pool: Pool, effect: Effect, key_ttl: timedelta | None, reason: str
) -> None:
    request = action(effect=effect, key_ttl=key_ttl)
    await ledger.claim(request, attempt())
    await sql(pool, "update agent_actions set dispatched_at = now() - interval '24 hours'")

    claim = await ledger.claim(request, attempt(1))

    assert isinstance(claim, Parked)
    assert claim.action.parked_reason == reason
    assert (await row(pool, request.key))["tries"] == 1


async def test_a_key_within_its_life_is_sent_again(ledger: ActionLedger, pool: Pool) -> None:
    request = action(key_ttl=timedelta(hours=24))
    await ledger.claim(request, attempt())
    await sql(pool, "update agent_actions set dispatched_at = now() - interval '23 hours'")

    claim = await ledger.claim(request, attempt(1))

    assert isinstance(claim, Dispatched)


async def test_the_effect_and_key_life_of_the_row_count_and_not_those_of_newer_code(
    ledger: ActionLedger,
) -> None:
    await ledger.claim(action(effect=Effect.AT_MOST_ONCE), attempt())

    claim = await ledger.claim(action(effect=Effect.IDEMPOTENT), attempt(1))

    assert isinstance(claim, Parked)


@pytest.mark.parametrize("second", [-1, 0], ids=["earlier", "equal"])
async def test_an_attempt_that_did_not_begin_later_is_fenced(
    ledger: ActionLedger, pool: Pool, second: int
) -> None:
    await ledger.claim(action(), attempt())
    before = await row(pool, action().key)

    with pytest.raises(Fenced):
        await ledger.claim(action(), attempt(second))

    assert await row(pool, action().key) == before


@pytest.mark.parametrize("settled", [False, True], ids=["pending", "done"])
@pytest.mark.parametrize(
    "other", [action(tool="refund"), action(args=OTHER_CHARGE)], ids=["tool", "arguments"]
)
async def test_another_call_at_the_position_is_a_divergence_that_names_both_and_writes_nothing(
    ledger: ActionLedger, pool: Pool, other: ActionRequest, *, settled: bool
) -> None:
    claim = await dispatched(ledger, action(), attempt())
    if settled:
        await ledger.record(claim, Outcome.ok(RECEIPT))
    before = await row(pool, action().key)

    with pytest.raises(PlanDivergence) as diverged:
        await ledger.claim(other, attempt(1))

    assert "stands charge_card" in diverged.value.message
    assert f"the plan now has {other.tool}" in diverged.value.message
    assert await row(pool, action().key) == before
