"""What passes between a foreign workflow and the plugin's own activities about one of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..activities.contract.approvals import CheckApproval
from ..activities.contract.reply import Reply
from ..identity import Position, RunKey
from ..ledger.action_records import Effect, Outcome

CHECK_CALL: Final = "commitline.check_call"
DECIDE_CALL: Final = "commitline.decide_call"
SETTLE_CALL: Final = "commitline.settle_call"


@dataclass(frozen=True)
class CheckCall:
    """To `CHECK_CALL`: may this call be made? The answer is an `ApprovalState`."""

    asked: CheckApproval
    always: bool
    """A person has to approve each call of the tool; else the worker's rule judges it."""
    expires_seconds: float | None
    """How long it waits for the approval; None is for ever."""
    first: bool
    """The run has made no guarded call before, so nothing of it can be lost."""


@dataclass(frozen=True)
class SettleCall:
    """To `SETTLE_CALL`: the server gave the call's activity up."""

    run_key: RunKey
    position: Position
    tool: str
    arguments: str
    """JSON text of what counts of the activity's arguments."""
    requested_digest: str
    effect: Effect
    why: str
    """Which time-out it was."""


@dataclass(frozen=True)
class SettledCall:
    """From `SETTLE_CALL` to the workflow: what the ledger says. One of the two is set."""

    outcome: Outcome | None = None
    """How the call ended."""
    reply: Reply | None = None
    """It is unknown how."""
    key: str = ""
    """The action's."""
    duplicate_of: str | None = None
    """The action whose outcome it is, where another one did it."""
