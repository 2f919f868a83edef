"""Closing a model turn that its run leaves without an answer, so that the conversation can go on.

Its run starts nothing any more. Its intents are ended, and what it may have sent is parked, for a
person to settle. So are the runs of the sub-agents that its calls began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import StaleThread
from ..identity import (
    UNDO_PREFIX,
    ActionKey,
    Position,
    RunKey,
    action_key,
    parent_of,
    started_workflow_of,
)
from .action_records import Action, Outcome
from .outcome import give_up
from .run_records import Run
from .run_rules import called_at
from .statements import Connection, execute, fetch, fetch_all, fetch_one, fetch_rows
from .thread_records import Thread
from .thread_rules import check_alive

_NEVER_SENT: Final = Outcome.error(
    kind="NeverSent",
    message="its run ended before anything was sent, and the conversation went on without it",
    effect_possible=False,
)
_PARKED: Final = "its run went away in the middle of it, and the conversation went on"


async def close_turn(
    connection: Connection,
    run_key: RunKey,
    positions: Sequence[Position],
    *,
    by: RunKey,
    thread_id: str,
    version: int,
) -> dict[Position, Action]:
    """Close a turn, in the caller's transaction. See `ThreadLedger.close_turn`."""
    found = await fetch(connection, Thread, "lock_thread", thread_id=thread_id)
    at = check_alive(thread_id, found).version
    if at != version:
        raise StaleThread(f"the thread {thread_id!r} is at {at}, not at {version}")
    reason = f"the conversation went on with {by}"
    if run_key != by:
        await execute(
            connection,
            "close_run",
            run_key=run_key,
            workflow_id=started_workflow_of(run_key),
            parent_key=parent_of(run_key),
            reason=reason,
        )
    await close_sub_runs(connection, run_key, positions, reason=reason)
    own = await close_actions(connection, run_key, positions)
    return await _close_claimed_for(connection, run_key, positions) | own


async def close_sub_runs(
    connection: Connection, run_key: RunKey, positions: Sequence[Position], *, reason: str
) -> None:
    """Close the runs of the sub-agents that calls of a run began, with all below them."""
    closed: list[RunKey] = []  # the upper ones come first
    for run in await fetch_all(connection, Run, "runs_below", run_key=run_key):
        if called_at(run, run_key) in positions or run.parent_key in closed:
            closed.append(run.run_key)
    if not closed:
        return
    await execute(connection, "close_runs", run_keys=closed, reason=reason)
    for key in closed:
        rows = await fetch_rows(connection, "list_positions", run_key=key)
        # What is being undone just now is brought to its end all the same.
        at = [row["position"] for row in rows if not row["position"].startswith(UNDO_PREFIX)]
        await close_actions(connection, key, at)


async def close_actions(
    connection: Connection, run_key: RunKey, positions: Sequence[Position]
) -> dict[Position, Action]:
    """Bring the actions at these positions to an end; return them, by position."""
    at = {"run_key": run_key, "positions": list(positions)}
    # The domain keys first: that is the lock order.
    for row in await fetch_rows(connection, "domain_keys_of_turn", **at):
        await execute(connection, "lock_domain_key", domain_key=row["domain_key"])
    for action in await fetch_all(connection, Action, "lock_turn_actions", **at):
        await _close(connection, action)
    closed = await fetch_all(connection, Action, "get_turn_actions", **at)
    return {action.position: action for action in closed}


async def _close_claimed_for(
    connection: Connection, run_key: RunKey, positions: Sequence[Position]
) -> dict[Position, Action]:
    """Close the rows of other actions that calls of a run carry out; return them, by position."""
    keys = {action_key(run_key, at): at for at in positions}
    found: dict[Position, Action] = {}
    for action in await fetch_all(connection, Action, "lock_claimed_for", keys=list(keys)):
        assert action.claimed_by is not None, "the row is read by it"
        if action.state == "dispatched":
            await _close(connection, action)
        closed = await fetch_one(connection, Action, "get_action", key=action.key)
        found[keys[ActionKey(action.claimed_by)]] = closed
    return found


async def _close(connection: Connection, action: Action) -> None:
    """Bring an action of a closed run to an end: give up what was not sent, park the rest."""
    if action.dispatched_at is None:
        await give_up(connection, action.key, _NEVER_SENT)
    elif not action.relayed:  # the relay is at work on it, and records how it ends
        given = {"token": None, "reason": _PARKED, "over": False, "failures": None}
        await execute(connection, "park", key=action.key, **given)
