"""The rules of undoing: what is due next, in which order, and what became of each action.

Pure functions over rows, so that they can be read, and tested, by themselves.

    an action that can be undone                 is due
    ----------------------------                 ------
    never dispatched, or no effect               nothing: nothing happened
    has the outcome of another action            nothing: it is not this run's
    undone already                               nothing
    unknown                                      to settle it, before any undo; once
    it stands, and no undo of it                 its undo
    ... an undo that was lost on its way         that undo again
    ... an undo that is unknown                  that undo again, when a person requests it, where
                                                 its key or a lookup keeps it from counting twice;
                                                 else nothing: a person settles it
    ... an undo that had no effect               another one, when a person requests it
    ... an undo that the plan called, unknown    to settle that call, as any other
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from ..canonical import parse, scrub
from ..errors import RunNotRunning, UndoRefused
from ..identity import (
    UNDO_PREFIX,
    ActionKey,
    Position,
    RunKey,
    action_key,
    split_action_key,
    undo_position,
    within_run,
)
from .action_records import Action, Effect
from .run_records import Run

Fate = Literal["undone", "stands", "unknown"]
UndoState = Literal["nothing to undo", "compensated", "partly compensated"]


@dataclass(frozen=True)
class DueUndo:
    """What is to be done next about an action."""

    action: Action
    """The action that is undone, or settled first."""
    at: Position | None
    """The position of its undo; None where it is unknown, and is settled first."""
    parked: bool = False
    """The action, or its undo that was begun, is parked, and may be tried again."""
    begun: Action | None = None
    """The row of that undo, where an attempt at it was lost."""

    @property
    def reopens(self) -> ActionKey:
        """What is to be tried again, where it is parked."""
        return (self.begun or self.action).key

    @property
    def passes(self) -> ActionKey:
        """The key that is passed by where this cannot be done: the undo's, or the action's own.

        They differ: an action that could not be settled may become known later, and is undone then.
        """
        return self.action.key if self.at is None else action_key(self.action.run_key, self.at)


NOTHING_UNDOES_IT: Final = "its tool names no other to undo it"
"""Why an action stands for good."""


@dataclass(frozen=True)
class ActionFate:
    """What became of an action that took effect, or may have."""

    key: ActionKey
    """The action."""
    run_key: RunKey
    """The run that made the call."""
    position: Position
    """Where in that run the call stands."""
    tool: str
    """The name of the tool."""
    args: str
    """JSON text."""
    fate: Fate
    """``undone``, ``stands`` or ``unknown``."""
    why: str = ""
    """Why it stands, or is unknown; which action undid it."""

    @property
    def at(self) -> str:
        """Where it was called, seen from the run that a caller started: ``2.0/0.1``."""
        return within_run(self.run_key, self.position)


@dataclass(frozen=True)
class UndoReport:
    """What of a run's actions is undone, and what stands."""

    state: UndoState
    """``nothing to undo``, ``compensated`` or ``partly compensated``."""
    actions: list[ActionFate]
    """Those that took effect, or may have, in the order of their undo."""
    left_out: int = 0
    """How many more there are, where the report had to be shortened; undone ones first."""

    @property
    def standing(self) -> list[ActionFate]:
        """What is not undone."""
        return [one for one in self.actions if one.fate != "undone"]


def must_undo(run: Run, *, failed: bool, again: bool, attempt_at: datetime, by: str | None) -> bool:
    """Whether a run is to be undone; see `UndoLedger.begin`.

    Raises:
        UndoRefused: A person requested it, and the run is running.
        RunNotRunning: The run ended after this attempt began.
    """
    if again and run.state == "running":
        raise UndoRefused(f"{run.run_key} is {run.state}")
    if run.state == "ended" and run.ended_attempt_at and run.ended_attempt_at >= attempt_at:
        # A late attempt, whose undo is over: it must not begin another one.
        raise RunNotRunning(f"{run.run_key} has ended")
    if again:
        return True
    if run.undo_under_way:
        # Its own workflow was reset to before the undo, and goes on with it. Two workflows must
        # not work on the same actions.
        return run.undo_owner == by
    # The undo of its parent reaches a sub-agent's run: only its own stop can request another one.
    return run.compensate or (failed and run.parent_key is None)


def due(
    rows: Sequence[Action],
    *,
    since: datetime | None,
    passed: AbstractSet[ActionKey] = frozenset(),
) -> Sequence[DueUndo]:
    """Return what is to be done about these rows: all that is unknown, or else the undos.

    Args:
        rows: The actions that can be undone, and those that undo them.
        since: When this undo began. It does not try again what it has tried in vain.
        passed: What it passes by, as `DueUndo.passes`.
    """
    undos: dict[ActionKey, list[Action]] = {}
    for row in rows:
        if row.undoes is not None:
            undos.setdefault(row.undoes, []).append(row)
    found = [
        step
        for row in rows
        if (step := _step(row, undos.get(row.key, []), since)) and step.passes not in passed
    ]
    unknown = [step for step in found if step.at is None]
    return sorted(unknown or found, key=lambda step: _order(step.action), reverse=True)


