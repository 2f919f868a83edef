"""What passes between a workflow that undoes a run and the activities that know how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...identity import ActionKey, RunKey
from ...ledger.undo_rules import UndoReport
from .action_header import ActionHeader
from .deadlines import CallLimits

BEGIN_UNDO: Final = "commitline.begin_undo"
PLAN_UNDO: Final = "commitline.plan_undo"
FINISH_UNDO: Final = "commitline.finish_undo"


@dataclass(frozen=True)
class BeginUndo:
    """Undo a run, if it is to be undone."""

    run_key: RunKey
    why: str
    """For people."""
    failed: bool = False
    """It failed; what was cancelled is undone only where its stop said so."""
    again: bool = False
    """A person asks for it, of a run that has ended."""
    unless: list[str] = field(default_factory=list)
    """Of one that failed: not where a call of one of these tools took effect, or may have."""


@dataclass(frozen=True)
class UndoRequest:
    """Undo a run that has ended."""

    run_key: RunKey
    why: str
    """Who asks for it, and why; for people."""


@dataclass(frozen=True)
class PlanUndo:
    """Say what is due next."""

    run_key: RunKey
    passed: list[ActionKey] = field(default_factory=list)
    """What could not be done in this unwinding; see `DueUndo.passes`."""
    unserved: list[str] = field(default_factory=list)
    """Tools that no worker was found for in this unwinding."""


@dataclass(frozen=True)
class UndoStep:
    """One call of an unwinding."""

    key: ActionKey
    """The action that is settled, or undone."""
    tool: str
    """The activity."""
    arguments: str = "{}"
    """JSON text."""
    limits: CallLimits = field(default_factory=lambda: CallLimits(None, None))
    summary: str = ""
    header: ActionHeader | None = None
    problem: str = ""
    """Why it cannot be done."""
    unserved: bool = False
    """This worker does not serve the tool; another one may."""
    passes: ActionKey | None = None
    """What is passed by where it cannot be done; see `DueUndo.passes`."""


@dataclass(frozen=True)
class UndoPlan:
    """The steps that are due now, in order."""

    steps: list[UndoStep]
    heartbeat_seconds: float


@dataclass(frozen=True)
class FinishUndo:
    """Undoing is through."""

    run_key: RunKey
    passed: list[ActionKey] = field(default_factory=list)
    """What could not be done."""
    reasons: dict[ActionKey, str] = field(default_factory=dict)
    """Why, by the action that stands."""


@dataclass(frozen=True)
class UndoOutcome:
    """What an unwinding came to."""

    finished: bool
    """False: something has become known meanwhile, and is to be undone, too."""
    report: UndoReport | None = None
