"""What passes between the relay's workflows and the activities that do its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...identity import ActionKey
from .undo import UndoStep

SETTLE_ACTION: Final = "SettleAction"
"""The workflow that sees to one action; its id is ``settle:<action key>``."""
RELAY: Final = "Relay"
"""The workflow that looks for what nobody sees to; a schedule starts it."""

LOOK_AT: Final = "commitline.look_at"
SETTLED: Final = "commitline.settled"
SCAN: Final = "commitline.scan"
SWEEP: Final = "commitline.sweep"


@dataclass(frozen=True)
class Settling:
    """What is to be done about a queued action."""

    step: UndoStep | None = None
    """One call; None is nothing."""
    heartbeat_seconds: float = 10.0
    wait_seconds: float = 0.0
    """An attempt may be at work on it: look again then."""
    why: str = ""
    """Why nothing is to be done, or what is; for people."""


@dataclass(frozen=True)
class Settled:
    """An action was seen to."""

    key: ActionKey
    failed: str = ""
    """Why it could not be."""
