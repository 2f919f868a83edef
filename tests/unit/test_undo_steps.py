"""What of an undo's report travels."""

from __future__ import annotations

import pytest

from commitline.activities.contract.encoding import to_text
from commitline.activities.contract.undo import UndoOutcome
from commitline.activities.runs.undo import _short_report
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import ActionFate, UndoReport
from commitline.ledger.undo_rules import Fate
from commitline.workflows.undo import in_words

TWO_MIB = 2 * 1024 * 1024


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
