"""The rules of runs: what a run may start, by what a call is for and which workflow acts.

Pure functions over the locked rows of runs, as `claim_rules` has them over those of actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..errors import (
    Fenced,
    ResetRefused,
    RunInputConflict,
    RunNotRunning,
    StaleThread,
    SubAgentClosed,
)
from ..identity import UNDO_PREFIX, Position, RunKey, epoch_of, position_in_parent, step_of
from .action_records import Action, ActionRequest
from .run_records import Run


def may_start(run: Run, request: ActionRequest, own: Action | None = None) -> bool:
    """Whether the run may start something. False: it has ended and might be opened again.

    Args:
        run: The run.
        request: What is claimed.
        own: Its row, if it has one.

    Raises:
        RunNotRunning: It is stopped or being undone, or the request is for a lookup only.
        StaleThread: It was forked, and goes another way from an earlier turn on.
        Fenced: Another workflow carries it out by now.
    """
    if request.lookup_only:
        raise RunNotRunning(f"{request.key} is only looked up, and was never sent")
    match request.purpose:
        case "undo":
            return run.state == "undoing" or run.undo_ended_at is not None
        case "settle":
            return run.state == "undoing"
        case "relay":
            # A stopped run is never driven forward. What is adopted is sent for somebody else.
            goes_on = run.stopped_at is None or (own is not None and own.adopted)
            return run.state in ("running", "ended") and goes_on
        case "forward":
            return _goes_forward(run, request)


def check_starts_something(run: Run) -> None:
    """Refuse to start anything for a run that was stopped, or is being undone.

    Raises:
        RunNotRunning: It was.
    """
    if run.state in ("stopping", "undoing") or run.stopped_at is not None:
        raise not_running(
            run, f"the run {run.run_key} is {run.state}; it was stopped: {run.stop_reason}"
        )


def not_running(run: Run | None, message: str) -> RunNotRunning:
    """Return the error of a run that may start nothing: whether a stop or an undo is under way."""
    return RunNotRunning(
        message,
        known=run is not None,
        stopping=run is not None and run.state == "stopping",
        undoing=run is not None and run.undo_under_way,
    )


def _goes_forward(run: Run, request: ActionRequest) -> bool:
    if was_forked_before(run, request.position):
        raise StaleThread(f"{request.key}: the run was forked, and goes another way")
    check_starts_something(run)
    if run.state == "running" and not run.is_owned_by(request.owner):
        raise Fenced(f"{request.run_key} is carried out by {run.owner or 'no workflow'} by now")
    return run.state == "running"


def was_forked_before(run: Run, position: Position) -> bool:
    """Whether a fork of the run has taken back the model turn of this call."""
    if run.epoch <= epoch_of(position) or run.fork_step is None:
        return False
    return (step_of(position) or 0) >= run.fork_step


def may_raise_question(run: Run | None, position: Position) -> bool:
    """Whether a call of the run may raise a question."""
    return run is not None and run.state == "running" and not was_forked_before(run, position)


def is_for_the_relay(run: Run, action: Action) -> bool:
    """Whether the relay may claim the row: its run is over, or does not carry it out itself."""
    settled = action.status == "done" or action.parked
    return settled or run.state == "ended" or action.relayed or action.reopened_at is not None


def will_be_sent(intent: Action, run: Run | None) -> bool:
    """Whether an intent may still be sent.

    Its run sends it while it is running, or an undo of the run while that lasts. The relay sends
    its own also after the run's end, unless the run was stopped, and what it has adopted in any
    case. The run is not locked: that would be a deadlock. A run that is opened again at this very
    moment finds its intent void, or has claimed it.
    """
    if run is None:
        return False
    if intent.position.startswith(UNDO_PREFIX):
        return run.state == "undoing"
    relayed = intent.relayed and run.state == "ended" and run.stopped_at is None
    return run.state == "running" or relayed or intent.adopted


def check_ancestors(line: Sequence[Run], parent: RunKey, by: str) -> None:
    """Refuse a sub-agent's run whose parents do not all run.

    Args:
        line: The parent and all above it, the topmost first.
        parent: The run whose call begins the sub-agent's.
        by: The parent's workflow.

    Raises:
        RunNotRunning: One of them is stopping, undoing, ended, or not in the ledger.
        Fenced: Another workflow carries the parent out by now.
    """
    if not line:
        raise RunNotRunning(f"the run {parent} is not in the ledger", known=False)
    for run in line:
        if run.state != "running" or run.stopped_at is not None:
            raise not_running(run, f"the run {run.run_key} is {run.state}")
    if not line[-1].is_owned_by(by):
        raise Fenced(f"{parent} is carried out by {line[-1].owner or 'no workflow'} by now")


def check_sub_run(run: Run, workflow_id: str, input_digest: str, attempt_at: datetime) -> None:
    """Refuse to give a sub-agent's run to a workflow.

    Raises:
        RunInputConflict: It was begun with other input.
        SubAgentClosed: It was stopped, or closed without an answer.
        Fenced: A later call has given it to another workflow.
    """
    if run.input_digest and run.input_digest != input_digest:
        raise RunInputConflict(f"{run.run_key} was begun with other input")
    if run.stopped_at is not None:
        raise SubAgentClosed(run.stop_reason or "")
    if run.workflow_id != workflow_id and run.opened_attempt_at > attempt_at:
        raise Fenced(f"{run.run_key} was given to {run.workflow_id} since")


def called_at(run: Run, parent: RunKey) -> Position | None:
    """Return the call of ``parent`` that began the run; None where another run's call did."""
    return position_in_parent(run.run_key) if run.parent_key == parent else None


def check_not_stopped(run: Run) -> None:
    """Refuse to open a run again that was stopped.

    Raises:
        ResetRefused: It was.
    """
    if run.stopped_at is not None:
        raise ResetRefused(f"{run.run_key} was stopped for good: {run.stop_reason}")
