"""What passes between a run and the activities that ask a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...identity import Position, RunKey
from .reply import Reply

CHECK_APPROVAL: Final = "commitline.admit"
DECIDE: Final = "commitline.decide"


@dataclass(frozen=True)
class CheckApproval:
    """A call that a person may have to approve."""

    run_key: RunKey
    position: Position
    thread_id: str
    tool: str
    arguments: str
    """JSON text, as the plan has them."""
    requested_digest: str


@dataclass(frozen=True)
class ApprovalState:
    """What becomes of it: exactly one of the three."""

    arguments: str | None = None
    """JSON text: carry it out, with these."""
    reply: Reply | None = None
    """It is not carried out."""
    wait_seconds: float | None = None
    """It waits for a person, so long at most."""


@dataclass(frozen=True)
class Decide:
    """A person's word about a call."""

    run_key: RunKey
    position: Position
    approve: bool
    by: str
    reason: str = ""
    arguments: str | None = None
    """JSON text: other arguments than were asked about."""
