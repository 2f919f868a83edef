"""Late outcomes: an action that was unknown becomes known, with the calls that repeat it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from commitline.errors import Fenced, IdempotencyKeyConflict, SettlementRefused
from commitline.ledger import ActionLedger, AlreadyDone, Dispatched, Effect, HeldClaim, Outcome
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, NOON, dispatched
from commitline.tests.integration.database import holding, until_blocked
from commitline.tests.integration.ledger.shipments import (
    DOMAIN_KEY,
    RECEIPT,
    RUN_A,
    RUN_B,
    action,
    attempt,
    repeated,
    row,
    stop,
)

pytestmark = pytest.mark.usefixtures("two_runs")


@pytest.mark.parametrize("outcome", [RECEIPT, DECLINED], ids=["ok", "without effect"])
@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY], ids=["keyless", "by domain key"])
async def test_a_late_outcome_settles_the_action_and_the_calls_that_were_answered_with_it(
    ledger: ActionLedger, domain_key: str | None, outcome: Outcome
) -> None:
    claim = await repeated(ledger, domain_key=domain_key)

    assert await ledger.record(claim, outcome) == outcome

    rows = await ledger.list()
    assert len(rows) == (3 if domain_key else 2)
    for one in rows:
        assert one.recorded == outcome
        assert (one.parked_at, one.parked_reason, one.decided_by) == (None, None, None)
        assert one.done_at is not None
        assert one.settled_at is not None


@pytest.mark.parametrize("outcome", [RECEIPT, DECLINED], ids=["ok", "without effect"])
@pytest.mark.parametrize("by", ["late record", "person"])
async def test_a_call_that_was_answered_with_an_unknown_one_replays_its_outcome_and_no_conflict(
    ledger: ActionLedger, pool: Pool, outcome: Outcome, by: str
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    if by == "person":
        await ledger.settle(claim.key, outcome, by="ada")
    else:
        await ledger.record(claim, outcome)

    replay = await ledger.claim(action("1.0", domain_key=DOMAIN_KEY), attempt(2))

    assert isinstance(replay, AlreadyDone)
    assert replay.action.recorded == outcome
    assert replay.action.duplicate_of == claim.key


async def test_a_late_outcome_is_settled_only_with_what_repeats_it(ledger: ActionLedger) -> None:
    claim = await repeated(ledger, domain_key=None)
    beside = await dispatched(ledger, action("0.1"), attempt())
    await ledger.park(beside, "its answer was lost too")
    done = await dispatched(ledger, action("0.2"), attempt())
    await ledger.record(done, DECLINED)
    before = [await row(ledger, one.key) for one in (beside, done)]

    await ledger.record(claim, RECEIPT)

    assert [await row(ledger, one.key) for one in (beside, done)] == before


@pytest.mark.parametrize("by", ["late record", "person"])
async def test_what_was_refused_while_the_first_was_unknown_stays_refused(
    ledger: ActionLedger, by: str
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    other = replace(action("0.1", domain_key=DOMAIN_KEY), effective_digest="another")
    with pytest.raises(IdempotencyKeyConflict) as first:
        await ledger.claim(other, attempt(1))
    before = await row(ledger, other.key)

    if by == "person":
        await ledger.settle(claim.key, RECEIPT, by="ada")
    else:
        await ledger.record(claim, RECEIPT)

    assert await row(ledger, other.key) == before
    with pytest.raises(IdempotencyKeyConflict) as again:
        await ledger.claim(other, attempt(2))
    assert again.value.message == first.value.message


async def test_a_late_error_without_effect_releases_the_domain_key(ledger: ActionLedger) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)

    await ledger.record(claim, DECLINED)

    again = await dispatched(ledger, action("2.0", domain_key=DOMAIN_KEY), attempt(2))
    assert again.idempotency_key == f"{DOMAIN_KEY}~2"


@pytest.mark.parametrize(
    "late", [RECEIPT, Outcome.error(kind="Odd", message="", effect_possible=True)]
)
async def test_a_late_outcome_with_effect_keeps_the_domain_key(
    ledger: ActionLedger, late: Outcome
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)

    await ledger.record(claim, late)

    again = await ledger.claim(action("2.0", domain_key=DOMAIN_KEY), attempt(2))
    assert isinstance(again, AlreadyDone)
    assert again.action.duplicate_of == claim.key


async def test_a_late_outcome_is_recorded_by_whoever_has_the_claim_of_the_attempt(
    ledger: ActionLedger,
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)

    assert claim.held == HeldClaim(claim.key, claim.attempt.token, DOMAIN_KEY)
    assert await ledger.record(claim.held, DECLINED) == DECLINED

    assert {one.state for one in await ledger.list()} == {"error"}
    assert isinstance(
        await ledger.claim(action("2.0", domain_key=DOMAIN_KEY), attempt()), Dispatched
    )


async def test_an_overtaken_attempt_denies_nothing_that_is_unknown(ledger: ActionLedger) -> None:
    request = action(effect=Effect.IDEMPOTENT, domain_key=DOMAIN_KEY)
    zombie = await dispatched(ledger, request, attempt())
    claim = await dispatched(ledger, request, attempt(1))
    await ledger.park(claim, "its answer was lost")
    before = await row(ledger, request.key)

    with pytest.raises(Fenced) as fenced:
        await ledger.record(zombie, DECLINED)

    assert not fenced.value.lost
    assert await row(ledger, request.key) == before
    assert await ledger.record(claim, RECEIPT) == RECEIPT


async def test_an_overtaken_attempt_that_knows_that_it_happened_settles_what_is_unknown(
    ledger: ActionLedger,
) -> None:
    request = action(effect=Effect.IDEMPOTENT, domain_key=DOMAIN_KEY)
    zombie = await dispatched(ledger, request, attempt())
    claim = await dispatched(ledger, request, attempt(1))
    await ledger.park(claim, "its answer was lost")

    assert await ledger.record(zombie, RECEIPT) == RECEIPT

    found = await row(ledger, request.key)
    assert (found.state, found.recorded) == ("ok", RECEIPT)
    assert found.settled_at is not None


async def test_an_overtaken_attempt_records_nothing_while_another_may_be_at_work(
    ledger: ActionLedger,
) -> None:
    request = action(effect=Effect.IDEMPOTENT, domain_key=DOMAIN_KEY)
    zombie = await dispatched(ledger, request, attempt())
    await dispatched(ledger, request, attempt(1))

    with pytest.raises(Fenced):
        await ledger.record(zombie, RECEIPT)


async def test_an_intent_of_a_stopped_run_is_carried_out_by_nobody_and_frees_its_key(
    ledger: ActionLedger,
) -> None:
    request = action(effect=Effect.IDEMPOTENT, domain_key=DOMAIN_KEY)
    by = attempt()
    await dispatched(ledger, request, by)
    assert await ledger.hand_back(request, by)
    await stop(ledger)
    asks_too = replace(request, run_key=RUN_B)

    claim = await dispatched(ledger, asks_too, attempt(1))

    stopped = await row(ledger, request.key)
    assert (claim.key, claim.settles_for) == (asks_too.key, None)
    assert claim.idempotency_key == f"{DOMAIN_KEY}~2"
    assert (stopped.state, stopped.effect_possible, stopped.tries) == ("error", False, 0)


@pytest.mark.parametrize("outcome", [RECEIPT, DECLINED], ids=["ok", "without effect"])
async def test_the_first_late_outcome_stands(ledger: ActionLedger, outcome: Outcome) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    await ledger.record(claim, outcome)
    before = [replace(one, now=NOON) for one in await ledger.list()]

    stands = [await ledger.record(claim, late) for late in (Outcome.ok("2"), DECLINED, outcome)]

    assert stands == [outcome] * 3
    assert [replace(one, now=NOON) for one in await ledger.list()] == before
    with pytest.raises(SettlementRefused):
        await ledger.settle(claim.key, Outcome.ok("3"), by="ada")


@pytest.mark.parametrize("by", ["late record", "person"])
async def test_a_call_that_finds_an_unknown_one_as_it_becomes_known_does_not_stay_unknown(
    ledger: ActionLedger, pool: Pool, by: str
) -> None:
    claim = await dispatched(ledger, action(), attempt())
    await ledger.park(claim, "its answer was lost")
    repeat = action("1.0")
    settling = ledger.record(claim, RECEIPT) if by == "late record" else ledger.settle(
        claim.key, RECEIPT, by="ada"
    )  # fmt: skip
    # Its row is about to be written by a session that then thinks better of it.
    async with holding(
        pool,
        "insert into agent_actions (key, tool, args, run_key, position, effect, "
        "requested_digest, effective_digest) values (%(key)s, 'ship', '{}', %(run)s, '1.0', "
        "'lookup', 'requested', 'effective')",
        key=repeat.key,
        run=RUN_A,
    ):
        claiming = asyncio.create_task(ledger.claim(repeat, attempt(1)))
        await until_blocked(pool, 1)  # it has seen that the first is unknown
        knowing = asyncio.create_task(_wait(settling))
        await until_blocked(pool, 2)  # it becomes known when the repetition is there

    await asyncio.gather(claiming, knowing)

    assert [one.state for one in await ledger.list()] == ["ok", "ok"]


async def _wait(work: Any) -> None:
    await work
