"""What a run's row lets start: by what a call is for, and by who carries the run out.

Pure functions over the locked row of a run, as `claims` has them over that of an action.
"""

from __future__ import annotations

from ..errors import Fenced, RunNotRunning, StaleThread
from ..identity import epoch_of, step_of
from .calls import Row
from .records import Action, ActionRequest


def may_start(run: Row, request: ActionRequest) -> bool:
    """Whether the run may start something. False: it has ended and might be opened again.

    Raises:
        RunNotRunning: It is stopped or being undone, or the request only asks.
        StaleThread: It was forked, and goes another way from an earlier turn on.
        Fenced: Another workflow carries it out by now.
    """
    if request.lookup_only:
        raise RunNotRunning(f"{request.key} is only asked about, and was never sent")
    match request.purpose:
        case "undo":
            return run["state"] == "undoing" or run["undo_ended_at"] is not None
        case "settle":
            return bool(run["state"] == "undoing")
        case "relay":
            # What was stopped is never driven forward.
            return run["state"] in ("running", "ended") and run["stopped_at"] is None
        case "forward":
            return _runs_forward(run, request)


def _runs_forward(run: Row, request: ActionRequest) -> bool:
    older = run["epoch"] > epoch_of(request.position)
    if older and (step_of(request.position) or 0) >= run["fork_step"]:
        raise StaleThread(f"{request.key}: the run was forked, and goes another way")
    if run["state"] in ("stopping", "undoing"):
        raise RunNotRunning(
            f"the run {run['run_key']} is {run['state']}", stopping=run["state"] == "stopping"
        )
    if run["stopped_at"] is not None:
        raise RunNotRunning(f"the run {run['run_key']} was stopped: {run['stop_reason']}")
    running = bool(run["state"] == "running")
    if running and run["owner"] not in (None, request.owner):
        raise Fenced(f"{request.run_key} is carried out by {run['owner'] or 'no workflow'} by now")
    return running


def is_the_relays(run: Row, found: Action) -> bool:
    """Whether the relay sees to a row: its run is over, or does not see to it itself."""
    settled = found.status == "done" or found.parked
    return settled or run["state"] == "ended" or found.relayed or found.reopened_at is not None
