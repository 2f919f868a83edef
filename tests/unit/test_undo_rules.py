"""What is due in an unwinding, in which order, and what is said of each action afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import Action, Effect
from commitline.ledger.undo_rules import Fate, UndoState, due, report
from commitline.tests.builders import NOON, ORDER, done_row

SECOND = timedelta(seconds=1)
BEGAN = NOON + 10 * SECOND
"""When the unwinding began."""
RUN = RunKey("r/1")


def charge(position: str = "0.0", *, second: int = 0, **other: Any) -> Action:
    """A charge that happened, and that `refund` undoes."""
    row = done_row(
        RUN,
        position,
        NOON + second * SECOND,
        now=NOON + 60 * SECOND,
        args=ORDER,
        result='"receipt"',
        compensator="refund",
    )
    return replace(row, **other)


def lost(**other: Any) -> Action:
    return charge(status="pending", outcome=None, effect_possible=None, result=None, **other)


def parked(at: datetime = NOON, **other: Any) -> Action:
    return lost(parked_at=at, parked_reason="no answer", **other)


def refund(of: Action, *, number: int = 1, at: datetime = BEGAN + SECOND, **other: Any) -> Action:
    """An undo that an unwinding made, and that had no effect."""
    position = f"undo-{of.position}" + (f"~{number}" if number > 1 else "")
    row = charge(
        position,
        tool="refund",
        compensator=None,
        undoes=of.key,
        outcome="error",
        effect_possible=False,
        result='{"type": "ToolRefused", "message": "closed"}',
        created_at=at,
        dispatched_at=at,
    )
    return replace(row, **other)


PENDING: dict[str, Any] = {
    "status": "pending",
    "outcome": None,
    "effect_possible": None,
    "result": None,
}
OWN_REFUND: dict[str, Any] = {
    "position": Position("2.0"),
    "key": ActionKey("r/1:2.0"),
    "created_at": NOON,
}


def steps(*rows: Action, **options: Any) -> list[tuple[ActionKey, str | None]]:
    return [(step.action.key, step.at) for step in due(rows, since=BEGAN, **options)]


def test_what_stands_is_undone_in_reverse_order_of_dispatch_then_of_call() -> None:
    rows = [
        charge("0.9", second=1),
        charge("0.10", second=1),
        charge("1.0", second=3),
        charge("e1-1.0", second=2),
    ]

    assert [at for _, at in steps(*rows)] == ["undo-1.0", "undo-e1-1.0", "undo-0.10", "undo-0.9"]


@pytest.mark.parametrize(
    "row",
    [
        charge(compensator=None),
        charge(undone_by="r/1:undo-0.0"),
        charge(duplicate_of="s/1:0.0"),
        charge(outcome="error", effect_possible=False),
        lost(dispatched_at=None),
        charge(undoes="s/1:0.0"),
    ],
    ids=["no compensator", "undone", "a receipt", "no effect", "never sent", "an undo itself"],
)
def test_what_did_not_happen_or_cannot_be_taken_back_is_not_due(row: Action) -> None:
    assert steps(row) == []


def test_what_happened_and_told_an_error_is_undone() -> None:
    assert steps(charge(outcome="error", effect_possible=True)) == [("r/1:0.0", "undo-0.0")]


def test_what_is_unknown_is_settled_before_anything_is_undone() -> None:
    unknown, known = lost(), charge("1.0", second=5)

    assert steps(unknown, known) == [(unknown.key, None)]
    assert steps(unknown, known, passed={unknown.key}) == [(known.key, "undo-1.0")]


def test_what_could_not_be_settled_and_becomes_known_is_undone() -> None:
    row = charge()

    assert steps(row, passed={row.key}) == [(row.key, "undo-0.0")]
    assert steps(row, passed={row.key, ActionKey("r/1:undo-0.0")}) == []


@pytest.mark.parametrize(
    ("row", "again"),
    [
        (parked(), True),
        (parked(effect=Effect.LOOKUP), True),
        (parked(effect=Effect.AT_MOST_ONCE), False),
        (parked(BEGAN), False),
        (parked(lease_until=NOON + 90 * SECOND), False),
        (parked(key_ttl=59 * SECOND), False),
        (parked(key_ttl=61 * SECOND), True),
    ],
    ids=["key", "lookup", "neither", "tried", "at work", "key forgotten", "key remembered"],
)
def test_what_was_parked_is_tried_again_once_where_that_cannot_count_twice(
    row: Action, again: bool
) -> None:
    found = due([row], since=BEGAN)

    assert [(step.at, step.parked, step.reopens) for step in found] == (
        [(None, True, row.key)] if again else []
    )


def test_an_undo_that_had_no_effect_is_made_anew_only_by_the_next_unwinding() -> None:
    row = charge()

    assert steps(row, refund(row)) == []
    assert steps(row, refund(row, at=NOON)) == [(row.key, "undo-0.0~2")]
    again = [refund(row, at=NOON), refund(row, number=2, at=NOON)]
    assert steps(row, *again) == [(row.key, "undo-0.0~3")]


def test_an_undo_that_was_lost_goes_on_under_its_own_position() -> None:
    row = charge()
    begun = refund(row, number=2, **PENDING)

    [step] = due([row, refund(row, at=NOON), begun], since=BEGAN)

    assert (step.action, step.at, step.begun, step.parked) == (row, "undo-0.0~2", begun, False)


@pytest.mark.parametrize(
    ("effect", "at", "again"),
    [
        (Effect.IDEMPOTENT, NOON, True),
        (Effect.LOOKUP, NOON, True),
        (Effect.AT_MOST_ONCE, NOON, False),
        (Effect.IDEMPOTENT, BEGAN, False),
    ],
)
def test_an_unknown_undo_is_tried_again_by_the_next_unwinding_where_that_cannot_count_twice(
    effect: Effect, at: datetime, again: bool
) -> None:
    row = charge()
    undo = refund(row, at=NOON, effect=effect, parked_at=at, **PENDING)

    found = due([row, undo], since=BEGAN)

    assert [(step.at, step.reopens) for step in found] == ([("undo-0.0", undo.key)] * again)


def test_a_refund_that_the_model_asked_for_and_that_was_lost_is_settled_as_any_call() -> None:
    row = charge()
    own = refund(row, **OWN_REFUND, **PENDING)

    assert steps(row, own) == [(own.key, None)]
    assert steps(row, own, passed={own.key}) == []
    assert steps(row, replace(own, dispatched_at=None)) == [(row.key, "undo-0.0")]
    assert steps(row, replace(own, duplicate_of=ActionKey("s/1:0.0"), parked_at=NOON)) == []


def test_a_refund_of_the_models_that_was_declined_leaves_the_action_to_be_undone() -> None:
    row = charge()

    assert steps(row, refund(row, **OWN_REFUND)) == [(row.key, "undo-0.0")]


@pytest.mark.parametrize(
    ("rows", "state", "fates"),
    [
        ([], "nothing to undo", []),
        ([charge(compensator=None)], "nothing to undo", ["stands"]),
        ([charge(undone_by="u")], "compensated", ["undone"]),
        ([charge(compensator=None, undone_by="u")], "compensated", ["undone"]),
        ([charge("1.0", undone_by="u"), charge(compensator=None)], "compensated", ["undone"] * 1),
        ([charge("1.0", undone_by="u"), charge()], "partly compensated", ["undone", "stands"]),
        ([charge("1.0", undone_by="u"), parked(compensator=None)], "partly compensated", None),
        ([lost(dispatched_at=None)], "nothing to undo", []),
        ([charge(duplicate_of="s/1:0.0")], "nothing to undo", []),
    ],
)
def test_a_run_is_compensated_where_all_that_can_be_is_undone_and_nothing_is_unknown(
    rows: list[Action], state: UndoState, fates: list[Fate] | None
) -> None:
    told = report(rows)

    assert told.state == state
    if fates is not None:
        assert [one.fate for one in told.actions][: len(fates)] == fates


def test_the_report_says_where_a_sub_agents_action_stands_in_its_parents_run() -> None:
    row = charge()
    below = replace(row, run_key=RunKey(f"{row.run_key}/2.0"))

    assert [one.at for one in report([row, below]).actions] == ["0.0", "2.0/0.0"]


def test_the_report_says_why_something_stands_or_is_unknown() -> None:
    row = charge()
    undo = refund(row)

    def why(*rows: Action) -> tuple[Fate, str]:
        [one] = report(rows).actions
        return one.fate, one.why

    assert why(row) == ("stands", "it was not undone")
    assert why(row, undo) == ("stands", "its undo undo-0.0 had no effect: closed")
    assert why(row, replace(undo, **PENDING)) == (
        "stands",
        "its undo undo-0.0 is under way",
    )
    assert why(row, replace(undo, **PENDING, parked_at=NOON, parked_reason="lost")) == (
        "unknown",
        "its undo undo-0.0 is unknown: lost",
    )
    assert why(parked()) == ("unknown", "no answer")
    assert why(charge(compensator=None)) == ("stands", "its tool names no other to undo it")
    assert why(charge(undone_by="r/1:2.0")) == ("undone", "by 2.0")
