"""The table of claims, row by row, and the races between claims, on a real Postgres.

Races are arranged: a session of the test's holds a lock until Postgres shows that the
others wait for it, and only then lets go. A deadlock would not be resolved (see conftest).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

import pytest
import pytest_asyncio

from commitline.canonical import digest, parse
from commitline.errors import (
    Fenced,
    IdempotencyKeyConflict,
    PlanDivergence,
    RunInputConflict,
    RunNotRunning,
)
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Busy,
    Claim,
    Dispatched,
    Effect,
    Outcome,
    Parked,
)
from commitline.ledger.pool import Pool
from commitline.tests.integration.database import holding, sql, until_blocked

T = TypeVar("T")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUN_A = RunKey("support-4821/e1")
RUN_B = RunKey("support-4821/e2")
DOMAIN_KEY = "order-4821-charge"
CHARGE = '{"order_id":"4821","amount_cents":4900}'
OTHER_CHARGE = '{"order_id":"4821","amount_cents":5900}'
RECEIPT = '{"id":"ch_1", "amount": 4.9e3}'
DECLINED = Outcome.error(kind="ToolRefused", message="card declined", effect_possible=False)
LOST = "an earlier attempt was lost after it was dispatched"


def action(
    position: str = "0.0",
    *,
    run: RunKey = RUN_A,
    tool: str = "charge_card",
    args: str = CHARGE,
    effect: Effect = Effect.IDEMPOTENT,
    domain_key: str | None = None,
    key_ttl: timedelta | None = None,
) -> ActionRequest:
    return ActionRequest(
        run_key=run,
        position=Position(position),
        tool=tool,
        args=args,
        effect=effect,
        requested_digest=digest(parse(args)),
        effective_digest=digest(parse(args)),
        domain_key=domain_key,
        key_ttl=key_ttl,
    )


def attempt(second: int = 0, *, lease: timedelta = timedelta(minutes=5)) -> Attempt:
    """An attempt that began so many seconds after noon, by the engine's clock."""
    return Attempt(started_at=NOON + timedelta(seconds=second), token=uuid4(), lease=lease)


@pytest_asyncio.fixture(autouse=True)
async def runs(ledger: ActionLedger) -> None:
    """Two runs of two conversations, both running."""
    for run in (RUN_A, RUN_B):
        await ledger.open_run(
            run_key=run,
            workflow_id="support-4821",
            agent="support",
            input_digest="input",
            attempt_at=NOON,
        )


async def dispatched(ledger: ActionLedger, request: ActionRequest, by: Attempt) -> Dispatched:
    claim = await ledger.claim(request, by)
    assert isinstance(claim, Dispatched)
    return claim


async def expire_lease(pool: Pool, key: ActionKey) -> None:
    await sql(
        pool,
        "update agent_actions set lease_until = clock_timestamp() - interval '1 second' "
        "where key = %(key)s",
        key=key,
    )


async def row(pool: Pool, key: ActionKey) -> Mapping[str, Any]:
    (found,) = await sql(pool, "select * from agent_actions where key = %(key)s", key=key)
    return found


async def counts(pool: Pool) -> tuple[int, int]:
    """Rows of actions, and of domain keys."""
    (found,) = await sql(
        pool,
        "select (select count(*) from agent_actions) as actions, "
        "(select count(*) from agent_domain_keys) as keys",
    )
    return found["actions"], found["keys"]


# --- the own row -------------------------------------------------------------------------


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
            f"{LOST}, and this worker cannot ask the downstream system about charge_card",
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


# --- handing back, recording, parking ----------------------------------------------------


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


# --- domain keys -------------------------------------------------------------------------


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
async def test_a_domain_key_used_for_something_else_is_refused_naming_both(
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
        f"'order-4821-charge' was used by support-4821/e1:0.0 for charge_card {CHARGE}, "
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


# --- runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY])
@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
async def test_a_run_that_does_not_run_writes_and_calls_nothing(
    ledger: ActionLedger, pool: Pool, state: str, domain_key: str | None
) -> None:
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s",
        state=state, noon=NOON,
    )  # fmt: skip

    with pytest.raises(RunNotRunning) as refused:
        await ledger.claim(action(domain_key=domain_key), attempt(0))

    assert refused.value.known
    assert state in refused.value.message
    assert await counts(pool) == (0, 0)


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY])
async def test_a_run_that_the_ledger_does_not_know_writes_and_calls_nothing(
    ledger: ActionLedger, pool: Pool, domain_key: str | None
) -> None:
    with pytest.raises(RunNotRunning) as refused:
        await ledger.claim(action(run=RunKey("other/e9"), domain_key=domain_key), attempt())

    assert not refused.value.known
    assert await counts(pool) == (0, 0)


