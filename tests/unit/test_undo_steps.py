"""Which steps of an undo travel together."""

from __future__ import annotations

from commitline.activities.undo_steps import UndoStep
from commitline.activities.undoing import _MAX_CALL, _that_travel
from commitline.activities.wire import to_text
from commitline.identity import ActionKey

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

    assert (passed.arguments, passed.origin, passed.passes) == ("{}", None, huge.passes)
    assert "too many to travel" in passed.problem
    assert kept == small
