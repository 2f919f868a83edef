"""What a plan may be: the order of its steps, what they use, and what becomes of a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from commitline import Effect, Plan, State, Tool, result_of, step, tool
from commitline.activities.app.app import App
from commitline.activities.app.plan import Step
from commitline.activities.contract.encoding import pack, unpack
from commitline.activities.contract.plans import PlanInput, PlannedStep
from commitline.activities.contract.references import Reference, part_of, put_in
from commitline.canonical import parse
from commitline.errors import DefinitionError, PlanInvalid


def made(name: str, effect: Effect, **options: Any) -> Tool:
    @tool(effect=effect, name=name, **options)
    async def call(n: int = 0) -> int:
        return n

    return call


undo = made("undo", Effect.IDEMPOTENT)
TOOLS = {
    "read": made("read", Effect.READ),
    "back": made("back", Effect.IDEMPOTENT, compensate=undo),
    "back once": made("back_once", Effect.AT_MOST_ONCE, compensate=undo),
    "once": made("once", Effect.AT_MOST_ONCE),
    "forward": made("forward", Effect.IDEMPOTENT),
    "asked": made("asked", Effect.IDEMPOTENT, approval=True),
}


def planned(order: str) -> Plan:
    """Make a plan of ``"read; back + forward"``: stages, and steps side by side."""
    number = 0
    stages: list[Sequence[Step]] = []
    for stage in order.split(";"):
        names = [name.strip() for name in stage.split("+")]
        stages.append([step(TOOLS[n], name=f"{n} {number + i}") for i, n in enumerate(names)])
        number += len(names)
    return Plan("plan", stages)


@pytest.mark.parametrize(
    "order",
    [
        "read",
        "back; back once; back",
        "back + back once + read",
        "back; once; forward; read",
        "back; asked; forward",
        "back; forward; forward; read",
        "back; once + read; forward + forward + read",
        "back; forward + forward",
        "once; forward",
        "once",
    ],
)
def test_a_plan_goes_back_before_its_pivot_and_forward_after_it(order: str) -> None:
    plan = planned(order)

    assert sum(map(len, plan.stages)) == order.count(";") + order.count("+") + 1


@pytest.mark.parametrize(
    ("order", "lacking", "other"),
    [
        ("once; back", "once 0", "'back 1' follows it, and may have to be undone by 'undo'"),
        ("back; forward; back", "forward 1", "'back 2' follows it"),
        ("once; once", "once 0", "'once 1' follows it, and may end unknown"),
        ("forward; once", "forward 0", "'once 1' follows it"),
        ("back; once; forward; asked", "once 1", "'asked 3' follows it, and a person may reject"),
        ("forward; forward; read; back once", "forward 0", "'back once 3' follows it"),
        ("once + back", "once 0", "'back 1' stands beside it"),
        ("back + forward", "forward 1", "'back 0' stands beside it"),
        ("once + forward", "forward 1", "'once 0' stands beside it"),
        ("once + once", "once 1", "'once 0' stands beside it"),
        ("asked + forward", "forward 1", "'asked 0' stands beside it"),
    ],
)
def test_a_step_that_must_be_undoable_and_is_not_is_named(
    order: str, lacking: str, other: str
) -> None:
    with pytest.raises(PlanInvalid) as raised:
        planned(order)

    assert f"the step {lacking!r} must be undoable: {other}" in str(raised.value)
    assert isinstance(raised.value, DefinitionError)
    assert raised.value.code == "CL104"


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order}-x")
async def takes(order: str, items: list[int], note: str = "") -> str:
    """Take an order."""
    return order + note


GOOD = {"order": "1", "items": [1]}
NO_STEP: Any = "not a step"


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([], "a plan needs steps"),
        ([[]], "a plan needs steps"),
        ([NO_STEP], "'n' is no step"),
        ([step(print)], "is no tool"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        ([step(takes, GOOD), step(takes, GOOD)], "two steps are named 'takes'"),
        ([step(takes, GOOD, name="a\n")], "1 to 64 printable ASCII characters"),
        ([step("fly", {"x": result_of("up")})], "uses result_of('up'), which the plan does not"),
        (
            [step("fly", {"x": [result_of("up", "id")]}), step("up")],
            "'fly' uses result_of('up', 'id'), which comes after it",
        ),
        ([[step("up"), step("fly", {"x": result_of("up")})]], "which does not come before it"),
        ([step("fly", {"x": result_of("fly")})], "which does not come before it"),
        ([step(takes, {**GOOD, "order": 1})], "the step 'takes': takes: order: Input should be"),
        ([step(takes, {**GOOD, "order": ""})], "the step 'takes': "),
        ([step(takes, {**GOOD, "colour": 1})], "'takes' takes no 'colour'"),
        ([step("up"), step(takes, {"order": result_of("up")})], ""),
        ([step(TOOLS["read"]), step(takes, {"order": result_of("read")})], "needs 'items'"),
        ([step("fly", {"x": float("nan")})], "the step 'fly': no JSON form"),
        ([step("fly", {"x": {1: 2, "1": 3}})], "the step 'fly': two keys become one"),
        ([step("fly", {"x": {1}})], "a set has no order"),
        ([step("fly", {"x": object()})], "the step 'fly': Unable to serialize"),
        ([step("fly", name=f"fly {n}") for n in range(501)], "the plan has 501 steps, over 500"),
        ([step("fly", {"x": "x" * 600_000})], "has over 524288 characters"),
    ],
)
def test_what_cannot_work_is_refused_and_named(steps: list[Any], told: str) -> None:
    if not told:
        Plan("plan", steps)  # the worker, which has the tools, checks it
        return
    with pytest.raises(PlanInvalid) as raised:
        Plan("plan", steps)

    assert told in str(raised.value)


def test_a_plan_and_a_step_need_a_name() -> None:
    with pytest.raises(PlanInvalid, match="a plan needs a name"):
        Plan(" ", [step(takes, GOOD)])


@dataclass
class Parcel:
    """An argument that is no plain data."""

    size: int


def resolved(one: PlannedStep, results: dict[str, Any]) -> Any:
    arguments = parse(one.arguments)
    for reference in one.references:
        put_in(arguments, reference, part_of(results[reference.step], reference))
    return arguments


def test_what_refers_to_a_result_travels_beside_the_arguments() -> None:
    arguments = {
        "b": [1, result_of("a", "ids", -1), {"result_of": "a"}],
        "a": {"x": result_of("a")},
        "parcel": Parcel(3),
        "raw": b"\xff",
    }
    plan = Plan("plan", [step("a"), step("use", arguments)])
    again = Plan("plan", [step("a"), step("use", dict(reversed(arguments.items())))])
    given = PlanInput("plan", plan.stages)

    (use,) = unpack(PlanInput, pack(given)).stages[1]

    assert use.arguments == (
        '{"a":{"x":null},"b":[1,null,{"result_of":"a"}],"parcel":{"size":3},"raw":"_w=="}'
    )
    assert resolved(use, {"a": {"ids": [7, 8]}}) == {
        "a": {"x": {"ids": [7, 8]}},
        "b": [1, 8, {"result_of": "a"}],
        "parcel": {"size": 3},
        "raw": "_w==",
    }
    assert PlanInput("plan", again.stages).digest == given.digest
    assert PlanInput("plan", plan.stages[:1]).digest != given.digest


@pytest.mark.parametrize("path", [["id", 0], ["ids", 2], ["ids", "0"], [0], ["lacking"]])
def test_a_result_that_does_not_hold_what_is_referred_to_is_said(path: list[str | int]) -> None:
    one = PlannedStep("use", "use", '{"x":null}', [Reference(["x"], "a", path)])

    with pytest.raises(LookupError, match="is not in what 'a' returned"):
        resolved(one, {"a": {"id": "abc", "ids": [7, 8]}})


def test_an_app_serves_the_tools_of_plans_and_what_undoes_them_once() -> None:
    app = App(tools=[TOOLS["back"], TOOLS["back once"], TOOLS["back"]])

    assert [one.name for one in app.tools] == ["back", "undo", "back_once"]
    with pytest.raises(DefinitionError, match="is no tool"):
        App(tools=[print])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


class Basket(State):
    """What tools share."""

    count: int = 0


@tool(effect=Effect.IDEMPOTENT)
async def fills(basket: Basket) -> None:
    """Take a state."""


@pytest.mark.parametrize(
    ("takes", "told"),
    [
        (made("later", Effect.IDEMPOTENT, detached=True), "'later' is detached"),
        (fills, "'fills' takes a state; a plan has none"),
    ],
)
def test_a_tool_that_a_plan_cannot_wait_for_or_give_its_state_is_named(
    takes: Tool, told: str
) -> None:
    with pytest.raises(PlanInvalid, match=told):
        Plan("p", [step(takes)])
