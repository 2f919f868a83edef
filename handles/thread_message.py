"""`ThreadMessage`: one message of a conversation, as people and programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..activities.contract.conversation import Message, ToolCall, ToolResult, Usage
from ..activities.contract.encoding import from_text
from ..identity import RunKey
from ..ledger import StoredMessage
from ..ledger.thread_records import MessageRole


@dataclass(frozen=True)
class ThreadMessage:
    """One message of a conversation, for people and programs."""

    role: MessageRole
    """``user``, ``assistant`` (the model) or ``tool`` (what the calls returned)."""
    text: str
    """What the person or the model said; empty for tool results."""
    calls: Sequence[ToolCall]
    """The calls that the model wants."""
    results: Sequence[ToolResult]
    """What the model reads of the calls of the message before."""
    version: int
    """The conversation's version since the commit that wrote this message."""
    run_key: RunKey
    """The run that wrote it."""
    step: int
    """The run's model turn that it belongs to."""
    request_id: str | None
    """Of a message of role ``user``: the request that brought it."""
    created_at: datetime
    """When it was committed, by the database's clock."""
    usage: Usage
    """Tokens of the model request that it answers; zero where it answers none."""

    @classmethod
    def from_stored(cls, stored: StoredMessage) -> ThreadMessage:
        """Return the message that a row of the ledger holds."""
        message = from_text(Message, stored.message)
        answer = message.completion
        return cls(
            role=stored.role,
            text=message.text if answer is None else answer.text,
            calls=() if answer is None else tuple(answer.calls),
            results=tuple(message.results),
            version=stored.version,
            run_key=stored.run_key,
            step=stored.step,
            request_id=stored.request_id,
            created_at=stored.created_at,
            usage=Usage() if answer is None else answer.usage,
        )
