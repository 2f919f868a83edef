"""Giving a turn up: what was sent is parked, what was not sent is void, and the races."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from commitline.errors import Fenced, RunNotRunning
from commitline.identity import Position
from commitline.ledger import ActionLedger, AlreadyDone, Dispatched, Effect, Parked, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, NOON, attempt, dispatched
from commitline.tests.integration.database import holding, sql
from commitline.tests.integration.ledger.conversations import (
    DOMAIN_KEY,
    RECEIPT,
    RUN_A,
    RUN_B,
    RUN_C,
    THREAD,
    action,
    everything,
    give_up,
    handed_back,
    holding_action,
    holding_run,
    in_this_order,
    open_run,
    row,
    run_of,
    turn,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_what_is_done_keeps_its_outcome_when_its_turn_is_given_up(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    done = action("0.0", domain_key=DOMAIN_KEY)
    refused = action("0.1", args='{"order_id":"2"}')
    await ledger.record(await dispatched(ledger, done), RECEIPT)
    await ledger.record(await dispatched(ledger, refused), DECLINED)
    before = [await row(ledger, one) for one in (done, refused)]

    found = await give_up(threads, RUN_A, [done.position, refused.position], by=RUN_B)

    assert [replace(found[one.position], now=NOON) for one in (done, refused)] == [
        replace(one, now=NOON) for one in before
    ]
    assert await threads.pending_notices(THREAD) == []


async def test_what_may_have_been_sent_is_parked_and_its_lease_stays(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    await dispatched(ledger, request)
    before = await row(ledger, request)

    found = await give_up(threads, RUN_A, [request.position], by=RUN_B)

    after = found[request.position]
    assert (after.state, after.lease_until, after.claim_token) == (
        "unknown",
        before.lease_until,
        before.claim_token,
    )
    assert replace(await row(ledger, request), now=NOON) == replace(after, now=NOON)


async def test_a_late_answer_settles_what_was_given_up_and_is_told_to_the_next_run(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    claim = await dispatched(ledger, request)
    await give_up(threads, RUN_A, [request.position], by=RUN_B)
    assert await threads.pending_notices(THREAD) == []

    assert await ledger.record(claim, RECEIPT) == RECEIPT

    (told,) = await threads.pending_notices(THREAD)
    assert (told.key, told.state) == (request.key, "ok")
    await threads.commit(turn(0, RUN_B, told=[told.key]))
    assert await threads.pending_notices(THREAD) == []


async def test_an_attempt_that_sent_nothing_after_all_does_not_take_back_what_was_given_up(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    by = attempt()
    await dispatched(ledger, request, by)
    await give_up(threads, RUN_A, [request.position], by=RUN_B)

    assert not await ledger.hand_back(request, by)
    assert (await row(ledger, request)).state == "unknown"


async def test_what_was_never_sent_is_void_and_its_business_fact_is_free_again(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    await handed_back(ledger, request)

    found = await give_up(threads, RUN_A, [request.position], by=RUN_B)
    claim = await dispatched(ledger, action(run=RUN_B, domain_key=DOMAIN_KEY))

    voided = found[request.position]
    assert (voided.state, voided.effect_possible, voided.settled_at) == ("error", False, None)
    assert (claim.key, claim.taken_over) == (action(run=RUN_B).key, False)
    assert claim.idempotency_key == f"{DOMAIN_KEY}~2"
    assert await threads.pending_notices(THREAD) == []


async def test_a_business_fact_that_may_have_happened_is_not_free(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    await dispatched(ledger, request)
    await give_up(threads, RUN_A, [request.position], by=RUN_B)

    claim = await ledger.claim(action(run=RUN_B, domain_key=DOMAIN_KEY), attempt())

    assert isinstance(claim, Parked)
    assert claim.action.duplicate_of == request.key


async def test_only_what_the_ledger_has_of_a_turn_is_returned_and_other_turns_are_left_alone(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    earlier = action("0.0", args='{"order_id":"2"}')
    given_up = action("1.1")
    await dispatched(ledger, earlier)
    await dispatched(ledger, given_up)

    found = await give_up(
        threads, RUN_A, [Position("1.0"), Position("1.1"), Position("1.2")], by=RUN_B
    )

    assert list(found) == ["1.1"]
    assert (await row(ledger, earlier)).state == "dispatched"


async def test_giving_a_turn_up_again_changes_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await dispatched(ledger, action("0.0"))
    await handed_back(ledger, action("0.1", domain_key=DOMAIN_KEY))
    positions = [Position("0.0"), Position("0.1")]
    first = await give_up(threads, RUN_A, positions, by=RUN_B)
    before = await everything(pool)

    for by in (RUN_B, RUN_C):
        again = await give_up(threads, RUN_A, positions, by=by)
        assert {at: one.state for at, one in again.items()} == {
            at: one.state for at, one in first.items()
        }

    assert await everything(pool) == before
    assert (await run_of(ledger, RUN_A)).stop_reason == f"the conversation went on with {RUN_B}"


async def test_a_run_that_was_given_up_starts_nothing_any_more(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    intent = action("0.0", domain_key=DOMAIN_KEY)
    await handed_back(ledger, intent)
    taken_over = action("0.1", effect=Effect.IDEMPOTENT, args='{"order_id":"2"}')
    await dispatched(ledger, taken_over)
    forgotten = action("0.2", effect=Effect.IDEMPOTENT, args='{"order_id":"3"}')
    await dispatched(ledger, forgotten)
    left = action("0.3", args='{"order_id":"4"}')
    await handed_back(ledger, left)
    lookup = replace(action("0.4", effect=Effect.LOOKUP, args='{"order_id":"5"}'), can_look_up=True)
    await dispatched(ledger, lookup)

    await give_up(threads, RUN_A, [intent.position, taken_over.position], by=RUN_B)
    before = await everything(pool)

    assert isinstance(await ledger.claim(intent, attempt(1)), AlreadyDone)
    assert isinstance(await ledger.claim(taken_over, attempt(1)), Parked)
    for request in (forgotten, left, lookup, action("0.5"), action("e1-0.5"), action("9.0")):
        for second in (1, 10_000):
            with pytest.raises(RunNotRunning):
                await ledger.claim(request, attempt(second))
    with pytest.raises(RunNotRunning):
        await ledger.claim(action("1.0", domain_key="new"), attempt(1))
    assert await everything(pool) == before
    reopened = await open_run(ledger, RUN_A, second=10_000)
    assert (reopened.state, reopened.stopped_at is None) == ("ended", False)
    with pytest.raises(RunNotRunning):
        await ledger.claim(action("9.0"), attempt(20_000))


async def test_what_a_run_that_was_given_up_asks_about_is_not_sent(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    from commitline.ledger import LookUp

    request = replace(action(effect=Effect.LOOKUP), can_look_up=True)
    await dispatched(ledger, request)
    ask = await ledger.claim(request, attempt(1))
    assert isinstance(ask, LookUp)

    await give_up(threads, RUN_A, [request.position], by=RUN_B)

    with pytest.raises((RunNotRunning, Fenced)):
        await ledger.send_after_lookup(request, ask.call)
    assert (await row(ledger, request)).state == "unknown"


async def test_a_run_that_ended_or_was_stopped_before_keeps_its_own_reason(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await ledger.runs.end(RUN_A, attempt_at=NOON + timedelta(hours=1))
    await ledger.runs.stop(
        RUN_C, workflow_id="w", agent="support", reason="ada stopped it", attempt_at=NOON
    )
    stopped = await run_of(ledger, RUN_C)

    for run in (RUN_A, RUN_C):
        await give_up(threads, run, [], by=RUN_B)

    ended = await run_of(ledger, RUN_A)
    assert (ended.state, ended.ended_attempt_at) == ("ended", NOON + timedelta(hours=1))
    assert ended.stopped_at is not None
    given_up = await run_of(ledger, RUN_C)
    assert (given_up.state, given_up.stop_reason) == ("ended", "ada stopped it")
    assert given_up.stopped_at == stopped.stopped_at


async def test_a_run_gives_up_a_turn_of_its_own_and_goes_on(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    await dispatched(ledger, request)
    before = await run_of(ledger, RUN_A)

    found = await give_up(threads, RUN_A, [request.position], by=RUN_A)

    assert found[request.position].state == "unknown"
    assert await run_of(ledger, RUN_A) == before
    await dispatched(ledger, action("1.0", args='{"order_id":"2"}'))


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY], ids=["keyless", "keyed"])
async def test_a_claim_that_waits_while_its_run_is_given_up_claims_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, domain_key: str | None
) -> None:
    request = action(domain_key=domain_key)

    found, claim = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.claim(request, attempt()),
    )

    assert found == {}
    assert isinstance(claim, RunNotRunning)
    assert await ledger.get(request.key) is None


async def test_a_claim_of_its_own_intent_that_waits_while_its_run_is_given_up_sends_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    await handed_back(ledger, request)

    found, claim = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.claim(request, attempt(1)),
    )

    assert found[request.position].state == "error"
    assert isinstance(claim, AlreadyDone)
    assert (await row(ledger, request)).tries == 0


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.AT_MOST_ONCE])
async def test_a_take_over_that_waits_while_its_run_is_given_up_sends_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, effect: Effect
) -> None:
    request = action(effect=effect)
    await dispatched(ledger, request)

    _, claim = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.claim(request, attempt(1)),
    )

    assert isinstance(claim, Parked)
    assert (await row(ledger, request)).tries == 1


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY], ids=["keyless", "keyed"])
async def test_a_run_is_given_up_behind_a_claim_and_what_that_sends_is_parked(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, domain_key: str | None
) -> None:
    request = action(domain_key=domain_key)

    claim, found = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        ledger.claim(request, attempt()),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
    )

    assert isinstance(claim, Dispatched)
    assert found[request.position].state == "unknown"
    assert await ledger.record(claim, RECEIPT) == RECEIPT
    assert [one.key for one in await threads.pending_notices(THREAD)] == [request.key]


async def test_a_record_that_waits_for_giving_up_settles_what_was_parked(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action()
    claim = await dispatched(ledger, request)

    found, recorded = await in_this_order(
        pool,
        holding_action(pool, request.key),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.record(claim, RECEIPT),
    )

    assert found[request.position].state == "unknown"
    assert recorded == RECEIPT
    assert [one.key for one in await threads.pending_notices(THREAD)] == [request.key]


async def test_giving_up_that_waits_for_a_record_tells_what_was_recorded(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action()
    claim = await dispatched(ledger, request)

    recorded, found = await in_this_order(
        pool,
        holding_action(pool, request.key),
        ledger.record(claim, RECEIPT),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
    )

    assert recorded == RECEIPT
    assert found[request.position].recorded == RECEIPT
    assert await threads.pending_notices(THREAD) == []


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY], ids=["keyless", "keyed"])
async def test_what_is_handed_back_before_it_is_given_up_is_void_and_not_unknown(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, domain_key: str | None
) -> None:
    request = action(domain_key=domain_key)
    by = attempt()
    await dispatched(ledger, request, by)

    handed, found = await in_this_order(
        pool,
        holding_action(pool, request.key),
        ledger.hand_back(request, by),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
    )

    assert handed is True
    assert found[request.position].state == "error"
    await dispatched(ledger, action(run=RUN_B, domain_key=domain_key))


async def test_an_intent_that_another_run_claims_at_once_is_sent_or_void_and_never_both(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    wanted = action(run=RUN_B, domain_key=DOMAIN_KEY)
    states = []
    for order in ((0, 1), (1, 0)):
        await everything_gone(pool)
        await handed_back(ledger, request)
        works = [
            give_up(threads, RUN_A, [request.position], by=RUN_C),
            ledger.claim(wanted, attempt(1)),
        ]
        ended = await in_this_order(
            pool,
            holding(pool, "select from agent_domain_keys for update"),
            *(works[index] for index in order),
        )
        found, claim = (ended[order.index(index)] for index in (0, 1))

        assert isinstance(claim, Dispatched), claim
        states.append(found[request.position].state)
        if claim.key == request.key:  # sent for the one who wants it
            assert states[-1] == "unknown"
        else:
            assert states[-1] == "error"
            assert claim.idempotency_key == f"{DOMAIN_KEY}~2"
    assert states == ["error", "unknown"], "whichever comes first has the intent"


async def everything_gone(pool: Pool) -> None:
    """Forget the actions, and what came of giving runs up."""
    await sql(pool, "delete from agent_actions")
    await sql(pool, "delete from agent_domain_keys")
    await sql(
        pool,
        "update agent_runs set state = 'running', stopped_at = null, stop_reason = null, "
        "ended_attempt_at = null",
    )
