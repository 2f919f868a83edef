"""What passes between a workflow that undoes a run and the activities that work for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...identity import ActionKey, RunKey
from ...ledger.undo_rules import UndoReport
from .action_header import ActionHeader
from .deadlines import CallLimits

UNDO_RUN: Final = "UndoRun"
"""The workflow that undoes an ended run; its id is ``undo:<run key>``."""
BEGIN_UNDO: Final = "commitline.begin_undo"
PLAN_UNDO: Final = "commitline.plan_undo"
FINISH_UNDO: Final = "commitline.finish_undo"


@dataclass(frozen=True)
class BeginUndo:
    """From the workflow to `BEGIN_UNDO`: begin the undo of a run, if it must be undone."""

    run_key: RunKey
    why: str
    """For people."""
    failed: bool = False
    """The run failed. A run that was cancelled is undone only if its stop said so."""
    again: bool = False
    """A person has started the undo, of a run that has ended."""
    unless: list[str] = field(default_factory=list)
    """A run that failed is not undone if a call of one of these tools took effect, or may have."""
    after: str = ""
    """The workflow that has begun the undo, and hands it over; empty: it begins here."""


@dataclass(frozen=True)
class UndoSoFar:
    """What an undo knows that the ledger does not."""

    passed: list[ActionKey] = field(default_factory=list)
    """Actions that it skips because a step failed; see `DueUndo.passes`."""
    reasons: dict[ActionKey, str] = field(default_factory=dict)
    """Why each was skipped, by the action that stands."""
    unserved: list[str] = field(default_factory=list)
    """Tools for which it found no worker."""


@dataclass(frozen=True)
class UndoRequest:
    """To the workflow `UndoRun`: undo a run that has ended, because a person wants it.

    Or go on with an undo for which there was no room any more in another execution's history.
    """

    run_key: RunKey
    why: str
    """Who wants it, and why; for people."""
    so_far: UndoSoFar | None = None
    """What the undo knows that has begun; None: it has not."""
    after: str = ""
    """The workflow that has begun it, and waits for its end; empty: this one, or nobody yet."""


@dataclass(frozen=True)
class PlanUndo:
    """From the workflow to `PLAN_UNDO`: plan the next steps."""

    run_key: RunKey
    passed: list[ActionKey] = field(default_factory=list)
    """Actions that this undo skips because a step failed; see `DueUndo.passes`."""
    unserved: list[str] = field(default_factory=list)
    """Tools for which this undo found no worker."""


@dataclass(frozen=True)
class UndoStep:
    """From `PLAN_UNDO`, or `PLAN_SETTLEMENT`, to the workflow: one call.

    Its arguments do not travel: they may be as large as a result. The guard has them from the
    ledger.
    """

    key: ActionKey
    """The action that the call settles or undoes."""
    tool: str
    """The tool that is called."""
    limits: CallLimits = field(default_factory=lambda: CallLimits(None, None))
    """The deadlines of the call."""
    summary: str = ""
    """For the Temporal UI."""
    header: ActionHeader | None = None
    """The header of the call; None if it cannot be made."""
    problem: str = ""
    """Why the call cannot be made; empty if it can."""
    unserved: bool = False
    """This worker does not serve the tool; another one may."""
    passes: ActionKey | None = None
    """The action to skip if the call cannot be made; see `DueUndo.passes`."""
    bare: bool = False
    """Its activity is scheduled without arguments; otherwise with an empty JSON object."""


@dataclass(frozen=True)
class UndoPlan:
    """From `PLAN_UNDO` to the workflow: the steps that are due now, in order."""

    steps: list[UndoStep]
    heartbeat_seconds: float
    listed: bool = False
    """Whether the server has the search attributes."""


@dataclass(frozen=True)
class FinishUndo:
    """From the workflow to `FINISH_UNDO`: no step is due any more."""

    run_key: RunKey
    passed: list[ActionKey] = field(default_factory=list)
    """The actions that were skipped."""
    reasons: dict[ActionKey, str] = field(default_factory=dict)
    """Why each was skipped, by the action that stands."""


@dataclass(frozen=True)
class UndoOutcome:
    """From `FINISH_UNDO` to the workflow: how the undo ended."""

    finished: bool
    """False: another action was settled meanwhile and must be undone too."""
    report: UndoReport | None = None
