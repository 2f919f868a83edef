"""Whether somebody may rely on a business fact that happened: not while it is being taken back.

    the action that holds it                        who asks for it
    ------------------------                        ---------------
    its run is being undone, or stopped for that    waits: the fact is free soon, or stands
    it is queued to be undone                       waits, as long as a relay takes it up
    an undo of it is at work                        waits
    an undo of it was sent, and is lost or unknown  is told so, and nothing is done
    else                                            gets its receipt

The rule itself is the SQL function `commitline_reliance`, which the outbox's one statement asks,
too. It locks no rows, nor could it: who reads a moment earlier has a receipt of what is undone
later.
"""

from __future__ import annotations

from enum import Enum

from .calls import Connection, fetch
from .records import Action, ActionRequest


class Reliance(Enum):
    """What may be said of a business fact that happened; the values are the function's."""

    STANDS = "stands"
    UNDOING = "undoing"
    PERHAPS_UNDONE = "perhaps undone"


async def judge_reliance(
    connection: Connection, holder: Action, request: ActionRequest
) -> Reliance:
    """Judge whether what holds a business fact stands; see the module."""
    if request.purpose != "forward" or holder.status != "done":
        return Reliance.STANDS
    found = await fetch(connection, "reliance", key=holder.key)
    return Reliance.STANDS if found is None else Reliance(found["reliance"])
