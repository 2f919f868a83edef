"""What passes between a run and its model turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ...identity import RunKey
from .conversation import Completion, Message, RunResult, Usage

CALL_MODEL: Final = "commitline.call_model"
RECORD_TURN: Final = "commitline.record_turn"
RUN_LOST: Final = "RunLost"
"""The type of the failure of a turn whose run the ledger has lost."""


@dataclass(frozen=True)
class CallModel:
    """One model turn of a run."""

    run_key: RunKey
    step: int
    thread_id: str
    version: int
    """The version of the conversation that the run knows."""
    epoch: int = 0
    messages: list[Message] = field(default_factory=list)
    """What is new since that version."""
    request_id: str | None = None
    """The request that is being answered; its text is read from the ledger."""
    request_step: int = 0
    """The turn at which the run took it up."""


@dataclass(frozen=True)
class TurnResult:
    """A model turn that stands, or one that the ledger could not take yet."""

    completion: Completion
    version: int
    epoch: int = 0
    usage: Usage = field(default_factory=Usage)
    """Tokens of the run so far."""
    unrecorded: RecordTurn | None = None
    """What the run has to have recorded before it acts on it."""
    replied: RunResult | None = None
    """The reply that the request had before; the model was not asked."""


@dataclass(frozen=True)
class RecordTurn:
    """A model turn that the ledger did not take when the model gave it."""

    run_key: RunKey
    step: int
    thread_id: str
    version: int
    epoch: int
    messages: list[Message]
    """Everything that is new, but for the completion."""
    completion: Completion
    final: bool = False
    """The completion is the answer to what was asked."""
    told: list[str] = field(default_factory=list)
    request_id: str | None = None
    request_at: int | None = None
    """Which of the messages is the request; None if it was there before."""
    request_step: int = 0
    spent: Usage = field(default_factory=Usage)
    """Tokens of the run before it."""
    state: str | None = None
    """JSON text of the state with what the calls before it changed; None if that is nothing."""
