"""Which steps of an undo travel together, and what of its report travels."""

from __future__ import annotations

import pytest

from commitline.activities.contract.undo import UndoOutcome, UndoStep
from commitline.activities.contract.wire import to_text
from commitline.activities.runs.undo import _MAX_CALL, _that_travel, _with_reasons
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import ActionFate, UndoReport
from commitline.ledger.undo_rules import Fate
from commitline.workflows.undo import in_words

TWO_MIB = 2 * 1024 * 1024


def step(name: str, size: int) -> UndoStep:
    return UndoStep(ActionKey(name), "refund", '"' * size, passes=ActionKey(f"{name}-undo"))


def test_steps_travel_as_many_as_fit_and_at_least_one() -> None:
    third = _MAX_CALL // 3
    steps = [step(name, third) for name in "abcd"]

    first, second = _that_travel(steps), _that_travel(steps[3:])

    assert [first, second] == [steps[:3], steps[3:]]
    assert len(to_text(first)) < TWO_MIB, "though every character escapes"
    assert _that_travel([step("a", _MAX_CALL), step("b", 1)]) == [step("a", _MAX_CALL)]


def test_a_step_that_cannot_travel_is_passed_by_and_holds_up_no_other() -> None:
    huge, small = step("a", _MAX_CALL + 1), step("b", 1)

    passed, kept = _that_travel([huge, small])

    assert (passed.arguments, passed.header, passed.passes) == ("{}", None, huge.passes)
    assert "too many to travel" in passed.problem
    assert kept == small


def fate(index: int, what: Fate, *, run: str = "r/1", text: str = "") -> ActionFate:
    key = ActionKey(f"{run}:{index}.0")
    return ActionFate(key, RunKey(run), Position(f"{index}.0"), "charge", text, what, text)


def test_a_report_tells_first_of_what_is_not_undone_and_how_many_it_leaves_out() -> None:
    fates = [fate(1, "undone"), *(fate(index, "unknown") for index in range(2, 201))]
    given = UndoReport("partly compensated", [*fates, fate(201, "undone"), fate(202, "stands")])

    told = _with_reasons(given, {fate(202, "stands").key: "the bank is closed"})

    assert [one.fate for one in told.actions] == ["unknown"] * 199 + ["stands"]
    assert told.standing[-1].why == "the bank is closed"
    assert told.left_out == 2
    assert in_words(told).startswith("The run is partly compensated: 0 undone, 2 more not listed;")


@pytest.mark.parametrize("run", ["r/1", "\N{GRINNING FACE}" * 500])
def test_a_report_travels_however_long_its_reasons_are(run: str) -> None:
    fates = [fate(i, "unknown", run=run, text="\N{GRINNING FACE}" * 1_000) for i in range(400)]

    told = _with_reasons(UndoReport("partly compensated", fates), {})

    assert len(to_text(UndoOutcome(finished=True, report=told))) < TWO_MIB
    assert len(told.actions) + told.left_out == 400
    assert len(told.actions) > 50