@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
@pytest.mark.parametrize("found", ["intent", "dispatched"])
async def test_a_run_that_does_not_run_goes_on_with_nothing_that_it_began(
    ledger: ActionLedger, pool: Pool, state: str, found: str
) -> None:
    by = attempt(-10)
    await ledger.claim(action(), by)
    if found == "intent":
        await ledger.hand_back(action(), by)
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s",
        state=state, noon=NOON,
    )  # fmt: skip
    before = await row(pool, action().key)

    with pytest.raises(RunNotRunning):
        await ledger.claim(action(), attempt(0))

    assert await row(pool, action().key) == before


@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
async def test_a_run_that_does_not_run_neither_settles_nor_duplicates_others_actions(
    ledger: ActionLedger, pool: Pool, state: str
) -> None:
    original = action(run=RUN_B, domain_key=DOMAIN_KEY)
    await ledger.claim(original, attempt())
    await expire_lease(pool, original.key)
    before = await row(pool, original.key)
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s "
        "where run_key = %(run)s", state=state, noon=NOON, run=RUN_A,
    )  # fmt: skip

    with pytest.raises(RunNotRunning):
        await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(0))

    assert await row(pool, original.key) == before
    assert await counts(pool) == (1, 1)


@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
async def test_a_run_that_does_not_run_still_records_and_returns_what_it_did(
    ledger: ActionLedger, pool: Pool, state: str
) -> None:
    claim = await dispatched(ledger, action(), attempt())
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s",
        state=state, noon=NOON,
    )  # fmt: skip

    await ledger.record(claim, Outcome.ok(RECEIPT))
    again = await ledger.claim(action(), attempt(0))

    assert isinstance(again, AlreadyDone)
    assert again.action.result == RECEIPT


async def test_a_claim_by_a_later_execution_goes_on_with_an_ended_run(
    ledger: ActionLedger,
) -> None:
    await ledger.end_run(RUN_A, attempt_at=NOON)

    claim = await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(1))

    assert isinstance(claim, Dispatched)
    run = await ledger.get_run(RUN_A)
    assert run is not None
    assert run.state == "running"


@pytest.mark.parametrize(("second", "state"), [(0, "ended"), (-1, "ended"), (1, "running")])
async def test_opening_an_ended_run_goes_on_with_it_only_for_a_later_attempt(
    ledger: ActionLedger, second: int, state: str
) -> None:
    await ledger.end_run(RUN_A, attempt_at=NOON)

    run = await ledger.open_run(
        run_key=RUN_A,
        workflow_id="support-4821",
        agent="support",
        input_digest="input",
        attempt_at=NOON + timedelta(seconds=second),
    )

    assert run.state == state
    assert run.opened_attempt_at == NOON


@pytest.mark.parametrize("state", ["stopping", "undoing"])
async def test_opening_a_run_that_is_being_stopped_does_not_set_it_going_again(
    ledger: ActionLedger, pool: Pool, state: str
) -> None:
    await sql(pool, "update agent_runs set state = %(state)s", state=state)

    run = await ledger.open_run(
        run_key=RUN_A,
        workflow_id="support-4821",
        agent="support",
        input_digest="input",
        attempt_at=NOON + timedelta(hours=1),
    )

    assert run.state == state


async def test_ending_a_run_again_keeps_the_latest_end(ledger: ActionLedger) -> None:
    await ledger.end_run(RUN_A, attempt_at=NOON + timedelta(seconds=5))

    run = await ledger.end_run(RUN_A, attempt_at=NOON)

    assert run.ended_attempt_at == NOON + timedelta(seconds=5)
    with pytest.raises(RunNotRunning):
        await ledger.claim(action(), attempt(3))


async def test_ending_a_run_that_the_ledger_does_not_know_is_refused(
    ledger: ActionLedger,
) -> None:
    with pytest.raises(RunNotRunning) as refused:
        await ledger.end_run(RunKey("other/e9"), attempt_at=NOON)

    assert not refused.value.known


