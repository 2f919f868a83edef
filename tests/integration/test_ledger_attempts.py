"""What an attempt leaves behind for the next one, stops, and what a run is told later.

On a real Postgres. Time is not waited for: what has to be over is set back on the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio

from commitline.errors import (
    Fenced,
    IdempotencyKeyConflict,
    LedgerUnavailable,
    RunInputConflict,
    RunNotRunning,
    SettlementRefused,
)
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Busy,
    Dispatched,
    Effect,
    LookUp,
    Outcome,
    Owned,
    Parked,
    Run,
    ledger_pool,
)
from commitline.ledger.pool import Pool
from commitline.testing.proxy import TcpProxy
from commitline.tests.integration.database import holding, sql, until_blocked

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUN_A = RunKey("support-4821/e1")
RUN_B = RunKey("support-4821/e2")
DOMAIN_KEY = "order-4821-ship"
ARGS = '{"order_id":"4821"}'
RECEIPT = Outcome.ok('{"id":"sh_1"}')
DECLINED = Outcome.error(kind="ToolRefused", message="no such address", effect_possible=False)
LEASE = timedelta(minutes=5)
DEADLINE = timedelta(minutes=4)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SLACK = timedelta(seconds=20)
"""How long the statements of one test may take."""


def action(
    position: str = "0.0",
    *,
    run: RunKey = RUN_A,
    effect: Effect = Effect.LOOKUP,
    can_look_up: bool = True,
    domain_key: str | None = None,
    key_ttl: timedelta | None = None,
    settles_after: timedelta = MINUTE,
) -> ActionRequest:
    return ActionRequest(
        run_key=run,
        position=Position(position),
        tool="ship",
        args=ARGS,
        effect=effect,
        requested_digest="requested",
        effective_digest="effective",
        domain_key=domain_key,
        key_ttl=key_ttl,
        can_look_up=can_look_up,
        settles_after=settles_after,
    )


def attempt(second: int = 0, *, deadline: timedelta | None = DEADLINE) -> Attempt:
    """An attempt that began so many seconds after noon, by the engine's clock."""
    return Attempt(NOON + timedelta(seconds=second), uuid4(), LEASE, deadline)


@pytest_asyncio.fixture(autouse=True)
async def runs(ledger: ActionLedger) -> None:
    """Two runs, both running."""
    for run in (RUN_A, RUN_B):
        await open_run(ledger, run)


async def open_run(ledger: ActionLedger, run: RunKey, second: int = 0) -> Run:
    return await ledger.open_run(
        run_key=run,
        workflow_id="support-4821",
        agent="support",
        input_digest="input",
        attempt_at=NOON + timedelta(seconds=second),
    )


async def stop(ledger: ActionLedger, run: RunKey = RUN_A, reason: str = "ada stopped it") -> Run:
    return await ledger.stop_run(
        run, workflow_id="support-4821", agent="support", reason=reason, attempt_at=NOON
    )


async def dispatched(ledger: ActionLedger, request: ActionRequest, by: Attempt) -> Dispatched:
    claim = await ledger.claim(request, by)
    assert isinstance(claim, Dispatched)
    return claim


async def asked(ledger: ActionLedger, request: ActionRequest, by: Attempt) -> LookUp:
    claim = await ledger.claim(request, by)
    assert isinstance(claim, LookUp)
    return claim


async def row(ledger: ActionLedger, key: ActionKey) -> Action:
    """The row as it is stored, whenever it is read."""
    found = await ledger.get(key)
    assert found is not None
    return replace(found, now=NOON)


async def sent_until(ledger: ActionLedger, key: ActionKey) -> datetime:
    found = (await row(ledger, key)).sent_until
    assert found is not None
    return found


async def all_sent(pool: Pool, *, ago: timedelta = HOUR) -> None:
    """Let the time be over until when the attempts so far may send something, and their leases."""
    await sql(
        pool,
        "update agent_actions set sent_until = clock_timestamp() - %(ago)s, "
        "lease_until = clock_timestamp() - %(ago)s",
        ago=ago,
    )


