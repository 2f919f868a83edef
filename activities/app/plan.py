"""`Plan`: steps that an application gives, each a tool call that may use earlier results.

    plan = Plan("fulfil-order", [
        step(reserve_stock, {"order_id": "4821"}, name="reserve"),
        [step(charge_card, {"order_id": "4821"}), step(write_invoice, {"order_id": "4821"})],
        step(ship, {"reservation": result_of("reserve", "id")}),
    ])

Stages run in order; the steps of one stage, a list, run side by side. A reference to a result
travels beside the arguments, never in them, so that no argument can be taken for a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ...canonical import Json, canonical, scrub
from ...errors import PlanInvalid, UnrepresentableValue
from ...ledger.result_codec import error_text
from ..contract.encoding import to_text
from ..contract.plans import PlannedStep
from ..contract.references import Path, Reference
from .plan_check import check_order, check_structure
from .tool import Tool

_MAX_PLAN: Final = 512 * 1024
"""Characters of a plan as JSON. Larger data belongs elsewhere, and its name into the plan."""
_PLAIN: Final = (bool, int, float, str)


class ResultOf:
    """Stands for an earlier step's result; made by `result_of`."""

    __slots__ = ("path", "step")

    def __init__(self, step: str, path: Path) -> None:
        self.step = step
        self.path = path

    def __repr__(self) -> str:
        return f"result_of({', '.join(map(repr, (self.step, *self.path)))})"


@dataclass(frozen=True)
class Step:
    """One tool call of a plan; made by `step`."""

    tool: Tool | str
    """The tool that is called, or its name."""
    arguments: Mapping[str, Any]
    """By parameter; `result_of` anywhere in them stands for an earlier result."""
    name: str
    """By which other steps, results and errors name it; unique in the plan."""


Stage: TypeAlias = Step | Sequence[Step]


def step(
    tool: Tool | str, arguments: Mapping[str, Any] | None = None, *, name: str | None = None
) -> Step:
    """Make a step of a plan: a call of a tool.

    Args:
        tool: What is called; or its name, where the application does not have the tool itself.
            A plan of names is checked by the worker only.
        arguments: By parameter. Anything that pydantic writes as JSON, but no set, and no two
            keys that JSON would make one; `result_of` anywhere in it.
        name: How other steps, results and errors name it; unique in the plan. By default the
            tool's name.
    """
    called = tool if isinstance(tool, str) else getattr(tool, "name", "")
    return Step(tool, arguments or {}, name or called)


def result_of(step: Step | str, *path: str | int) -> Any:
    """Return what stands for an earlier step's result, or a part of it, among the arguments.

    Args:
        step: A step of an earlier stage, or its name.
        path: The way into its result, as JSON has it: keys of objects, indexes of lists.
    """
    return ResultOf(step.name if isinstance(step, Step) else step, list(path))


@dataclass(frozen=True)
class Plan:
    """Steps that are carried out in order, checked before any of them is.

    Raises:
        PlanInvalid: It cannot work; the message names the step. See `plan_check`.
    """

    name: str
    """For people: the Temporal UI and ``commitline runs`` show it."""
    steps: Sequence[Stage]
    """In order. A list among them is a stage: its steps run side by side."""
    stages: list[list[PlannedStep]] = field(init=False, repr=False)
    """The same steps in the form in which they travel to the run."""

    def __post_init__(self) -> None:
        """Make the stages, and refuse what cannot work."""
        if not self.name.strip():
            raise PlanInvalid("a plan needs a name")
        given = [[one] if isinstance(one, Step) else list(one) for one in self.steps]
        tools: dict[str, Tool] = {}
        for stage in given:
            for one in stage:
                _check_tool(one, tools)
        stages = [[_planned(one) for one in stage] for stage in given]
        check_structure(stages)
        if len(to_text(stages)) > _MAX_PLAN:
            raise PlanInvalid(f"the plan {self.name!r} has over {_MAX_PLAN} characters")
        if all(one.tool in tools for stage in stages for one in stage):
            check_order(stages, tools)
        object.__setattr__(self, "stages", stages)


def _check_tool(one: Any, tools: dict[str, Tool]) -> None:
    if not isinstance(one, Step):
        raise PlanInvalid(f"{one!r} is no step; make it by step(tool, arguments)")
    if isinstance(one.tool, Tool):
        if tools.setdefault(one.tool.name, one.tool) is not one.tool:
            raise PlanInvalid(f"two different tools are named {one.tool.name!r}")
    elif not isinstance(one.tool, str):
        raise PlanInvalid(f"{one.tool!r} is no tool; put @tool(effect=…) above it")


def _planned(one: Step) -> PlannedStep:
    references: list[Reference] = []
    try:
        literal = _literal(dict(one.arguments), [], references)
        text = canonical(literal)
    except (UnrepresentableValue, PydanticSerializationError, ValueError, TypeError) as err:
        raise PlanInvalid(f"the step {one.name!r}: {scrub(error_text(err), limit=300)}") from err
    called = one.tool if isinstance(one.tool, str) else one.tool.name
    # One text for equal plans, whatever order their arguments were given in.
    return PlannedStep(one.name, called, text, sorted(references, key=lambda each: str(each.at)))


def _literal(value: Any, at: Path, references: list[Reference]) -> Json:
    """Return a value as JSON data. A `result_of` in it becomes None, and a reference is added."""
    if isinstance(value, ResultOf):
        references.append(Reference(at, value.step, value.path))
        return None
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        return _object(value, at, references)
    if isinstance(value, list | tuple):
        return [_literal(item, [*at, index], references) for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        raise TypeError("a set has no order, and a plan that is started again must be the same")
    return to_jsonable_python(value, by_alias=True, bytes_mode="base64", round_trip=True)


def _object(value: Mapping[Any, Any], at: Path, references: list[Reference]) -> Json:
    """Return a mapping as a JSON object: 1 and a date are keys as pydantic writes them."""
    found: dict[str, Json] = {}
    for key, item in value.items():
        name = key
        if not isinstance(key, str):
            (name,) = to_jsonable_python({key: None}, by_alias=True, bytes_mode="base64")
        if name in found:
            raise ValueError(f"two keys become one: {name!r}")
        found[name] = _literal(item, [*at, name], references)
    return found
