"""Which steps of an undo travel together, and what of its report travels."""

from __future__ import annotations

import pytest

from commitline.activities.contract.encoding import to_text
from commitline.activities.contract.undo import UndoOutcome, UndoStep
from commitline.activities.runs.undo import _MAX_ARGUMENTS, _short_report, _travelling
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import ActionFate, UndoReport
from commitline.ledger.undo_rules import Fate
from commitline.workflows.undo import in_words

TWO_MIB = 2 * 1024 * 1024


def step(name: str, size: int) -> UndoStep:
    return UndoStep(ActionKey(name), "refund", '"' * size, passes=ActionKey(f"{name}-undo"))


def test_steps_travel_as_many_as_fit_and_at_least_one() -> None:
    third = _MAX_ARGUMENTS // 3
    steps = [step(name, third) for name in "abcd"]

    first, second = _travelling(steps), _travelling(steps[3:])

    assert [first, second] == [steps[:3], steps[3:]]
    assert len(to_text(first)) < TWO_MIB, "though every character escapes"
    assert _travelling([step("a", _MAX_ARGUMENTS), step("b", 1)]) == [step("a", _MAX_ARGUMENTS)]


def test_a_step_that_cannot_travel_is_skipped_and_holds_up_no_other() -> None:
    huge, small = step("a", _MAX_ARGUMENTS + 1), step("b", 1)

    skipped, kept = _travelling([huge, small])

    assert (skipped.arguments, skipped.header, skipped.passes) == ("{}", None, huge.passes)
    assert "too many to travel" in skipped.problem
    assert kept == small


def fate(index: int, what: Fate, *, run: str = "r/1", text: str = "") -> ActionFate:
    key = ActionKey(f"{run}:{index}.0")
    return ActionFate(key, RunKey(run), Position(f"{index}.0"), "charge", text, what, text)


def test_a_report_lists_first_what_is_not_undone_and_counts_what_it_leaves_out() -> None:
    fates = [fate(1, "undone"), *(fate(index, "unknown") for index in range(2, 201))]
    given = UndoReport("partly compensated", [*fates, fate(201, "undone"), fate(202, "stands")])

    report = _short_report(given, {fate(202, "stands").key: "the bank is closed"})

    assert [one.fate for one in report.actions] == ["unknown"] * 199 + ["stands"]
    assert report.standing[-1].why == "the bank is closed"
    assert report.left_out == 2
    assert in_words(report).startswith(
        "The run is partly compensated: 0 undone, 2 more not listed;"
    )


@pytest.mark.parametrize("run", ["r/1", "\N{GRINNING FACE}" * 500])
def test_a_report_travels_however_long_its_reasons_are(run: str) -> None:
    fates = [fate(i, "unknown", run=run, text="\N{GRINNING FACE}" * 1_000) for i in range(400)]

    report = _short_report(UndoReport("partly compensated", fates), {})

    assert len(to_text(UndoOutcome(finished=True, report=report))) < TWO_MIB
    assert len(report.actions) + report.left_out == 400
    assert len(report.actions) > 50
