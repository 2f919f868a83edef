"""What the ledger holds of a conversation: the thread, its messages, requests and turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from ..identity import ActionKey, RunKey
from .action_records import Action, Outcome
from .run_records import Run

MessageRole = Literal["user", "assistant", "tool"]

NO_STATE: Final = "{}"
"""The state (JSON text) of a conversation whose tools have changed nothing."""


@dataclass(frozen=True)
class Thread:
    """A row of ``agent_threads``."""

    thread_id: str
    """Chosen by the caller; a run without a conversation of its own has its run key."""
    agent: str
    """The agent that began it."""
    version: int
    """Commits so far."""
    written_by: RunKey | None
    """The run of the last commit."""
    forked_run: RunKey | None
    """The run that was forked, as long as no run has gone on from there."""
    forked_step: int | None
    """At which of its model turns."""
    created_at: datetime
    """When it was begun."""
    deleted_at: datetime | None
    """When it was deleted; the row stays as a tombstone."""


@dataclass(frozen=True)
class StoredMessage:
    """A row of ``agent_messages``."""

    version: int
    """Of the commit that it came with."""
    ordinal: int
    """Its place in that commit."""
    role: MessageRole
    """``user``, ``assistant`` or ``tool``."""
    message: str
    """JSON text."""
    run_key: RunKey
    """The run that wrote it."""
    step: int
    """At which model turn of that run."""
    epoch: int
    """The run's epoch then; a fork begins the next."""
    request_id: str | None
    """Of a person's message: the request that it is."""
    created_at: datetime
    """When it was committed."""


@dataclass(frozen=True)
class Request:
    """What a caller sent to a conversation: a row of ``agent_requests``."""

    thread_id: str
    """The conversation."""
    request_id: str
    """The caller's; unique within the conversation."""
    message: str
    """JSON text."""
    reply: str | None
    """JSON text, once it is answered."""


@dataclass(frozen=True)
class NewMessage:
    """A message to commit."""

    role: MessageRole
    """``user``, ``assistant`` or ``tool``."""
    message: str
    """JSON text."""
    request_id: str | None = None
    """The request that it is."""


@dataclass(frozen=True)
class Turn:
    """What one model turn commits."""

    thread_id: str
    """The conversation."""
    version: int
    """The version that it started from."""
    run_key: RunKey
    """The run whose turn it is."""
    step: int
    """Which of the run's model turns."""
    epoch: int
    """The run's epoch."""
    messages: Sequence[NewMessage]
    """What is new since that version, the completion among it."""
    input_tokens: int = 0
    """That its model requests took."""
    output_tokens: int = 0
    """The same of the output."""
    notified: Sequence[str] = ()
    """The keys of the actions about which the messages hold a notice."""
    replies_to: str | None = None
    """The request that it answers."""
    reply: str | None = None
    """JSON text."""
    state: str | None = None
    """JSON text of the state that it leaves; None where that is as it was."""


@dataclass(frozen=True)
class Committed:
    """The turn that stands."""

    version: int
    """Of the thread, after its commit."""
    input_tokens: int
    """Of the run so far."""
    output_tokens: int
    """The same of the output."""
    earlier: StoredMessage | None = None
    """The completion that stood before, if this commit was not the first."""


@dataclass(frozen=True)
class Returned:
    """What a call returned: an action that happened, or a read whose result is kept."""

    key: ActionKey
    """The call's."""
    result: str
    """JSON text."""
    state_changes: str | None
    """JSON text of what it changed in the conversation's state."""
    duplicate_of: ActionKey | None
    """The action whose result this is."""

    @property
    def outcome(self) -> Outcome:
        """It as an outcome."""
        return replace(Outcome.ok(self.result), state_changes=self.state_changes)


@dataclass(frozen=True)
class Conversation:
    """Everything that a model turn starts from."""

    run: Run
    """The run that writes it."""
    thread: Thread
    """Its version and who wrote last."""
    messages: Sequence[StoredMessage]
    """All of them, in order."""
    request: Request | None = None
    """The request that the turn answers, if one was named."""
    settled: Sequence[Action] = field(default_factory=tuple)
    """What was settled after the model had read that it is unknown or pending."""
    returned: Mapping[ActionKey, Returned] = field(default_factory=dict)
    """What calls returned that were named; without those of which the ledger has nothing."""
    state: str = NO_STATE
    """JSON text of what its tools share."""
    state_version: int = 0
    """Of the commit that left it so."""
