"""Whether somebody may rely on a business fact that happened: not while it is being taken back.

    the action that holds it                        who asks for it
    ------------------------                        ---------------
    its run is being undone, or stopped for that    waits: the fact is free soon, or stands
    it is queued to be undone                       waits, as long as a relay takes it up
    an undo of it is at work                        waits
    an undo of it was sent, and is lost or unknown  is told so, and nothing is done
    else                                            gets its receipt

The outbox has the same rules in SQL, as `commitline_reliance`, since it is one statement.

The rows are not locked, nor could they be: who reads a moment earlier has a receipt of what is
undone later.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum, auto
from typing import Final

from ..identity import RunKey
from .actions import Action, ActionRequest
from .calls import Connection, fetch, fetch_all

_LOST_AFTER: Final = timedelta(minutes=2)
"""How long somebody waits for an undo that nobody seems to be at: no relay takes it up, or its
attempt is over and no other has begun. Nobody is to wait for ever."""


class Reliance(Enum):
    """What who asks for a business fact that happened is to do."""

    RELY = auto()
    WAIT = auto()
    UNKNOWN = auto()


async def judge_reliance(
    connection: Connection, holder: Action, request: ActionRequest
) -> Reliance:
    """Judge whether what holds a business fact stands; see the module."""
    if request.purpose != "forward" or holder.status != "done":
        return Reliance.RELY
    if holder.undone_by is not None or not holder.effect_possible:
        return Reliance.RELY
    if holder.compensator is not None and (
        await _run_is_undone(connection, holder.run_key) or await _is_queued(connection, holder)
    ):
        return Reliance.WAIT
    undos = [
        Action.from_row(row) for row in await fetch_all(connection, "sent_undos", key=holder.key)
    ]
    if any(_is_at_work(undo) for undo in undos):
        return Reliance.WAIT
    return Reliance.UNKNOWN if undos else Reliance.RELY


async def _run_is_undone(connection: Connection, key: RunKey) -> bool:
    """Whether a run, or one whose call it carries out, is being undone, or stopped to be."""
    at: RunKey | None = key
    while at is not None:
        run = await fetch(connection, "get_run", run_key=at)
        if run is None:
            return False
        if run["state"] == "unwinding" or (run["state"] == "stopping" and run["compensate"]):
            return True
        at = run["parent_key"]
    return False


async def _is_queued(connection: Connection, holder: Action) -> bool:
    """Whether the relay is to undo it. Not what it left to a person, or nobody takes up."""
    queued = await fetch(connection, "get_queued", key=holder.key)
    if queued is None or queued["why"] != "undo" or queued["due_at"] is None:
        return False
    return bool(holder.now - queued["due_at"] < _LOST_AFTER)


def _is_at_work(undo: Action) -> bool:
    """Whether an attempt is at work on an undo, or another one is to be expected."""
    if undo.parked or undo.lease_until is None:
        return False
    return undo.now - undo.lease_until < _LOST_AFTER