async def age(pool: Pool, by: timedelta) -> None:
    """Let the first dispatch be so long ago."""
    await sql(pool, "update agent_actions set dispatched_at = clock_timestamp() - %(by)s", by=by)


# --- asking ------------------------------------------------------------------------------


async def test_a_looked_up_action_that_a_later_attempt_finds_is_asked_about_and_not_sent(
    ledger: ActionLedger,
) -> None:
    first = await dispatched(ledger, action(), attempt())
    later = attempt(1)

    ask = await asked(ledger, action(), later)

    assert ask.call == replace(first, attempt=later, taken_over=True)
    found = await row(ledger, first.key)
    assert (found.asking, found.tries, found.state) == (True, 1, "dispatched")
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
    assert (after.asking, after.tries, after.sent_until) == (True, 1, before.sent_until)


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
    assert claim.action.parked_reason.endswith("cannot ask the downstream system about ship")


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
    assert (ask.call.idempotency_key, ask.call.args) == (first.idempotency_key, ARGS)
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
    assert (found.asking, found.tries, found.claimed_by) == (False, 2, wanted.key)


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


async def test_the_time_in_which_a_row_of_an_older_release_may_be_sent_is_its_lease(
    ledger: ActionLedger, pool: Pool
) -> None:
    await dispatched(ledger, action(), attempt())
    # It knew no deadlines.
    await sql(
        pool,
        "update agent_actions set sent_until = null, "
        "lease_until = clock_timestamp() - interval '30 seconds'",
    )

    asks = [await asked(ledger, action(), attempt(second)) for second in (1, 2)]

    for ask in asks:  # whoever asks, and however often
        assert timedelta(seconds=30) - SLACK < ask.settles_in <= timedelta(seconds=30)


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
    assert (after.asking, after.tries, after.claim_token) == (False, 2, ask.call.token)
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
    assert (found.asking, found.claim_token) == (False, ask.call.token)


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

    assert (await row(ledger, ask.call.key)).asking


# --- the life of a key -------------------------------------------------------------------


@pytest.mark.parametrize("can_look_up", [True, False])
async def test_a_key_that_is_forgotten_is_asked_about_if_that_can_be_else_it_is_unknown(
    ledger: ActionLedger, pool: Pool, *, can_look_up: bool
) -> None:
    request = action(effect=Effect.IDEMPOTENT, key_ttl=HOUR, can_look_up=can_look_up)
    await dispatched(ledger, request, attempt())
    await age(pool, HOUR)

    claim = await ledger.claim(request, attempt(1))

    assert isinstance(claim, LookUp if can_look_up else Parked)
    assert (await row(ledger, request.key)).tries == 1


