"""Plans: the steps of a plan, what starts and opens its run, and what the run returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...canonical import digest, parse
from ...identity import RunKey
from .deadlines import RunLimits
from .encoding import to_text
from .references import Reference
from .sizes import MAX_CONTENT
from .spec import ToolSpec


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
    listed: bool = False
    """Whether the server had the search attributes when the run was opened."""


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
    """The row that answers for it; of a read, the key of its value where that is in the ledger."""
    existing: bool = False
    """Another action did it before. It was not done again, and this run never undoes it."""
    partial: bool = False
    """The value was too large to travel, and the ledger has the whole no more: this is its
    beginning."""


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