async def test_a_run_has_one_input(ledger: ActionLedger) -> None:
    with pytest.raises(RunInputConflict):
        await ledger.open_run(
            run_key=RUN_A,
            workflow_id="support-4821",
            agent="support",
            input_digest="another",
            attempt_at=NOON,
        )

    run = await ledger.get_run(RUN_A)
    assert run is not None
    assert run.input_digest == "input"


async def test_the_first_completion_of_a_turn_stands(ledger: ActionLedger) -> None:
    before = await ledger.get_completion(RUN_A, 3)

    first = await ledger.record_completion(RUN_A, 3, '{"text":"\\ud83d","n":2.561422288066971e16}')
    second = await ledger.record_completion(RUN_A, 3, '{"text":"another"}')

    assert before is None
    assert first == second == {"text": "\ud83d", "n": 2.561422288066971e16}
    assert await ledger.get_completion(RUN_A, 3) == first
    assert await ledger.get_completion(RUN_B, 3) is None


async def test_actions_and_runs_are_listed(ledger: ActionLedger) -> None:
    parked = await dispatched(ledger, action("0.0"), attempt())
    await ledger.claim(action("0.1"), attempt())
    await ledger.claim(action("0.0", run=RUN_B), attempt())
    await ledger.park(parked, "the provider hung up")

    of_run = await ledger.list(RUN_A)
    unknown = await ledger.list(only_parked=True)
    everything = await ledger.list(limit=2)
    runs = await ledger.list_runs(workflow_id="support-4821")

    assert [(found.position, found.state) for found in of_run] == [
        ("0.0", "unknown"),
        ("0.1", "dispatched"),
    ]
    assert [found.key for found in unknown] == [parked.key]
    assert len(everything) == 2
    assert {run.run_key for run in runs} == {RUN_A, RUN_B}
    assert await ledger.list_runs(workflow_id="another") == []
    assert await ledger.get(ActionKey("nobody:0.0")) is None


# --- races -------------------------------------------------------------------------------


async def outcomes(works: list[Awaitable[T]]) -> list[T | BaseException]:
    return await asyncio.gather(*works, return_exceptions=True)


LOCK_RUN_A = "select from agent_runs where run_key = 'support-4821/e1' for update"


async def test_of_twenty_claims_of_one_domain_key_at_once_exactly_one_is_dispatched(
    ledger: ActionLedger, pool: Pool
) -> None:
    requests = [action(f"0.{call}", domain_key=DOMAIN_KEY) for call in range(20)]
    async with holding(pool, LOCK_RUN_A):
        # All twenty have looked for the key, and found it free, before any of them takes it.
        claims = asyncio.create_task(
            outcomes([ledger.claim(request, attempt()) for request in requests])
        )
        await until_blocked(pool, 20)

    settled = await claims

    won = [claim for claim in settled if isinstance(claim, Dispatched)]
    assert len(won) == 1
    assert settled.count(Busy(won[0].key)) == 19
    assert await counts(pool) == (1, 1)