async def test_a_forgotten_key_is_sent_again_only_after_asking_and_then_asked_about_again(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(effect=Effect.IDEMPOTENT, key_ttl=HOUR)
    await dispatched(ledger, request, attempt())
    await age(pool, HOUR)
    ask = await asked(ledger, request, attempt(1))
    await ledger.send_after_lookup(request, ask.call)

    assert isinstance(await ledger.claim(request, attempt(2)), LookUp)


async def test_a_call_that_is_sent_again_must_end_within_what_is_left_of_its_keys_life(
    ledger: ActionLedger, pool: Pool
) -> None:
    request = action(effect=Effect.IDEMPOTENT, key_ttl=HOUR)
    by = attempt(1)
    first = await dispatched(ledger, request, attempt())
    await age(pool, 20 * MINUTE)

    taken = await dispatched(ledger, request, by)
    await age(pool, 50 * MINUTE)
    again = await dispatched(ledger, request, by)

    assert first.key_life is None
    assert taken.key_life is not None
    assert 40 * MINUTE - SLACK < taken.key_life <= 40 * MINUTE
    assert again.key_life is not None
    assert 10 * MINUTE - SLACK < again.key_life <= 10 * MINUTE


async def test_a_key_that_lives_for_ever_or_was_never_sent_sets_no_time(
    ledger: ActionLedger,
) -> None:
    for_ever = action("0.0", effect=Effect.IDEMPOTENT)
    await dispatched(ledger, for_ever, attempt())
    never_sent = action("0.1", effect=Effect.IDEMPOTENT, key_ttl=HOUR)
    by = attempt()
    await dispatched(ledger, never_sent, by)
    await ledger.hand_back(never_sent, by)

    claims = [await dispatched(ledger, one, attempt(1)) for one in (for_ever, never_sent)]

    assert [(claim.key_life, claim.taken_over) for claim in claims] == [(None, True), (None, False)]


# --- a try that failed -------------------------------------------------------------------


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


# --- handing back ------------------------------------------------------------------------


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


# --- stops -------------------------------------------------------------------------------


async def test_a_stop_is_committed_with_its_time_and_its_reason(ledger: ActionLedger) -> None:
    stopped = await stop(ledger)

    assert (stopped.state, stopped.stop_reason) == ("stopping", "ada stopped it")
    assert stopped.stopped_at is not None
    assert replace(await run_a(ledger), now=stopped.now) == stopped
    other = await ledger.get_run(RUN_B)
    assert other is not None
    assert (other.state, other.stopped_at) == ("running", None)


async def run_a(ledger: ActionLedger) -> Run:
    run = await ledger.get_run(RUN_A)
    assert run is not None
    return run


async def test_the_first_reason_of_a_stop_stands(ledger: ActionLedger) -> None:
    first = await stop(ledger)

    second = await stop(ledger, reason="and bob did")

    assert replace(second, now=first.now) == first


Prepared = tuple[ActionRequest, Attempt]


async def prepared(ledger: ActionLedger, pool: Pool, found: str) -> Prepared:
    """Bring an action into a state; return what is claimed, and by which attempt."""
    by, later = attempt(), attempt(1)
    request = action(effect=Effect.IDEMPOTENT)
    if "domain key" in found:
        request = replace(request, domain_key=DOMAIN_KEY)
    if "ask" in found:
        request = action()
    match found:
        case "an intent that was handed back":
            await dispatched(ledger, request, by)
            await ledger.hand_back(request, by)
        case "its own claim":
            await dispatched(ledger, request, by)
            return request, by
        case "an earlier attempt's claim" | "a claim to ask about":
            await dispatched(ledger, request, by)
        case "its own claim to ask about":
            await dispatched(ledger, request, by)
            await asked(ledger, request, later)
        case "what is in progress":
            request = replace(request, effect=Effect.AT_MOST_ONCE)
            await ledger.fail_try(await dispatched(ledger, request, by), in_progress=True)
        case "a domain key of a dead attempt":
            await dispatched(ledger, replace(request, run_key=RUN_B), by)
            await all_sent(pool)
        case "a domain key of what is done":
            claim = await dispatched(ledger, replace(request, run_key=RUN_B), by)
            await ledger.record(claim, RECEIPT)
    return request, later


@pytest.mark.parametrize("how", ["stopped", "stopped, then ended"])
@pytest.mark.parametrize(
    "found",
    [
        "nothing",
        "nothing, with a domain key",
        "an intent that was handed back",
        "its own claim",
        "an earlier attempt's claim",
        "a claim to ask about",
        "its own claim to ask about",
        "what is in progress",
        "a domain key of a dead attempt",
        "a domain key of what is done",
    ],
)
async def test_a_stopped_run_starts_nothing(
    ledger: ActionLedger, pool: Pool, found: str, how: str
) -> None:
    request, by = await prepared(ledger, pool, found)
    await stop(ledger)
    if "ended" in how:  # not by `end_run`, which leaves nothing dispatched
        await sql(
            pool, "update agent_runs set state = 'ended', ended_attempt_at = %(before)s "
            "where run_key = %(run)s", before=NOON - HOUR, run=RUN_A,
        )  # fmt: skip
    before = [replace(one, now=NOON) for one in await ledger.list()]

    with pytest.raises(RunNotRunning, match="ada stopped it" if "ended" in how else "stopping"):
        await ledger.claim(request, by)

    assert [replace(one, now=NOON) for one in await ledger.list()] == before
    assert (await run_a(ledger)).state == ("ended" if "ended" in how else "stopping")


async def test_a_stopped_run_still_gets_what_it_did_and_what_is_unknown(
    ledger: ActionLedger,
) -> None:
    done, lost = action("0.0"), action("0.1", effect=Effect.AT_MOST_ONCE, can_look_up=False)
    await ledger.record(await dispatched(ledger, done, attempt()), RECEIPT)
    await dispatched(ledger, lost, attempt())
    await stop(ledger)

    replayed = await ledger.claim(done, attempt(1))
    unknown = await ledger.claim(lost, attempt(1))

    assert isinstance(replayed, AlreadyDone)
    assert replayed.action.recorded == RECEIPT
    assert isinstance(unknown, Parked)


async def test_what_was_at_work_when_its_run_was_stopped_is_still_recorded(
    ledger: ActionLedger,
) -> None:
    ok = await dispatched(ledger, action("0.0"), attempt())
    released = await dispatched(ledger, action("0.1", domain_key=DOMAIN_KEY), attempt())
    failed = await dispatched(ledger, action("0.2"), attempt())
    parked = await dispatched(ledger, action("0.3"), attempt())
    handed_back = attempt()
    await dispatched(ledger, action("0.4"), handed_back)
    await stop(ledger)

    assert await ledger.record(ok, RECEIPT) == RECEIPT
    assert await ledger.record(released, DECLINED) == DECLINED
    assert await ledger.fail_try(failed) == 1
    assert (await ledger.park(parked, "lost")).state == "unknown"
    assert await ledger.record(parked, RECEIPT) == RECEIPT
    assert await ledger.hand_back(action("0.4"), handed_back)
    free = await ledger.claim(action(run=RUN_B, domain_key=DOMAIN_KEY), attempt(1))
    assert isinstance(free, Dispatched)


async def test_a_run_that_was_stopped_before_it_opened_never_opens(ledger: ActionLedger) -> None:
    early = RunKey("support-4821/e9")
    stopped = await stop(ledger, early)

    opened = await open_run(ledger, early, 60)

    assert (stopped.state, stopped.opened_attempt_at) == ("stopping", NOON)
    assert (stopped.workflow_id, stopped.agent) == ("support-4821", "support")
    assert (opened.state, opened.stop_reason) == ("stopping", "ada stopped it")
    assert opened.input_digest == "input"
    with pytest.raises(RunNotRunning, match="is stopping"):
        await ledger.claim(action(run=early), attempt(61))
    with pytest.raises(RunInputConflict):
        await ledger.open_run(
            run_key=early, workflow_id="w", agent="a", input_digest="other", attempt_at=NOON
        )


@pytest.mark.parametrize("first", ["stopped", "ended"])
async def test_a_stopped_run_that_has_ended_is_opened_by_no_reset_and_no_retry(
    ledger: ActionLedger, first: str
) -> None:
    if first == "stopped":
        await stop(ledger)
        ended = await ledger.end_run(RUN_A, attempt_at=NOON)
    else:
        await ledger.end_run(RUN_A, attempt_at=NOON)
        ended = await stop(ledger)

    opened = await open_run(ledger, RUN_A, 60)
    with pytest.raises(RunNotRunning, match="was stopped: ada stopped it"):
        await ledger.claim(action(), attempt(60))
    with pytest.raises(RunNotRunning, match="was stopped: ada stopped it"):
        await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(60))

    assert (ended.state, ended.stop_reason) == ("ended", "ada stopped it")
    assert opened.state == "ended"
    assert await ledger.list() == []


