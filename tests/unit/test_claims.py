"""The rules of a claim, row by row, as pure functions."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from commitline.errors import Fenced, IdempotencyKeyConflict, PlanDivergence
from commitline.identity import ActionKey, RunKey
from commitline.ledger import Action, ActionRequest, Attempt, Dispatched, Effect, HeldClaim, Outcome
from commitline.ledger.claim_rules import (
    Verdict,
    judge_holder,
    judge_own,
    settles_in,
    take_over,
    why_parked,
)
from commitline.ledger.outcome_rules import CONFLICT, raise_if_conflict
from commitline.tests.builders import NOON, action_request, action_row

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
KEY = ActionKey("r/1:0.0")
OTHER = ActionKey("r/1:1.0")

REQUEST = action_request(
    RunKey("r/1"),
    tool="charge_card",
    requested_digest="requested",
    effective_digest="effective",
    domain_key="order-4821-charge",
)
EARLIER = Attempt(started_at=NOON, token=UUID(int=1), lease=5 * MINUTE)
LATER = Attempt(started_at=NOON + MINUTE, token=UUID(int=2), lease=5 * MINUTE)

DISPATCHED = action_row(
    RunKey("r/1"),
    "0.0",
    NOON + MINUTE,
    tool="charge_card",
    args='{"order_id":"4821"}',
    created_at=NOON,
    idempotency_key="order-4821-charge",
    domain_key="order-4821-charge",
    requested_digest="requested",
    effective_digest="effective",
    claim_token=EARLIER.token,
    claimed_by=KEY,
    attempt_at=EARLIER.started_at,
    lease_until=NOON + 5 * MINUTE,
    tries=1,
    dispatched_at=NOON,
)
INTENT = replace(
    DISPATCHED,
    claim_token=None,
    claimed_by=None,
    attempt_at=None,
    lease_until=None,
    tries=0,
    dispatched_at=None,
)
PARKED = replace(DISPATCHED, parked_at=NOON, parked_reason="lost")
DONE = replace(
    DISPATCHED, status="done", outcome="ok", effect_possible=True, result="1", done_at=NOON
)
DEAD = replace(DISPATCHED, now=NOON + 6 * MINUTE)
LOOKUP = replace(DISPATCHED, effect=Effect.LOOKUP)
CAN_LOOK_UP = replace(REQUEST, can_look_up=True)


def of_another(found: Action) -> Action:
    """The same row, of another action."""
    return replace(found, key=OTHER, claimed_by=found.claimed_by and OTHER)


@pytest.mark.parametrize(
    ("found", "attempt", "verdict"),
    [
        (INTENT, LATER, Verdict.DISPATCH),
        (INTENT, EARLIER, Verdict.DISPATCH),
        (DONE, LATER, Verdict.RETURN),
        (DONE, EARLIER, Verdict.RETURN),
        (PARKED, LATER, Verdict.ANSWER_UNKNOWN),
        (PARKED, EARLIER, Verdict.ANSWER_UNKNOWN),
        (DISPATCHED, EARLIER, Verdict.GO_ON),
        (DISPATCHED, LATER, Verdict.TAKE_OVER),
        (DEAD, LATER, Verdict.TAKE_OVER),
        (replace(DISPATCHED, claimed_by=OTHER), LATER, Verdict.WAIT),
        (replace(DEAD, claimed_by=OTHER), LATER, Verdict.TAKE_OVER),
    ],
    ids=[
        "intent",
        "intent, any attempt",
        "done",
        "done, any attempt",
        "parked",
        "parked, any attempt",
        "by this very attempt",
        "by an earlier one, whose lease means nothing to its own action",
        "by an earlier one, dead",
        "settled by another action that lives",
        "settled by another action that is dead",
    ],
)
def test_the_own_row_decides(found: Action, attempt: Attempt, verdict: Verdict) -> None:
    assert judge_own(found, REQUEST, attempt) is verdict


@pytest.mark.parametrize("began", [NOON, NOON - MINUTE], ids=["equal", "earlier"])
def test_an_attempt_that_did_not_begin_later_is_fenced(began: datetime) -> None:
    zombie = Attempt(started_at=began, token=UUID(int=3), lease=MINUTE)

    with pytest.raises(Fenced, match="is owned by the attempt of 2026-03-01T12:00:00"):
        judge_own(DISPATCHED, REQUEST, zombie)


@pytest.mark.parametrize("found", [INTENT, DISPATCHED, PARKED, DONE])
@pytest.mark.parametrize("other", [{"tool": "refund"}, {"requested_digest": "another"}])
def test_another_call_at_this_position_is_a_divergence_whatever_its_state(
    found: Action, other: dict[str, str]
) -> None:
    request = replace(REQUEST, **other)  # type: ignore[arg-type]

    with pytest.raises(PlanDivergence, match=r"at r/1:0\.0 stands charge_card"):
        judge_own(found, request, LATER)


def test_effective_arguments_may_differ_at_a_position_whose_requested_ones_do_not() -> None:
    request = replace(REQUEST, args='{"order_id":"4821","currency":"usd"}', effective_digest="new")

    assert judge_own(DISPATCHED, request, LATER) is Verdict.TAKE_OVER


@pytest.mark.parametrize(
    ("effect", "key_ttl", "age", "can_look_up", "verdict"),
    [
        (Effect.IDEMPOTENT, None, timedelta(days=365), False, Verdict.TAKE_OVER),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=23), False, Verdict.TAKE_OVER),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=23), True, Verdict.TAKE_OVER),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=24), False, Verdict.PARK),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=24), True, Verdict.LOOK_UP),
        (Effect.LOOKUP, None, timedelta(0), True, Verdict.LOOK_UP),
        (Effect.LOOKUP, None, timedelta(0), False, Verdict.PARK),
        (Effect.AT_MOST_ONCE, None, timedelta(0), False, Verdict.PARK),
        (Effect.AT_MOST_ONCE, None, timedelta(0), True, Verdict.PARK),
    ],
)
def test_a_lost_attempt_is_repeated_only_where_the_key_still_counts(
    effect: Effect, key_ttl: timedelta | None, age: timedelta, can_look_up: bool, verdict: Verdict
) -> None:
    found = replace(DISPATCHED, effect=effect, key_ttl=key_ttl, now=NOON + age)

    assert take_over(found, replace(REQUEST, can_look_up=can_look_up), LATER) is verdict


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        (Effect.IDEMPOTENT, "the downstream system remembers its key only for 1 day, 0:00:00"),
        (Effect.LOOKUP, "this worker has no lookup for charge_card"),
        (Effect.AT_MOST_ONCE, "charge_card must not be sent twice"),
    ],
)
def test_a_parked_row_says_why(effect: Effect, reason: str) -> None:
    found = replace(DISPATCHED, effect=effect, key_ttl=timedelta(days=1))

    assert why_parked(found) == (
        f"an earlier attempt was lost after it was dispatched, and {reason}"
    )


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [
        (Effect.IDEMPOTENT, Verdict.TAKE_OVER),
        (Effect.LOOKUP, Verdict.LOOK_UP),
        (Effect.AT_MOST_ONCE, Verdict.TAKE_OVER),
    ],
)
@pytest.mark.parametrize("claimant", ["itself", "who wants its domain key"])
def test_what_is_in_progress_downstream_is_called_again_even_if_at_most_once(
    effect: Effect, verdict: Verdict, claimant: str
) -> None:
    found = replace(DEAD, effect=effect, in_progress=True)

    if claimant == "itself":
        assert judge_own(found, CAN_LOOK_UP, LATER) is verdict
    else:
        assert judge_holder(of_another(found), CAN_LOOK_UP, LATER) is verdict


def test_what_is_in_progress_is_not_called_again_once_its_key_is_forgotten() -> None:
    found = replace(DISPATCHED, key_ttl=MINUTE, in_progress=True)

    assert judge_own(found, REQUEST, LATER) is Verdict.PARK


@pytest.mark.parametrize("found", [LOOKUP, replace(DISPATCHED, key_ttl=MINUTE)])
@pytest.mark.parametrize(
    ("request_", "verdict"), [(CAN_LOOK_UP, Verdict.LOOK_UP), (REQUEST, Verdict.PARK)]
)
def test_a_lost_attempt_is_asked_about_by_who_can(
    found: Action, request_: ActionRequest, verdict: Verdict
) -> None:
    dead = replace(found, now=NOON + 6 * MINUTE)

    assert judge_own(found, request_, LATER) is verdict
    assert judge_holder(of_another(dead), request_, LATER) is verdict
    assert judge_holder(of_another(replace(found, now=NOON)), request_, LATER) is Verdict.WAIT


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (replace(LOOKUP, looking_up=True), Verdict.LOOK_UP),
        (LOOKUP, Verdict.GO_ON),
        (replace(DISPATCHED, looking_up=True), Verdict.LOOK_UP),
        (replace(LOOKUP, looking_up=True, now=NOON + 6 * MINUTE), Verdict.LOOK_UP),
    ],
    ids=["asks", "was given it to send", "asks, as its key was forgotten", "asks, lease over"],
)
@pytest.mark.parametrize("request_", [REQUEST, CAN_LOOK_UP], ids=["cannot ask", "can ask"])
def test_the_very_attempt_that_asks_asks_and_the_one_that_sends_goes_on(
    found: Action, verdict: Verdict, request_: ActionRequest
) -> None:
    settled_by_this = replace(found, key=OTHER, claimed_by=KEY)

    assert judge_own(found, request_, EARLIER) is verdict
    assert judge_holder(settled_by_this, request_, EARLIER) is verdict


def test_an_attempt_that_asks_is_fenced_by_a_later_one_as_any_other() -> None:
    found = replace(LOOKUP, looking_up=True, attempt_at=NOON + 2 * MINUTE)

    with pytest.raises(Fenced):
        judge_own(found, CAN_LOOK_UP, LATER)


@pytest.mark.parametrize(
    ("key_ttl", "age", "life"),
    [
        (None, timedelta(days=365), None),
        (5 * MINUTE, timedelta(), 5 * MINUTE),
        (5 * MINUTE, 3 * MINUTE, 2 * MINUTE),
        (5 * MINUTE, 5 * MINUTE, timedelta()),
        (5 * MINUTE, 7 * MINUTE, -2 * MINUTE),
    ],
)
def test_a_key_lives_from_its_first_dispatch(
    key_ttl: timedelta | None, age: timedelta, life: timedelta | None
) -> None:
    found = replace(DISPATCHED, key_ttl=key_ttl, now=NOON + age)

    assert found.key_life() == life


def test_a_key_that_was_never_sent_does_not_age() -> None:
    assert replace(INTENT, key_ttl=MINUTE, now=NOON + 5 * MINUTE).key_life() is None


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.LOOKUP, Effect.AT_MOST_ONCE])
@pytest.mark.parametrize(
    ("age", "left"),
    [
        (timedelta(), 4 * MINUTE),
        (3 * MINUTE, MINUTE),
        (4 * MINUTE, timedelta()),
        (9 * MINUTE, -5 * MINUTE),
    ],
)
def test_not_found_counts_after_what_could_be_sent_would_show(
    effect: Effect, age: timedelta, left: timedelta
) -> None:
    found = replace(DISPATCHED, effect=effect, sent_until=NOON + 3 * MINUTE, now=NOON + age)

    assert settles_in(found, replace(REQUEST, settles_after=MINUTE), LATER) == left
    assert settles_in(found, replace(REQUEST, settles_after=timedelta()), LATER) == left - MINUTE


@pytest.mark.parametrize(
    ("database", "engine", "left"),
    [
        (9 * MINUTE, 9 * MINUTE, -5 * MINUTE),
        (9 * MINUTE, MINUTE, 3 * MINUTE),  # the database's clock has jumped ahead
        (MINUTE, 9 * MINUTE, 3 * MINUTE),  # it has jumped back, or the engine's ahead
        (9 * MINUTE, -HOUR, HOUR + 4 * MINUTE),  # the engine's has jumped back
    ],
)
def test_not_found_counts_once_both_clocks_say_so(
    database: timedelta, engine: timedelta, left: timedelta
) -> None:
    apart = timedelta(hours=2)
    found = replace(
        DISPATCHED,
        effect=Effect.LOOKUP,
        sent_until=NOON + 3 * MINUTE,
        clocks_apart=apart,
        now=NOON + database,
    )
    by = replace(LATER, engine_now=NOON - apart + engine)

    assert settles_in(found, replace(REQUEST, settles_after=MINUTE), by) == left


@pytest.mark.parametrize(
    ("database", "engine", "verdict"),
    [
        (MINUTE, MINUTE, Verdict.TAKE_OVER),
        (HOUR, MINUTE, Verdict.PARK),
        (-HOUR, HOUR, Verdict.PARK),  # the database's clock has jumped back
    ],
)
def test_a_key_is_forgotten_as_soon_as_one_clock_says_so(
    database: timedelta, engine: timedelta, verdict: Verdict
) -> None:
    found = replace(
        DISPATCHED, key_ttl=HOUR, clocks_apart=timedelta(minutes=-5), now=NOON + database
    )
    by = replace(LATER, engine_now=NOON + timedelta(minutes=5) + engine)

    assert take_over(found, REQUEST, by) is verdict


def test_a_claim_is_reduced_to_what_records_its_outcome() -> None:
    claim = Dispatched(
        key=KEY,
        tool="charge_card",
        args="{}",
        idempotency_key="sent",
        domain_key="order-4821-charge",
        attempt=EARLIER,
        effect=Effect.IDEMPOTENT,
    )

    assert claim.held == HeldClaim(KEY, EARLIER.token, "order-4821-charge")


def test_the_effect_of_the_row_counts_and_not_that_of_newer_code() -> None:
    found = replace(DISPATCHED, effect=Effect.AT_MOST_ONCE)

    assert judge_own(found, REQUEST, LATER) is Verdict.PARK


@pytest.mark.parametrize(
    ("holder", "verdict"),
    [
        (DONE, Verdict.RETURN),
        (PARKED, Verdict.ANSWER_UNKNOWN),
        (INTENT, Verdict.DISPATCH),
        (DISPATCHED, Verdict.WAIT),
        (DEAD, Verdict.TAKE_OVER),
        (replace(DEAD, effect=Effect.LOOKUP), Verdict.PARK),
        (replace(DEAD, effect=Effect.AT_MOST_ONCE), Verdict.PARK),
        (replace(DEAD, key_ttl=timedelta(minutes=5)), Verdict.PARK),
    ],
    ids=[
        "done",
        "parked",
        "intent",
        "live lease",
        "dead",
        "dead lookup",
        "dead at most once",
        "dead, key forgotten",
    ],
)
def test_the_holder_of_a_domain_key_decides(holder: Action, verdict: Verdict) -> None:
    assert judge_holder(of_another(holder), REQUEST, LATER) is verdict


@pytest.mark.parametrize(
    ("attempt", "verdict"),
    [(EARLIER, Verdict.GO_ON), (LATER, Verdict.TAKE_OVER)],
    ids=["this very attempt", "a later attempt"],
)
def test_an_action_that_settles_another_ones_row_treats_it_as_its_own(
    attempt: Attempt, verdict: Verdict
) -> None:
    holder = replace(DISPATCHED, key=OTHER, claimed_by=KEY)

    assert judge_holder(holder, REQUEST, attempt) is verdict


def test_an_old_attempt_that_settles_another_ones_row_is_fenced_by_a_later_one() -> None:
    holder = replace(DISPATCHED, key=OTHER, claimed_by=KEY)
    zombie = Attempt(started_at=NOON, token=UUID(int=3), lease=MINUTE)

    with pytest.raises(Fenced):
        judge_holder(holder, REQUEST, zombie)


@pytest.mark.parametrize("holder", [INTENT, DISPATCHED, DEAD, PARKED, DONE])
@pytest.mark.parametrize("other", [{"tool": "refund"}, {"effective_digest": "another"}])
def test_a_domain_key_is_not_used_for_something_else_whatever_its_holders_state(
    holder: Action, other: dict[str, str]
) -> None:
    request = replace(REQUEST, args='{"order_id":"4821","n":2}', **other)  # type: ignore[arg-type]

    with pytest.raises(IdempotencyKeyConflict) as refused:
        judge_holder(of_another(holder), request, LATER)

    assert refused.value.existing == "r/1:1.0"
    assert refused.value.message == (
        '\'order-4821-charge\' was used by r/1:1.0 for charge_card {"order_id":"4821"}, '
        f'and is now asked for {request.tool} {{"order_id":"4821","n":2}}'
    )


def test_a_conflict_that_was_recorded_is_refused_again() -> None:
    refused = Outcome.error(kind=CONFLICT, message="both are named", effect_possible=False)
    found = replace(
        DONE,
        outcome="error",
        result=refused.result,
        effect_possible=False,
        duplicate_of=OTHER,
    )

    with pytest.raises(IdempotencyKeyConflict) as again:
        raise_if_conflict(found)

    assert again.value.message == "both are named"
    assert again.value.existing == "r/1:1.0"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.ok("1"),
        Outcome.ok(f'{{"type":"{CONFLICT}"}}'),
        Outcome.error(kind="ToolRefused", message="declined", effect_possible=False),
        Outcome.error(kind=CONFLICT, message="of the tool's own", effect_possible=True),
        Outcome.error(kind=CONFLICT, message="of the tool's own", effect_possible=False),
    ],
    ids=["ok", "ok that looks like one", "refused", "with effect", "refused, and named so"],
)
def test_any_other_outcome_is_no_conflict(outcome: Outcome) -> None:
    found = replace(
        DONE,
        outcome=outcome.kind,
        result=outcome.result,
        effect_possible=outcome.effect_possible,
    )

    raise_if_conflict(found)


@pytest.mark.parametrize(
    "settled",
    [{"decided_by": "ada", "decided_at": NOON}, {"settled_at": NOON}],
    ids=["by a person of an older release", "late"],
)
def test_a_repetition_of_what_turned_out_to_have_had_no_effect_is_no_conflict(
    settled: dict[str, object],
) -> None:
    declined = Outcome.error(kind="ToolRefused", message="declined", effect_possible=False)
    found = replace(
        DONE,
        outcome="error",
        result=declined.result,
        effect_possible=False,
        duplicate_of=OTHER,
        **settled,  # type: ignore[arg-type]
    )

    raise_if_conflict(found)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (INTENT, "intent"),
        (DISPATCHED, "dispatched"),
        (PARKED, "unknown"),
        (DONE, "ok"),
        (replace(DONE, outcome="error"), "error"),
    ],
)
def test_a_row_has_one_state(found: Action, state: str) -> None:
    assert found.state == state


RELAYED = replace(INTENT, relayed=True)
DETACHED = replace(REQUEST, detached=True)


@pytest.mark.parametrize(
    "found",
    [
        RELAYED,
        replace(DISPATCHED, relayed=True),
        replace(DEAD, relayed=True),
        replace(PARKED, relayed=True),
        replace(DONE, relayed=True),
    ],
)
def test_a_call_that_the_relay_sends_is_answered_alike_whatever_became_of_it(
    found: Action,
) -> None:
    for request in (DETACHED, REQUEST):
        assert judge_own(found, request, LATER) is Verdict.ACCEPT


def test_the_relay_itself_and_whoever_undoes_see_what_stands() -> None:
    relay = replace(REQUEST, purpose="relay")

    assert judge_own(RELAYED, relay, LATER) is Verdict.DISPATCH
    assert judge_own(replace(DISPATCHED, relayed=True), relay, LATER) is Verdict.TAKE_OVER
    assert judge_own(replace(DONE, relayed=True), relay, LATER) is Verdict.RETURN


@pytest.mark.parametrize("found", [RELAYED, replace(DISPATCHED, relayed=True)])
def test_what_the_relay_sends_is_waited_for_by_who_asks_for_the_same_fact(found: Action) -> None:
    held = of_another(found)

    assert judge_holder(held, REQUEST, LATER) is Verdict.WAIT
    assert judge_holder(replace(held, now=DEAD.now), REQUEST, LATER) is Verdict.WAIT


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (INTENT, Verdict.ACCEPT),
        (DISPATCHED, Verdict.ACCEPT),
        (DEAD, Verdict.ACCEPT),
        (RELAYED, Verdict.ACCEPT),
        (PARKED, Verdict.ANSWER_UNKNOWN),
        (DONE, Verdict.RETURN),
    ],
)
def test_a_detached_call_waits_for_nobody_who_is_at_the_same_fact(
    found: Action, verdict: Verdict
) -> None:
    assert judge_holder(of_another(found), DETACHED, LATER) is verdict


def test_a_detached_call_for_something_else_is_refused_as_any() -> None:
    with pytest.raises(IdempotencyKeyConflict):
        judge_holder(of_another(RELAYED), replace(DETACHED, effective_digest="other"), LATER)
