"""Plans: the steps of a plan, what starts and opens its run, and what the run returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ...canonical import Json, digest, parse
from ...identity import RunKey
from .deadlines import RunLimits
from .encoding import to_text
from .sizes import MAX_CONTENT
from .spec import ToolSpec

Path: TypeAlias = list[str | int]
"""The way into JSON data: keys of objects, indexes of lists."""


@dataclass(frozen=True)
class Reference:
    """An argument of a step, or a part of one, that is the result of an earlier step."""

    at: Path
    """Where it stands in the arguments."""
    step: str
    """The name of the earlier step."""
    path: Path = field(default_factory=list)
    """The way into its result; empty is the whole result."""

    def __str__(self) -> str:
        return f"result_of({', '.join(map(repr, (self.step, *self.path)))})"


@dataclass(frozen=True)
class PlannedStep:
    """One tool call of a plan, in the form in which it travels."""

    name: str
    """By which other steps refer to it."""
    tool: str
    """The name of the tool."""
    arguments: str
    """JSON text, with null where a result is put in."""
    references: list[Reference] = field(default_factory=list)
    """Where which results are put in."""


def resolved(step: PlannedStep, results: Mapping[str, Json]) -> Json:
    """Return the arguments of a step, with the results of earlier steps put in.

    Raises:
        LookupError: A result lacks the part that is referred to; the message names it.
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
    """From the client to the workflow of a plan: what its run is started with."""

    name: str
    """The name of the plan."""
    stages: list[list[PlannedStep]]
    """In order; the steps of one stage run side by side."""
    limits: RunLimits = field(default_factory=RunLimits)
    """The deadlines of the run."""

    @property
    def digest(self) -> str:
        """Two starts of one id with one digest are the same start; deadlines do not count."""
        return digest({"plan": self.name, "stages": parse(to_text(self.stages))})


@dataclass(frozen=True)
class OpenPlan:
    """From the run of a plan to `OPEN_PLAN`: registers the run."""

    run_key: RunKey
    plan: PlanInput
    input_digest: str


@dataclass(frozen=True)
class PlanSpec:
    """From `OPEN_PLAN` to the run: what it keeps of its tools and settings. The first stands."""

    tools: list[ToolSpec]
    """The tools that its steps call."""
    heartbeat_seconds: float
    """How often a call must heartbeat, at least."""
    deadline_seconds: float | None = None
    """What is left of the ``run_deadline`` when the run opens; None is no limit."""
    result_limit: int = MAX_CONTENT
    """Characters of a result that travel; the ledger keeps the whole."""


@dataclass(frozen=True)
class StepResult:
    """The result of a step that was carried out."""

    name: str
    """The name of the step."""
    position: str
    """Its position in the ledger: ``<stage>.<place in the stage>``."""
    tool: str
    """The name of the tool."""
    value: Any
    """What the tool returned, as JSON has it."""
    action_key: str | None = None
    """The row that answers for it; None for a read."""
    existing: bool = False
    """Another action did it before. It was not done again, and this run never undoes it."""
    partial: bool = False
    """The value is too large to travel: this is its beginning. The ledger has the whole."""


@dataclass(frozen=True)
class PlanResult:
    """From the run of a plan to the client: the results of all steps."""

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