async def test_an_ended_run_that_is_stopped_as_a_younger_execution_claims_is_not_opened(
    ledger: ActionLedger, pool: Pool
) -> None:
    await ledger.end_run(RUN_A, attempt_at=NOON)
    async with pool.connection() as connection, connection.transaction():
        # Lets a claim see that the run has ended, and not open it.
        await connection.execute("select from agent_runs for share")
        claiming = asyncio.create_task(ledger.claim(action(), attempt(60)))
        await until_blocked(pool, 1)
        await connection.execute(
            "update agent_runs set stopped_at = clock_timestamp(), stop_reason = 'ada stopped it'"
        )

    with pytest.raises(RunNotRunning, match="was stopped: ada stopped it"):
        await claiming

    assert (await run_a(ledger)).state == "ended"
    assert await ledger.list() == []


async def test_a_run_that_ended_without_a_stop_is_opened_again_and_can_be_stopped_then(
    ledger: ActionLedger,
) -> None:
    await ledger.end_run(RUN_A, attempt_at=NOON)
    opened = await open_run(ledger, RUN_A, 1)

    stopped = await stop(ledger)

    assert (opened.state, stopped.state) == ("running", "stopping")


async def test_a_run_that_is_being_undone_goes_on_being_undone(
    ledger: ActionLedger, pool: Pool
) -> None:
    await sql(pool, "update agent_runs set state = 'undoing' where run_key = %(run)s", run=RUN_A)

    stopped = await stop(ledger)

    assert (stopped.state, stopped.stop_reason) == ("undoing", "ada stopped it")


