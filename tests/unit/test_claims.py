"""The rules of a claim, row by row, as pure functions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from commitline.errors import Fenced, IdempotencyKeyConflict, PlanDivergence
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import Action, ActionRequest, Attempt, Effect, Outcome
from commitline.ledger.claims import (
    CONFLICT,
    Verdict,
    judge_holder,
    judge_own,
    raise_if_conflict,
    take_over,
    why_parked,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEY = ActionKey("r/1:0.0")
OTHER = ActionKey("r/1:1.0")

REQUEST = ActionRequest(
    run_key=RunKey("r/1"),
    position=Position("0.0"),
    tool="charge_card",
    args='{"order_id":"4821"}',
    effect=Effect.IDEMPOTENT,
    requested_digest="requested",
    effective_digest="effective",
    domain_key="order-4821-charge",
)
EARLIER = Attempt(started_at=NOON, token=UUID(int=1), lease=5 * MINUTE)
LATER = Attempt(started_at=NOON + MINUTE, token=UUID(int=2), lease=5 * MINUTE)

DISPATCHED = Action(
    key=KEY,
    tool="charge_card",
    args='{"order_id":"4821"}',
    status="pending",
    result=None,
    created_at=NOON,
    run_key=RunKey("r/1"),
    position=Position("0.0"),
    thread_id=None,
    idempotency_key="order-4821-charge",
    domain_key="order-4821-charge",
    generation=1,
    effect=Effect.IDEMPOTENT,
    key_ttl=None,
    requested_digest="requested",
    effective_digest="effective",
    claim_token=EARLIER.token,
    claimed_by=KEY,
    attempt_at=EARLIER.started_at,
    lease_until=NOON + 5 * MINUTE,
    tries=1,
    dispatched_at=NOON,
    done_at=None,
    outcome=None,
    effect_possible=None,
    parked_at=None,
    parked_reason=None,
    duplicate_of=None,
    codec_version=1,
    decided_by=None,
    decided_at=None,
    failures=0,
    sent_until=None,
    asking=False,
    in_progress=False,
    settled_at=None,
    told_step=None,
    now=NOON + MINUTE,
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
    ("effect", "key_ttl", "age", "can_ask", "verdict"),
    [
        (Effect.IDEMPOTENT, None, timedelta(days=365), False, Verdict.TAKE_OVER),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=23), False, Verdict.TAKE_OVER),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=23), True, Verdict.TAKE_OVER),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=24), False, Verdict.PARK),
        (Effect.IDEMPOTENT, timedelta(hours=24), timedelta(hours=24), True, Verdict.ASK),
        (Effect.LOOKUP, None, timedelta(0), True, Verdict.ASK),
        (Effect.LOOKUP, None, timedelta(0), False, Verdict.PARK),
        (Effect.AT_MOST_ONCE, None, timedelta(0), False, Verdict.PARK),
        (Effect.AT_MOST_ONCE, None, timedelta(0), True, Verdict.PARK),
    ],
)
def test_a_lost_attempt_is_repeated_only_where_the_key_still_counts(
    effect: Effect, key_ttl: timedelta | None, age: timedelta, can_ask: bool, verdict: Verdict
) -> None:
    found = replace(DISPATCHED, effect=effect, key_ttl=key_ttl, now=NOON + age)

    assert take_over(found, can_ask=can_ask) is verdict


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        (Effect.IDEMPOTENT, "the downstream system remembers its key only for 1 day, 0:00:00"),
        (Effect.LOOKUP, "this worker cannot ask the downstream system about charge_card"),
        (Effect.AT_MOST_ONCE, "charge_card must not be sent twice"),
    ],
)
def test_a_parked_row_says_why(effect: Effect, reason: str) -> None:
    found = replace(DISPATCHED, effect=effect, key_ttl=timedelta(days=1))

    assert why_parked(found) == (
        f"an earlier attempt was lost after it was dispatched, and {reason}"
    )


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
    ],
    ids=["ok", "ok that looks like one", "refused", "with effect"],
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
