"""The relay's queue as values, and the rule by which an action may be tried again.

Pure: no statement is sent from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from ..errors import ReopenRefused
from ..identity import ActionKey, RunKey
from .action_records import Action, Effect
from .run_records import Run

RelayTask = Literal["send", "lookup", "undo"]
"""``send``: only the relay sends it. ``lookup``: its run is over, and its outcome unknown.
``undo``: it happened after its run had been undone."""

_OVERDUE: Final = timedelta(minutes=2)


@dataclass(frozen=True)
class RelayEntry:
    """A row of ``agent_relay``."""

    key: ActionKey
    """The action."""
    seq: int
    """Counts the entries, in the order of the commits of those that share an order key."""
    why: RelayTask
    """What the relay does about the action."""
    tool: str
    """A worker that serves this tool can take it."""
    order_key: str | None
    """Those that share it are carried out one after another."""
    due_at: datetime | None
    """When it may be begun; None where it waits for a person."""
    starts: int
    """How often a relay has begun with it."""
    shown: bool
    """A workflow may be open that shows that it waits for a person."""
    created_at: datetime
    """When it was queued."""


@dataclass(frozen=True)
class QueuedAction(RelayEntry):
    """An entry of the queue with what people need to know of its action."""

    run_key: RunKey
    """The run whose action it is."""
    position: str
    """Where in that run."""
    parked_reason: str | None
    """Why it waits for a person, if it does."""
    behind: ActionKey | None
    """The first action of its order, for whose end it waits; None where it is the first."""
    now: datetime
    """The database's clock when the row was read."""

    @property
    def overdue(self) -> bool:
        """Whether it was due long ago, and no worker has taken it: none serves its tool."""
        late = self.due_at is not None and self.now - self.due_at > _OVERDUE
        return late and self.behind is None and self.parked_reason is None


@dataclass(frozen=True)
class LostRun:
    """A run whose workflow ended without recording it: terminated, timed out, history deleted."""

    run_key: RunKey
    """The run."""
    workflow_id: str
    """Of its workflow."""
    agent: str
    """The agent's name."""
    workflow_status: str
    """How the workflow ended."""
    ended_at: datetime
    """When it ended, by the engine's clock."""
    stands: int
    """Actions that took effect and are not undone."""
    unknown: int
    """Actions that may have taken effect."""


def check_reopens(key: ActionKey, found: Action | None, run: Run | None) -> Action:
    """Return the action, if a person may have it tried again.

    Raises:
        ReopenRefused: They may not; the message says why.
    """
    if found is None:
        raise ReopenRefused(f"there is no action {key}")
    if found.status == "done":
        raise ReopenRefused(f"{key} is settled: {found.state}")
    if found.duplicate_of is not None:
        raise ReopenRefused(f"{key} repeats {found.duplicate_of}: reopen that one")
    if not found.parked and found.reopened_at is None:
        raise ReopenRefused(f"{key} is not left to a person")
    if run is None or (run.stopped_at is not None and not found.adopted):
        raise ReopenRefused(f"the run of {key} was stopped: nothing of it is sent any more")
    if run.spec is None and run.parent_key is None and not found.relayed:
        raise ReopenRefused(f"{key} is of a workflow whose tools the relay does not have")
    if found.dispatched_at is not None and found.effect is Effect.AT_MOST_ONCE:
        raise ReopenRefused(f"{key} may have happened, and {found.tool} must not be sent twice")
    if found.effect is Effect.IDEMPOTENT and found.key_forgotten():
        raise ReopenRefused(f"the downstream system has forgotten the key of {key} by now")
    return found
