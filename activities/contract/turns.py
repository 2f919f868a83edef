"""Model turns: what passes between a run and the activities that make and record them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ...identity import Position, RunKey
from .conversation import Completion, Message, OutcomeStatus, RunResult, Usage

CALL_MODEL: Final = "commitline.call_model"
RECORD_TURN: Final = "commitline.record_turn"
RUN_LOST: Final = "RunLost"
"""The type of the failure of a turn whose run the ledger has lost."""
RESULTS_LOST: Final = "ResultsLost"
"""The type of the failure of a turn to whose calls the ledger has lost a result."""


@dataclass(frozen=True)
class CallResult:
    """What became of a call of the message before; as a run keeps it for its next model turn."""

    position: Position
    """The place of the call in its run."""
    status: OutcomeStatus
    content: str = ""
    """JSON text."""
    changes: dict[str, Any] | None = None
    """What the call changed in the state, as `Changes.to_data` has it."""
    kept: bool = False
    """The ledger has content and changes, under the call's key. The turn gets them from there, and
    they do not travel a second time."""
    partial: bool = False
    """The content is only the beginning: the whole is too large to travel."""

    @property
    def reference(self) -> CallResult:
        """It as it travels: without what the ledger has."""
        return CallResult(self.position, self.status, kept=True) if self.kept else self


@dataclass(frozen=True)
class CallModel:
    """From a run to `CALL_MODEL`: one model turn."""

    run_key: RunKey
    step: int
    """The number of the turn in its run; the first is 0."""
    version: int
    """The version of the conversation that the run knows."""
    thread: str | None = None
    """The conversation; None is the run's own."""
    epoch: int = 0
    """The run's epoch: each fork begins a new one."""
    messages: list[Message] = field(default_factory=list)
    """What the person, or the application, has said since that version."""
    results: list[CallResult] = field(default_factory=list)
    """Of the calls of the conversation's last message, in order."""
    request_id: str | None = None
    """The request that the run answers; the ledger has its text. None outside a conversation."""
    request_step: int = 0
    """The turn at which the run began to answer it."""

    @property
    def thread_id(self) -> str:
        """The id of the conversation."""
        return self.thread or self.run_key


@dataclass(frozen=True)
class TurnResult:
    """From `CALL_MODEL` to the run: a turn that stands, or one that the ledger could not record."""

    completion: Completion
    """Without what only the provider needs; it is in the conversation."""
    version: int
    """The version of the conversation with this turn."""
    epoch: int = 0
    usage: Usage = field(default_factory=Usage)
    """Tokens of the run so far."""
    unrecorded: RecordTurn | None = None
    """The turn, if it is not recorded yet: the run has it recorded before it acts on it."""
    replied: RunResult | None = None
    """The reply that the request had before; there was no model request."""


@dataclass(frozen=True)
class RecordTurn:
    """From a run to `RECORD_TURN`: a model turn that the ledger could not record at first."""

    run_key: RunKey
    step: int
    thread_id: str
    version: int
    epoch: int
    messages: list[Message]
    """All new messages but the completion's own."""
    completion: Completion
    final: bool = False
    """The completion is the reply to the request, or to the prompt."""
    notified: list[str] = field(default_factory=list)
    """The actions of which the new messages say that they are settled."""
    request_id: str | None = None
    request_at: int | None = None
    """The index of the request among the messages; None if the conversation had it before."""
    request_step: int = 0
    """The turn at which the run took the request up."""
    spent: Usage = field(default_factory=Usage)
    """Tokens of the run before this turn."""
    state: str | None = None
    """JSON text of the state with the changes of earlier calls; None if there are none."""
