"""What passes between the relay's workflows and the activities that work for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...identity import ActionKey
from .search_attributes import Listing
from .undo import UndoStep

SETTLE_ACTION: Final = "SettleAction"
"""The workflow that settles or sends one action; its id is ``settle:<action key>``."""
LOOK_AGAIN: Final = "look_again"
"""The signal by which it looks again at an action that waited for a person."""
RELAY: Final = "Relay"
"""The workflow of one look that a person asked for. Workers look without it."""

CLOSE_GONE_RUNS: Final = "commitline.close_gone_runs"
START_SETTLEMENTS: Final = "commitline.start_settlements"
PLAN_SETTLEMENT: Final = "commitline.plan_settlement"
FINISH_SETTLEMENT: Final = "commitline.finish_settlement"


@dataclass(frozen=True)
class SettlementPlan:
    """From `PLAN_SETTLEMENT` to the workflow: one call, a wait, or nothing."""

    step: UndoStep | None = None
    """The call."""
    heartbeat_seconds: float = 3.0
    """How often the call must heartbeat, at least."""
    wait_seconds: float = 0.0
    """An attempt may be at work on the action: plan again after this time."""
    why: str = ""
    """Why there is nothing to do, or why the relay waits; for people."""
    listing: Listing | None = None
    """What Temporal's list shows of the settlement; None: the server lacks the attributes."""


@dataclass(frozen=True)
class FinishSettlement:
    """From the workflow to `FINISH_SETTLEMENT`: the settlement has ended.

    The answer says whether the action waits for a person. Then the workflow goes on to show that,
    unless it is cancelled.
    """

    key: ActionKey
    failed: str = ""
    """Why it failed; empty if it did not."""
    cancelled: bool = False
    """A person cancelled the workflow, so it shows nothing."""