async def test_ending_a_run_that_was_stopped_keeps_why(ledger: ActionLedger) -> None:
    stopped = await stop(ledger)

    ended = await ledger.end_run(RUN_A, attempt_at=NOON)

    assert (ended.state, ended.ended_attempt_at) == ("ended", NOON)
    assert (ended.stopped_at, ended.stop_reason) == (stopped.stopped_at, "ada stopped it")


# --- what a run leaves behind at its end -------------------------------------------------


async def test_what_a_run_leaves_dispatched_at_its_end_is_unknown_and_can_still_be_told(
    ledger: ActionLedger, pool: Pool
) -> None:
    left = await dispatched(ledger, action("0.0"), attempt())
    await dispatched(ledger, action("0.1"), attempt())
    ask = await asked(ledger, action("0.1"), attempt(1))
    leases = {one.lease_until for one in await ledger.list()}

    await ledger.end_run(RUN_A, attempt_at=NOON + MINUTE)

    rows = await ledger.list()
    assert {one.state for one in rows} == {"unknown"}
    assert {one.lease_until for one in rows} == leases
    assert rows[0].parked_reason == (
        "the run ended between two tries: the last one may have happened"
    )
    assert await ledger.record(left, RECEIPT) == RECEIPT
    assert await ledger.record(ask.call, RECEIPT) == RECEIPT


async def test_the_end_of_a_run_leaves_everything_else_as_it_is(
    ledger: ActionLedger, pool: Pool
) -> None:
    done = await dispatched(ledger, action("0.0"), attempt())
    await ledger.record(done, RECEIPT)
    intent = attempt()
    await dispatched(ledger, action("0.1"), intent)
    await ledger.hand_back(action("0.1"), intent)
    parked = await dispatched(ledger, action("0.2"), attempt())
    await ledger.park(parked, "its answer was lost")
    await dispatched(ledger, action("0.0", run=RUN_B), attempt())
    before = [replace(one, now=NOON) for one in await ledger.list()]

    await ledger.end_run(RUN_A, attempt_at=NOON + MINUTE)
    await ledger.end_run(RUN_A, attempt_at=NOON + MINUTE)

    assert [replace(one, now=NOON) for one in await ledger.list()] == before


