"""What the soak's verdict finds: every promise about undos, approvals, intents and the queue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest

from commitline.identity import ActionKey, Position, RunKey, action_key
from commitline.ledger import Action, Approval, QueuedAction
from commitline.tests.builders import NOON, done_row
from commitline.tests.soak.counted import Counted, Violation
from commitline.tests.soak.people import to_settle
from commitline.tests.soak.promises import (
    Intent,
    RunUndo,
    of_approvals,
    of_balances,
    of_intents,
    of_queue,
    of_runs_undone,
    of_undos,
)

RUN = RunKey("r/1")
OUTBOX = RunKey("outbox/1")


def row(position: str = "0.0", *, run: RunKey = RUN, **other: Any) -> Action:
    """An action that happened, and that can be undone."""
    made = done_row(run, position, NOON, now=NOON, tool="ship", compensator="unship")
    return replace(made, **other)


PENDING: dict[str, Any] = {
    "status": "pending",
    "outcome": None,
    "result": None,
    "effect_possible": None,
    "done_at": None,
}
PARKED = {**PENDING, "parked_at": NOON, "parked_reason": "lost"}
INTENT = {**PENDING, "dispatched_at": None, "attempt_at": None, "lease_until": None}
REFUSED: dict[str, Any] = {"outcome": "error", "effect_possible": False}

SHIP = row()
UNDO = row("undo-0.0", tool="unship", undoes=SHIP.key, compensator=None)
SHIPPED_BACK = replace(SHIP, undone_by=UNDO.key)


AGAIN = row(run=RunKey("r/2"), duplicate_of=SHIP.key, dispatched_at=None)
"""It got the receipt of the shipment."""


def counted(*actions: Action, kind: str = "ship") -> Counted:
    """The provider, to which these actions happened in this order."""
    return Counted([_request(one.key, kind, one.key) for one in actions])


def _request(action: str, kind: str, subject: str, *, effect: bool = True) -> dict[str, Any]:
    body = json.dumps({"action": action, "order_id": subject})
    return {"kind": kind, "key": action, "body": body, "effect": effect}


def texts(found: Iterable[Violation]) -> str:
    return "\n".join(map(str, found))


# --- undos


@pytest.mark.parametrize(
    ("actions", "happened"),
    [
        ([SHIP], [SHIP]),
        ([SHIPPED_BACK, UNDO], [SHIP, UNDO]),
        ([SHIP, replace(UNDO, **PARKED)], [SHIP, UNDO]),
        ([SHIP, replace(UNDO, **PARKED)], [SHIP]),
        ([SHIP, replace(UNDO, **REFUSED)], [SHIP]),
        ([SHIP, AGAIN], [SHIP]),
        ([SHIPPED_BACK, UNDO, replace(AGAIN, undone_by=UNDO.key)], [SHIP, UNDO]),
        ([SHIPPED_BACK, UNDO, replace(AGAIN, **REFUSED)], [SHIP, UNDO]),
    ],
    ids=[
        *["stands", "undone", "unknown, it was", "unknown, it was not", "refused"],
        *["a receipt", "undone, and so is its receipt", "a conflict"],
    ],
)
def test_an_undo_that_is_as_its_rows_say_is_no_violation(
    actions: Sequence[Action], happened: Sequence[Action]
) -> None:
    assert list(of_undos(actions, counted(*happened))) == []


@pytest.mark.parametrize(
    ("actions", "happened", "text"),
    [
        ([SHIPPED_BACK, UNDO], [SHIP], "says undone and was undone 0 x"),
        ([SHIPPED_BACK, UNDO], [SHIP, UNDO, UNDO], "says undone and was undone 2 x"),
        ([SHIP, replace(UNDO, **REFUSED)], [SHIP, UNDO], "says not undone and was undone 1 x"),
        ([SHIP, replace(UNDO, **PARKED)], [SHIP, UNDO, UNDO], "was undone 2 x"),
        ([SHIPPED_BACK, UNDO], [UNDO, SHIP], "was undone before it had happened"),
        ([SHIPPED_BACK, UNDO], [UNDO], "was undone before it had happened"),
        ([replace(SHIP, undone_by=ActionKey("x:0")), UNDO], [SHIP, UNDO], "does not undo it"),
        ([UNDO], [UNDO], "is undone and has no row"),
        ([SHIPPED_BACK, UNDO, AGAIN], [SHIP, UNDO], "is undone by None, and r/1:0.0 by r/1:undo"),
        ([SHIP, replace(AGAIN, undone_by=ActionKey("x:0"))], [SHIP], "is undone by x:0, and r/1"),
        (
            [SHIPPED_BACK, UNDO, replace(AGAIN, undone_by=UNDO.key, **REFUSED)],
            [SHIP, UNDO],
            "is undone by r/1:undo-0.0, and r/1:0.0 by None",
        ),
        ([AGAIN], [], "repeats r/1:0.0, which has no row"),
        ([SHIP, AGAIN, replace(UNDO, undoes=AGAIN.key)], [SHIP], "was itself to be undone"),
    ],
)
def test_an_undo_that_is_not_as_its_rows_say_is_found(
    actions: Sequence[Action], happened: Sequence[Action], text: str
) -> None:
    assert text in texts(of_undos(actions, counted(*happened)))


def test_a_run_is_not_compensated_while_what_it_did_stands() -> None:
    run = RunUndo(RUN, "compensated", wanted=True, gone=False)
    undone = [SHIPPED_BACK, UNDO]

    assert list(of_runs_undone([run], undone, counted(SHIP, UNDO))) == []
    assert "is compensated" in texts(of_runs_undone([run], undone, counted(SHIP)))
    unknown = [replace(SHIP, **PARKED)]
    assert "is compensated" in texts(of_runs_undone([run], unknown, counted(SHIP)))


@pytest.mark.parametrize(
    ("run", "actions", "found"),
    [
        (RunUndo(RUN, "partly compensated", wanted=True, gone=False), [SHIP], True),
        (RunUndo(RUN, "partly compensated", wanted=False, gone=False), [SHIP], False),
        (RunUndo(RUN, "partly compensated", wanted=True, gone=True), [SHIP], False),
        (
            RunUndo(RUN, "partly compensated", wanted=True, gone=False),
            [SHIP, replace(UNDO, **REFUSED)],
            False,
        ),
        (
            RunUndo(RUN, "partly compensated", wanted=True, gone=False),
            [replace(SHIP, **PARKED)],
            False,
        ),
    ],
    ids=["nobody tried", "nobody wanted it", "its workflow is gone", "refused", "unknown"],
)
def test_what_was_to_be_undone_was_tried(
    run: RunUndo, actions: Sequence[Action], found: bool
) -> None:
    told = texts(of_runs_undone([run], actions, counted(SHIP)))

    assert ("nobody tried to undo it" in told) is found


def test_an_order_stands_as_charged_once_at_a_time() -> None:
    def balances(*kinds: str) -> Counted:
        return Counted([_request(f"{at}", kind, "o-1") for at, kind in enumerate(kinds)])

    assert list(of_balances(balances("charge", "refund", "charge"))) == []
    assert "stood [1, 2] x" in texts(of_balances(balances("charge", "charge")))
    assert "stood [1, 0, -1] x" in texts(of_balances(balances("charge", "refund", "refund")))


# --- approvals


def _approval(decision: Literal["approved", "rejected", "expired"] | None) -> Approval:
    return Approval(
        key=SHIP.key,
        run_key=RUN,
        position=SHIP.position,
        thread_id=RUN,
        tool="pay",
        args="{}",
        requested_digest="r",
        requested_at=NOON,
        expires_at=None,
        decision=decision,
        decided_by="ada",
        decided_at=NOON,
        reason=None,
        edited_args=None,
        workflow_id="r",
        now=NOON,
    )


def test_what_nobody_approved_never_happened() -> None:
    paid = replace(SHIP, tool="pay")
    refused = replace(paid, dispatched_at=None, **REFUSED)

    assert list(of_approvals([_approval("approved")], [paid], counted(paid))) == []
    assert list(of_approvals([_approval("rejected")], [refused], counted())) == []
    for decision in ("rejected", "expired", None):
        found = texts(of_approvals([_approval(decision)], [paid], counted()))
        assert f"a person had {decision}" in found
    assert "was called" in texts(of_approvals([], [paid], counted(paid)))
    assert "was called" in texts(of_approvals([_approval("expired")], [refused], counted(paid)))


# --- intents and the queue


def _intended(number: int) -> tuple[Action, Intent]:
    run = RunKey(f"outbox/{number}")
    action = row("0", run=run, relayed=True)
    return action, Intent(number, f"i-{number}", action.key, "customer-1", seq=number)


FIRST, SECOND = _intended(1), _intended(2)


def test_intents_that_are_as_their_transactions_ended_are_no_violation() -> None:
    rolled_back = Intent(3, "i-3", None, "customer-1")

    found = of_intents(
        [SECOND[1], FIRST[1], rolled_back], [FIRST[0], SECOND[0]], counted(FIRST[0], SECOND[0])
    )

    assert list(found) == []


def test_what_was_rolled_back_never_happened() -> None:
    happened = Counted([_request("x:0", "ship", "i-3")])

    found = texts(of_intents([Intent(3, "i-3", None)], [], happened))

    assert "i-3 was rolled back, and happened" in found


def test_an_intent_is_there_with_its_transaction_and_only_then() -> None:
    action, intent = FIRST

    assert "without an action" in texts(of_intents([intent], [], counted()))
    assert "of nobody's transaction" in texts(of_intents([], [action], counted()))


def test_those_in_order_reach_the_provider_in_order() -> None:
    intents, actions = [FIRST[1], SECOND[1]], [FIRST[0], SECOND[0]]
    elsewhere = [FIRST[1], replace(SECOND[1], order_key="customer-2")]
    swapped = counted(SECOND[0], FIRST[0])
    # The second was sent, to no effect yet, before the first had happened.
    early = Counted(
        [
            _request(SECOND[0].key, "ship", "i-2", effect=False),
            _request(FIRST[0].key, "ship", "i-1"),
            _request(SECOND[0].key, "ship", "i-2"),
        ]
    )

    assert "was sent before" in texts(of_intents(intents, actions, swapped))
    assert "was sent before" in texts(of_intents(intents, actions, early))
    assert list(of_intents(elsewhere, actions, swapped)) == []
    assert list(of_intents(intents, actions, counted(SECOND[0]))) == []


def _queued(
    seq: int, *, due_at: datetime | None, order_key: str | None = None, run: RunKey = OUTBOX
) -> QueuedAction:
    key = action_key(run, Position("0"))
    return QueuedAction(
        key, seq, "send", "ship", order_key, due_at, 1, False, NOON, run, "0", None, None, NOON
    )


@pytest.mark.parametrize(
    ("queue", "found"),
    [
        ([], False),
        ([_queued(1, due_at=None)], False),
        ([_queued(1, due_at=NOON)], True),
        ([_queued(1, due_at=NOON, order_key="a")], True),
        ([_queued(2, due_at=NOON, order_key="a"), _queued(1, due_at=None, order_key="a")], False),
        ([_queued(1, due_at=NOON, order_key="a"), _queued(2, due_at=None, order_key="a")], True),
        ([_queued(2, due_at=NOON, order_key="a"), _queued(1, due_at=None, order_key="b")], True),
    ],
    ids=["empty", "a person's", "due", "first", "behind a person's", "before it", "another order"],
)
def test_what_is_due_waits_only_for_what_is_a_persons_before_it(
    queue: Sequence[QueuedAction], found: bool
) -> None:
    assert bool(list(of_queue(queue, []))) is found


def test_nothing_is_left_at_work_or_out_of_the_queue() -> None:
    dispatched = row(**PENDING)
    leased = replace(dispatched, lease_until=NOON + timedelta(seconds=1))
    intended = row("0", run=OUTBOX, relayed=True, **INTENT)

    assert "its lease is over" in texts(of_queue([], [dispatched]))
    assert "at work" in texts(of_queue([], [leased]))
    assert "not in the queue" in texts(of_queue([], [intended]))
    assert list(of_queue([_queued(1, due_at=None)], [intended])) == []


def test_people_settle_all_that_holds_up_others_and_a_part_of_the_rest() -> None:
    parked = [row(f"0.{at}", **PARKED) for at in range(10)]
    queue = [
        replace(_queued(at, due_at=None, order_key="a", run=RUN), key=one.key)
        for at, one in enumerate(parked)
    ]

    assert to_settle(parked, queue) == parked
    assert 0 < len(to_settle(parked, [])) < len(parked)
    assert to_settle([row(), row(**PENDING)], queue) == []
    assert to_settle([replace(parked[0], lease_until=NOON + timedelta(seconds=1))], queue) == []