async def test_of_two_attempts_that_claim_one_action_at_once_the_later_one_owns_it(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    earlier, later = attempt(0), attempt(1)
    async with holding(pool, LOCK_RUN_A):
        claims = asyncio.create_task(
            outcomes([ledger.claim(request, by) for by in (earlier, later)])
        )
        await until_blocked(pool, 2)

    of_earlier, of_later = await claims

    assert isinstance(of_later, Dispatched)
    assert (await row(pool, request.key))["claim_token"] == later.token
    if isinstance(of_earlier, Dispatched):  # it came first, and was overtaken
        assert of_later.taken_over
        with pytest.raises(Fenced):
            await ledger.record(of_earlier, Outcome.ok("2"))
    else:
        assert isinstance(of_earlier, Fenced)
    assert await ledger.record(of_later, Outcome.ok(RECEIPT)) == Outcome.ok(RECEIPT)


async def test_of_two_attempts_that_began_at_one_time_one_is_fenced(
    ledger: ActionLedger, pool: Pool
) -> None:
    attempts = [attempt(), attempt()]
    async with holding(pool, LOCK_RUN_A):
        claims = asyncio.create_task(outcomes([ledger.claim(action(), by) for by in attempts]))
        await until_blocked(pool, 2)

    settled = await claims

    assert {type(claim) for claim in settled} == {Dispatched, Fenced}


async def test_a_takeover_and_a_late_record_at_once_agree_on_one_owner(
    ledger: ActionLedger, pool: Pool
) -> None:
    claim = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    works: list[Awaitable[Outcome | Claim]] = [
        ledger.record(claim, Outcome.ok(RECEIPT)),
        ledger.claim(action(domain_key=DOMAIN_KEY), attempt(1)),
    ]
    async with holding(pool, "select from agent_actions for update"):
        both = asyncio.create_task(outcomes(works))
        await until_blocked(pool, 2)

    recorded, taken = await both

    if isinstance(recorded, Outcome):
        assert isinstance(taken, AlreadyDone)
        assert taken.action.result == RECEIPT
    else:
        assert isinstance(recorded, Fenced)
        assert isinstance(taken, Dispatched)


async def test_a_release_that_claims_wait_for_gives_the_key_to_one_of_them(
    ledger: ActionLedger, pool: Pool
) -> None:
    holder = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    requests = [action(f"1.{call}", domain_key=DOMAIN_KEY) for call in range(5)]
    async with holding(pool, "select from agent_actions for update"):
        release = asyncio.create_task(ledger.record(holder, DECLINED))
        await until_blocked(pool, 1)  # it has the domain key, and waits for the action
        claims = asyncio.create_task(
            outcomes([ledger.claim(request, attempt(1)) for request in requests])
        )
        await until_blocked(pool, 6)

    settled = await claims

    assert await release == DECLINED
    won = [claim for claim in settled if isinstance(claim, Dispatched)]
    assert [claim.idempotency_key for claim in won] == ["order-4821-charge~2"]
    assert settled.count(Busy(won[0].key)) == 4


async def test_a_claim_that_a_release_waits_for_is_busy_and_has_the_key_afterwards(
    ledger: ActionLedger, pool: Pool
) -> None:
    holder = await dispatched(ledger, action(domain_key=DOMAIN_KEY), attempt())
    asking = action("1.0", domain_key=DOMAIN_KEY)
    by = attempt(1)
    async with holding(pool, "select from agent_actions for update"):
        claim = asyncio.create_task(ledger.claim(asking, by))
        await until_blocked(pool, 1)  # it has the domain key, and waits for the holder
        release = asyncio.create_task(ledger.record(holder, DECLINED))
        await until_blocked(pool, 2)

    first, recorded = await claim, await release
    again = await ledger.claim(asking, by)

    assert first == Busy(holder.key)
    assert recorded == DECLINED
    assert isinstance(again, Dispatched)
    assert again.idempotency_key == "order-4821-charge~2"


async def test_a_claim_waits_for_a_stop_that_is_about_to_commit_and_then_does_nothing(
    ledger: ActionLedger, pool: Pool
) -> None:
    async with holding(pool, "update agent_runs set state = 'stopping'", commits=True):
        claim = asyncio.create_task(outcomes([ledger.claim(action(), attempt())]))
        await until_blocked(pool, 1)

    (refused,) = await claim

    assert isinstance(refused, RunNotRunning)
    assert await counts(pool) == (0, 0)


@pytest.mark.parametrize("found", ["own row", "domain key"])
async def test_a_stop_waits_for_a_claim_that_is_about_to_commit(
    ledger: ActionLedger, pool: Pool, found: str
) -> None:
    original = action(run=RUN_B, domain_key=DOMAIN_KEY)
    request = action(domain_key=DOMAIN_KEY)
    if found == "own row":
        await ledger.claim(request, attempt())
    else:
        await ledger.claim(original, attempt())
        await expire_lease(pool, original.key)
    stop = sql(pool, "update agent_runs set state = 'stopping' returning clock_timestamp() as at")
    async with holding(pool, "select from agent_actions for update"):
        claiming = asyncio.create_task(ledger.claim(request, attempt(1)))
        await until_blocked(pool, 1)
        stopping = asyncio.create_task(stop)
        await until_blocked(pool, 2)

    claim = await claiming
    await stopping

    assert isinstance(claim, Dispatched)
    with pytest.raises(RunNotRunning):
        await ledger.claim(action("5.0"), attempt(9))