async def test_the_end_of_a_run_does_not_take_its_action_from_who_settles_it(
    ledger: ActionLedger, pool: Pool
) -> None:
    wanted = action(run=RUN_B, domain_key=DOMAIN_KEY)
    original = action(domain_key=DOMAIN_KEY)
    await dispatched(ledger, original, attempt())
    await all_sent(pool)
    ask = await asked(ledger, wanted, attempt(1))

    await ledger.end_run(RUN_A, attempt_at=NOON + MINUTE)
    alive = await row(ledger, original.key)
    await all_sent(pool)
    await ledger.end_run(RUN_A, attempt_at=NOON + MINUTE)

    assert alive.claim_token == ask.call.token
    assert alive.state == "dispatched"
    assert (await row(ledger, original.key)).state == "unknown"


async def test_the_late_end_of_an_older_execution_leaves_the_calls_of_a_younger_one(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, action(), attempt(60))

    await ledger.end_run(RUN_A, attempt_at=NOON + timedelta(seconds=30))

    assert (await row(ledger, claim.key)).state == "dispatched"
    assert isinstance(await ledger.claim(action(), attempt(61)), LookUp)


# --- an outcome of what was unknown ------------------------------------------------------


async def repeated(ledger: ActionLedger, *, domain_key: str | None) -> Dispatched:
    """An action that is unknown, and its repetition: in its own run and, by key, in another."""
    claim = await dispatched(ledger, action(domain_key=domain_key), attempt())
    await ledger.park(claim, "its answer was lost")
    for run in [RUN_A, RUN_B] if domain_key else [RUN_A]:
        repeat = await ledger.claim(action("1.0", run=run, domain_key=domain_key), attempt(1))
        assert isinstance(repeat, Parked)
        assert repeat.action.duplicate_of == claim.key
    return claim


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

    assert claim.owned == Owned(claim.key, claim.attempt.token, DOMAIN_KEY)
    assert await ledger.record(claim.owned, DECLINED) == DECLINED

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


# --- what a run is told later ------------------------------------------------------------


async def told(ledger: ActionLedger, step: int, run: RunKey = RUN_A) -> list[str]:
    return [one.position for one in await ledger.take_notices(run, step)]


async def test_a_run_is_told_at_one_turn_what_was_unknown_and_is_known(
    ledger: ActionLedger,
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    before = await told(ledger, 2)
    await ledger.record(claim, RECEIPT)

    first = await ledger.take_notices(RUN_A, 3)
    again = await ledger.take_notices(RUN_A, 3)

    assert before == []
    assert [one.position for one in first] == ["0.0", "1.0"]
    assert {one.recorded for one in first} == {RECEIPT}
    assert [one.key for one in again] == [one.key for one in first]
    assert {one.notified_step for one in again} == {3}
    assert await told(ledger, 4) == []
    assert await told(ledger, 2) == []
    assert await told(ledger, 3) == ["0.0", "1.0"]


async def test_each_run_is_told_of_its_own_calls(ledger: ActionLedger) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    await ledger.record(claim, RECEIPT)

    assert await told(ledger, 3) == ["0.0", "1.0"]
    assert await told(ledger, 7, RUN_B) == ["1.0"]

    assert await told(ledger, 4) == []
    assert await told(ledger, 8, RUN_B) == []
    assert await told(ledger, 7, RUN_B) == ["1.0"]


async def test_a_run_is_told_what_a_person_settled_and_of_its_repetitions(
    ledger: ActionLedger,
) -> None:
    claim = await repeated(ledger, domain_key=DOMAIN_KEY)
    await ledger.settle(claim.key, DECLINED, by="ada")

    found = await ledger.take_notices(RUN_A, 3)

    assert [(one.position, one.decided_by) for one in found] == [("0.0", "ada"), ("1.0", "ada")]
    assert await told(ledger, 3, RUN_B) == ["1.0"]


async def test_a_turn_that_is_repeated_is_told_also_what_came_since_and_later_turns_are_not(
    ledger: ActionLedger,
) -> None:
    claims = [await dispatched(ledger, action(f"0.{call}"), attempt()) for call in (0, 1, 2)]
    for claim in claims:
        await ledger.park(claim, "its answer was lost")
    await ledger.record(claims[1], RECEIPT)
    first = await told(ledger, 3)
    await ledger.record(claims[0], RECEIPT)

    again = await told(ledger, 3)
    await ledger.settle(claims[2].key, RECEIPT, by="ada")
    later = await told(ledger, 4)

    assert first == ["0.1"]
    assert again == ["0.1", "0.0"]
    assert later == ["0.2"]
    assert await told(ledger, 3) == ["0.1", "0.0"]


async def test_a_run_is_not_told_of_what_was_never_unknown(ledger: ActionLedger) -> None:
    claim = await dispatched(ledger, action("0.0", domain_key=DOMAIN_KEY), attempt())
    await ledger.record(claim, RECEIPT)
    await ledger.claim(action("1.0", domain_key=DOMAIN_KEY), attempt())
    unknown = await dispatched(ledger, action("2.0"), attempt())
    await ledger.park(unknown, "its answer was lost")

    assert await told(ledger, 3) == []


# --- what is gone, and what was not answered ---------------------------------------------


@pytest.mark.parametrize("outcome", [RECEIPT, DECLINED], ids=["ok", "without effect"])
@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY])
async def test_a_row_that_is_gone_is_told_apart_from_one_that_was_taken_over(
    ledger: ActionLedger, pool: Pool, domain_key: str | None, outcome: Outcome
) -> None:
    request = action(effect=Effect.IDEMPOTENT, domain_key=domain_key)
    lost = await dispatched(ledger, request, attempt())
    await dispatched(ledger, request, attempt(1))
    with pytest.raises(Fenced) as taken_over:
        await ledger.record(lost, outcome)
    await sql(pool, "delete from agent_actions")
    with pytest.raises(Fenced) as gone:
        await ledger.record(lost, outcome)

    assert (taken_over.value.lost, gone.value.lost) == (False, True)


