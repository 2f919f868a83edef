"""The calls of an undo, and of a settlement: deadlines and header of each.

No run plans these calls, so this module makes them from the action's row and from the tool that
the worker serves. The guard makes their arguments, in the same way.
"""

from __future__ import annotations

from dataclasses import replace

from ...canonical import digest
from ...ledger import Action, DueUndo
from ...ledger.action_records import Effect, Purpose
from ...shown import markdown_line
from ..contract.action_header import ActionHeader
from ..contract.deadlines import DEFAULTS, CallLimits, resolve
from ..contract.sizes import SHOWN_CONTENT
from ..contract.undo import UndoStep
from .step_tools import StepTool, StepTools


class UndoSteps:
    """Makes the call for each due undo, with the tools that this worker serves.

    Args:
        app: The tools.
        bare: Their activities take no JSON object: the guard gives them all of their arguments.
    """

    def __init__(self, app: StepTools, *, bare: bool = False) -> None:
        self._tools = {made.name: made for made in app.tools}
        self._bare = bare

    def settlement_of(self, due: DueUndo) -> UndoStep:
        """Return the call that settles an unknown action; a lookup where the tool has one."""
        found, made = due.action, self._tools.get(due.action.tool)
        if made is None:
            return _unserved(found, found.tool, "could look it up")
        lookup_only = (
            made.undo_unknown == "park"
            or made.lookup is not None
            or found.effect is Effect.LOOKUP
            or made.state is not None  # nobody has a copy of the state of that moment
        )
        if due.parked and lookup_only and made.lookup is None:
            return UndoStep(found.key, found.tool, problem=f"it is parked: {found.parked_reason}")
        limits = step_limits(made)
        header = replace(step_header(found, limits, "settle"), lookup_only=lookup_only)
        summary = markdown_line(f"Find out what became of {found.tool} at {found.position}")
        return UndoStep(found.key, found.tool, limits, summary, header, bare=self._bare)

    def undo_of(self, due: DueUndo) -> UndoStep:
        """Return the call of the compensator that undoes an action."""
        found, begun, at = due.action, due.begun, due.at
        assert at is not None, "its outcome is known"
        name = found.compensator or ""
        made = self._tools.get(name)
        if made is None:
            return _unserved(found, name, "undoes it")
        # What is planned is the undo of this action; its arguments follow from that one's row.
        requested = digest({"undoes": found.key}) if begun is None else begun.requested_digest
        limits = step_limits(made)
        header = replace(
            step_header(found, limits, "undo"),
            position=at,
            requested_digest=requested,
            undoes=found.key,
        )
        summary = markdown_line(f"Undo {found.tool} at {found.position}: {name}")
        return UndoStep(found.key, name, limits, summary, header, bare=self._bare)


def step_header(found: Action, limits: CallLimits, purpose: Purpose) -> ActionHeader:
    """Return the header of a call that no run planned, for a settlement or an undo.

    No model reads its result, so little of that travels.
    """
    return ActionHeader(
        found.run_key,
        found.position,
        found.requested_digest,
        again=True,
        attempt_seconds=limits.attempt_seconds,
        node_seconds=limits.node_seconds,
        thread_id=found.thread_id,
        content_limit=SHOWN_CONTENT,
        unplanned=purpose,
    )


def step_limits(made: StepTool) -> CallLimits:
    """Return the deadlines of a call that no run planned: the tool's own, or the defaults.

    There is always a deadline: an undo cannot be stopped, so each of its calls must end by itself.
    """
    return CallLimits(
        resolve("tool_timeout", made.tool_timeout) or DEFAULTS["tool_timeout"],
        resolve("node_timeout", made.node_timeout) or DEFAULTS["node_timeout"],
    )


def _unserved(found: Action, tool: str, what: str) -> UndoStep:
    problem = f"no worker of this task queue serves {tool!r}, which {what}"
    return UndoStep(found.key, tool, problem=problem, unserved=True)
