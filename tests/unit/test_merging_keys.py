"""Keys of an object that become one when they are read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from commitline import Effect, Plan, step, tool
from commitline.errors import InvalidArguments, PlanInvalid

MERGING = {"1": "a", "01": "b"}


class Order(BaseModel):
    lines: dict[int, str] = {}
    parts: list[Order] = []


@tool(effect=Effect.READ)
async def note(lines: dict[int, str], order: Order | None = None) -> str:
    """Note it."""
    return f"{lines} {order}"


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"lines": MERGING}, "lines"),
        ({"lines": {}, "order": {"lines": MERGING}}, r"order\.lines"),
        ({"lines": {}, "order": {"parts": [{"lines": MERGING}]}}, r"order\.parts\.0\.lines"),
    ],
)
def test_arguments_of_which_one_would_be_lost_are_refused(
    arguments: dict[str, Any], where: str
) -> None:
    with pytest.raises(InvalidArguments, match=f"{where}: .*two keys become one: '1', '01'"):
        note.effective(arguments)


def test_arguments_whose_keys_stay_apart_are_kept() -> None:
    kept = note.effective({"lines": {"1": "a", "02": "b"}, "order": {"lines": {"3": "c"}}})

    assert kept == '{"lines":{"1":"a","2":"b"},"order":{"lines":{"3":"c"},"parts":[]}}'
    assert note.bind(kept, None)["lines"] == {1: "a", 2: "b"}  # type: ignore[arg-type]


def test_a_step_takes_the_keys_that_pydantic_writes_and_no_two_that_become_one() -> None:
    (((planned,),)) = Plan("plan", [step(note, {"lines": {1: "a"}})]).stages

    assert planned.arguments == '{"lines":{"1":"a"}}'
    with pytest.raises(PlanInvalid, match="two keys become one: '1'"):
        Plan("plan", [step(note, {"lines": {1: "a", "1": "b"}})])
