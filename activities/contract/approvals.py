"""What passes between a run and the activities of a call that a person may have to approve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...identity import Position, RunKey
from .references import StoredInput
from .reply import Reply

CHECK_APPROVAL: Final = "commitline.check_approval"
DECIDE: Final = "commitline.decide"

FOREIGN_DECISION: Final = "commitline.decide"
"""The update of a workflow of another framework: `Decide`, with edited arguments."""
FOREIGN_WORD_GIVEN: Final = "commitline.word_given"
"""The signal of such a workflow: `WordGiven`."""

NOT_EXECUTED: Final = "not executed: "
"""How the reply to a call begins that was not approved."""
REJECTIONS: Final = ("Rejected", "ApprovalExpired")
"""The types of its error."""


@dataclass(frozen=True)
class CheckApproval:
    """From a run to `CHECK_APPROVAL`: a call that a person may have to approve."""

    run_key: RunKey
    position: Position
    """The place of the call in its run."""
    thread_id: str
    """The conversation that the run writes."""
    tool: str
    arguments: str
    """JSON text, as the model or the plan wrote them."""
    requested_digest: str
    """Of those arguments, as the header of the call has it."""
    inputs: list[StoredInput] = field(default_factory=list)
    """What belongs into the arguments, out of the ledger."""


@dataclass(frozen=True)
class WordGiven:
    """From a client to a run, as a signal: a decision or an answer is in the ledger already.

    So it is where a run takes no more updates, of which Temporal allows 2,000 for an execution.
    """

    run_key: RunKey
    position: Position
    """The place of the call in its run."""
    number: int | None = None
    """Of the question that was answered; None: the call was decided about."""


@dataclass(frozen=True)
class ApprovalState:
    """From `CHECK_APPROVAL` to the run: whether the call may be made.

    Exactly one of ``as_requested``, ``arguments``, ``stored``, ``reply`` and ``wait_seconds`` is
    set.
    """

    as_requested: bool = False
    """It may be made as it was requested."""

    arguments: str | None = None
    """It may be made, with these arguments (JSON text), which are all of them."""
    stored: str | None = None
    """The same, with arguments that are too large to travel: the ledger has them, with the
    approval, or with the action if that was begun. This is their digest, as in a call's header."""
    judged: str | None = None
    """Digest of the arguments that were approved, or that need no approval: those are carried out,
    or none. None where the call was begun: its row counts."""
    reply: Reply | None = None
    """It must not be made; the reply says why."""
    wait_seconds: float | None = None
    """It waits for a person's decision, for this time at most."""
    generation: int = 0
    """Of the approval that this is about; 0 where none was requested."""


@dataclass(frozen=True)
class Decide:
    """From a run to `DECIDE`: a person's decision about a call."""

    run_key: RunKey
    position: Position
    approve: bool
    """False: the person rejects the call."""
    by: str
    """Who decided."""
    reason: str = ""
    """Why, in the person's words; may be empty."""
    arguments: str | None = None
    """JSON text of other arguments, which the person gives instead."""
    as_they_are: bool = False
    """Somebody was asked whether the person may give exactly these: they are refused where the
    tool's defaults or validators would make others of them."""
    generation: int = 1
    """Of the approval that the decision is about. No other one is decided by it."""