@pytest_asyncio.fixture
async def proxied(ledger_database_url: str) -> AsyncIterator[tuple[ActionLedger, TcpProxy]]:
    """A hasty ledger behind a proxy, with one connection, which stands."""
    with TcpProxy.before(ledger_database_url) as proxy:
        async with ledger_pool(proxy.url(ledger_database_url), size=1) as pool:
            await pool.wait()
            yield ActionLedger(pool, statement_seconds=1.5), proxy
            proxy.thaw()


async def test_an_unreachable_database_was_not_reached(ledger_database_url: str) -> None:
    with TcpProxy.before(ledger_database_url) as proxy:
        proxy.cut()
        async with ledger_pool(proxy.url(ledger_database_url), size=1) as pool:
            with pytest.raises(LedgerUnavailable) as away:
                await ActionLedger(pool, statement_seconds=0.3).claim(action(), attempt())

    assert not away.value.reached


async def test_a_statement_whose_connection_is_cut_has_reached_the_database(
    ledger: ActionLedger, pool: Pool, proxied: tuple[ActionLedger, TcpProxy]
) -> None:
    hasty, proxy = proxied
    async with holding(pool, "select from agent_runs for update"):
        claiming = asyncio.create_task(hasty.claim(action(), attempt()))
        await until_blocked(pool, 1)
        proxy.cut()
        with pytest.raises(LedgerUnavailable) as cut:
            await claiming

    assert cut.value.reached
    assert isinstance(cut.value.__cause__, psycopg.OperationalError)


async def test_a_claim_that_was_committed_without_an_answer_says_so_and_is_claimed_again(
    ledger: ActionLedger, proxied: tuple[ActionLedger, TcpProxy]
) -> None:
    hasty, proxy = proxied
    by = attempt()
    proxy.freeze_answers()

    with pytest.raises(LedgerUnavailable) as unanswered:
        await hasty.claim(action(), by)

    assert unanswered.value.reached
    assert (await row(ledger, action().key)).claim_token == by.token
    assert isinstance(await ledger.claim(action(), by), Dispatched)
