"""The steps of a plan as they travel, and what becomes of what refers to a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ...canonical import Json, digest, parse
from ...identity import RunKey
from .deadlines import RunLimits
from .sizes import MAX_CONTENT
from .spec import ToolSpec
from .wire import to_text

Path: TypeAlias = list[str | int]
"""The way into JSON data: keys of objects, indexes of lists."""


@dataclass(frozen=True)
class Reference:
    """An argument, or a part of one, that is the result of an earlier step."""

    at: Path
    """Where it goes, in the arguments."""
    step: str
    path: Path = field(default_factory=list)
    """The way into that result."""

    def __str__(self) -> str:
        return f"result_of({', '.join(map(repr, (self.step, *self.path)))})"


@dataclass(frozen=True)
class PlannedStep:
    """One tool call of a plan."""

    name: str
    tool: str
    arguments: str
    """JSON text; null where a result goes."""
    references: list[Reference] = field(default_factory=list)


def resolved(step: PlannedStep, results: Mapping[str, Json]) -> Json:
    """Return the arguments of a step, with the results that they refer to.

    Raises:
        LookupError: A result does not hold what is referred to; the message says what.
    """
    arguments = parse(step.arguments)
    for one in step.references:
        *way, last = one.at
        holder = arguments
        for part in way:
            holder = holder[part]
        holder[last] = _found(results[one.step], one)
    return arguments


def _found(result: Json, reference: Reference) -> Json:
    for part in reference.path:
        fits = isinstance(result, dict if isinstance(part, str) else list)
        if not fits or not _holds(result, part):
            raise LookupError(f"{reference} is not in what {reference.step!r} returned")
        result = result[part]
    return result


def _holds(value: Json, part: str | int) -> bool:
    return part in value if isinstance(part, str) else -len(value) <= part < len(value)


OPEN_PLAN: Final = "commitline.open_plan"


@dataclass(frozen=True)
class PlanInput:
    """What a run of a plan is started with."""

    name: str
    stages: list[list[PlannedStep]]
    limits: RunLimits = field(default_factory=RunLimits)

    @property
    def digest(self) -> str:
        """By which a second start of an id is known to be the same; deadlines do not count."""
        return digest({"plan": self.name, "stages": parse(to_text(self.stages))})


@dataclass(frozen=True)
class OpenPlan:
    """What registers the run of a plan."""

    run_key: RunKey
    plan: PlanInput
    input_digest: str


@dataclass(frozen=True)
class PlanSpec:
    """What the run of a plan keeps of its tools and settings; the first stands."""

    tools: list[ToolSpec]
    heartbeat_seconds: float
    deadline_seconds: float | None = None
    """Of the run_deadline, what the run has left as it opens; None is no limit."""
    result_limit: int = MAX_CONTENT
    """Characters of a result that travel; the whole stays in the ledger."""


@dataclass(frozen=True)
class StepResult:
    """How a step of a plan ended that was carried out."""

    name: str
    position: str
    """In the ledger: its stage, and its place in it."""
    tool: str
    value: Any
    """What the tool returned, as JSON has it."""
    action_key: str | None = None
    """The row that answers for it; None for a read."""
    existing: bool = False
    """Another action had done it before; it was not done again, and this run never undoes it."""
    partial: bool = False
    """The value is too large to travel: this is its beginning, and the whole is in the ledger."""


@dataclass(frozen=True)
class PlanResult:
    """What the steps of a plan returned, all of which were carried out."""

    steps: list[StepResult]
    """In the plan's order."""

    def __getitem__(self, name: str) -> Any:
        """Return what a step's tool returned, as JSON has it.

        Raises:
            KeyError: The plan has no step of this name.
        """
        return self.step(name).value

    def step(self, name: str) -> StepResult:
        """Return how a step ended.

        Raises:
            KeyError: The plan has no step of this name.
        """
        for one in self.steps:
            if one.name == name:
                return one
        raise KeyError(name)
