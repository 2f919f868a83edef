"""What passes between a run and the activities of a call that a person may have to approve."""

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
    """Whether a call may be made. Exactly one field is set."""

    arguments: str | None = None
    """It may be made, with these arguments (JSON text)."""
    reply: Reply | None = None
    """It must not be made; the reply says why."""
    wait_seconds: float | None = None
    """It waits for a person's decision, for this time at most."""


@dataclass(frozen=True)
class Decide:
    """A person's decision about a call."""

    run_key: RunKey
    position: Position
    approve: bool
    by: str
    reason: str = ""
    arguments: str | None = None
    """JSON text of other arguments, which the person gives instead."""