def _step(row: Action, undos: Sequence[Action], since: datetime | None) -> DueUndo | None:
    if not _can_be_undone(row):
        return None
    if row.status == "pending":
        return _settling(row, since)
    for undo in undos:
        if undo.status == "pending" and (_is_ours(undo) or undo.dispatched_at is not None):
            return _again(row, undo, since)
    ours = [undo for undo in undos if _is_ours(undo)]
    if any(since is not None and undo.created_at >= since for undo in ours):
        return None  # it had no effect this time either
    return DueUndo(row, undo_position(row.position, len(ours) + 1))


def _again(row: Action, undo: Action, since: datetime | None) -> DueUndo | None:
    """Return the undo that was begun, to bring it to its end, if that is possible."""
    if undo.parked and not _may_be_tried(undo, since):
        return None
    if _is_ours(undo):
        return DueUndo(row, undo.position, parked=undo.parked, begun=undo)
    return DueUndo(undo, None, parked=undo.parked)


def _is_ours(undo: Action) -> bool:
    """Whether an undo of the run made it, and not the plan (a refund that the model called)."""
    return undo.position.startswith(UNDO_PREFIX)


def _settling(row: Action, since: datetime | None) -> DueUndo | None:
    """Return that an action is to be settled; once, where it stays unknown."""
    again = not row.parked or _may_be_tried(row, since)
    return DueUndo(row, None, parked=row.parked) if again else None


def _may_be_tried(row: Action, since: datetime | None) -> bool:
    """Whether this undo may try again, or look up, a parked action."""
    if row.duplicate_of is not None or row.effect is Effect.AT_MOST_ONCE:
        return False
    tried = since is not None and row.parked_at is not None and row.parked_at >= since
    forgotten = row.effect is Effect.IDEMPOTENT and row.key_forgotten()
    return not (tried or row.leased or forgotten)


def _can_be_undone(row: Action) -> bool:
    """Whether this is an action that stands, or may stand, and that a tool can undo."""
    return (
        row.compensator is not None
        and row.undone_by is None
        and row.duplicate_of is None
        and row.undoes is None
        and row.dispatched_at is not None
        and row.effect_possible is not False
    )


def _order(row: Action) -> Any:
    """Reverse order of dispatch, then of call."""
    numbers = [int(part) for part in re.findall("[0-9]+", row.position)]
    assert row.dispatched_at is not None, "only what was dispatched is undone"
    return (row.dispatched_at, numbers, row.key)


def tools_of(rows: Sequence[Action]) -> frozenset[str]:
    """Return the tools that settle what is unknown of these rows, and that undo what stands."""
    settling = {row.tool for row in rows if row.status == "pending" and row.dispatched_at}
    undoing = {row.compensator for row in rows if row.compensator and _can_be_undone(row)}
    return frozenset(settling | undoing)


def report(rows: Sequence[Action]) -> UndoReport:
    """Return what became of each action that took effect, or may have."""
    undos = {row.undoes: row for row in rows if row.undoes is not None}
    # The one that may have undone it says more than a later one, which was refused for it.
    undos |= {row.live_undo_of: row for row in rows if row.live_undo_of is not None}
    forward = [
        row
        for row in rows
        if row.undoes is None
        and row.duplicate_of is None
        and row.dispatched_at is not None
        and row.effect_possible is not False
    ]
    forward.sort(key=_order, reverse=True)
    fates = [_fate(row, undos.get(row.key)) for row in forward]
    due_back = [
        fate
        for row, fate in zip(forward, fates, strict=True)
        if row.compensator is not None or fate.fate != "stands"
    ]
    if not due_back:
        state: UndoState = "nothing to undo"
    elif all(fate.fate == "undone" for fate in due_back):
        state = "compensated"
    else:
        state = "partly compensated"
    return UndoReport(state, fates)


def _fate(row: Action, undo: Action | None) -> ActionFate:
    fate: Fate
    if row.undone_by is not None:
        fate, why = "undone", f"by {_named(row.undone_by, row)}"
    elif row.status != "done":
        fate, why = "unknown", row.parked_reason or "it is not known yet what became of it"
    elif undo is not None:
        if undo.parked:
            fate, why = (
                "unknown",
                f"its undo {_named(undo.key, row)} is unknown: {undo.parked_reason}",
            )
        elif undo.status == "done":
            fate, why = "stands", f"its undo {_named(undo.key, row)} had no effect{_reason(undo)}"
        else:
            fate, why = "stands", f"its undo {_named(undo.key, row)} is under way"
    elif row.compensator is None:
        fate, why = "stands", NOTHING_UNDOES_IT
    else:
        fate, why = "stands", "it was not undone"
    return ActionFate(row.key, row.run_key, row.position, row.tool, row.args, fate, why)


def _named(key: ActionKey, row: Action) -> str:
    """Name an action beside another one: by its position, if both are of one run."""
    run, at = split_action_key(key)
    return at if run == row.run_key else key


def _reason(undo: Action) -> str:
    error = parse(undo.result) if undo.outcome == "error" and undo.result else None
    message = error.get("message") if isinstance(error, dict) else None
    return f": {scrub(str(message), limit=300)}" if message else ""
