"""What is said between the run, the model and the tools.

Plain frozen dataclasses: they cross Temporal as JSON, so a field may be added later with a
default. Arguments and contents are JSON *text*, kept as it was written, since a string that
the model wrote may hold what only text carries faithfully.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

OutcomeStatus = Literal["ok", "error", "unknown"]
FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]


@dataclass(frozen=True)
class ToolDefinition:
    """What a model is told about a tool."""

    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type ``object``."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a model's message. Its index there, not its id, is its identity."""

    id: str
    """The provider's id: presentation only. Models reuse, repeat and omit them."""
    name: str
    arguments: str
    """JSON text as the model wrote it."""
    problem: str | None = None
    """Why it must not be run (malformed, truncated, too large); None when it may."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one model request, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Completion:
    """A model's answer to one request."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    provider_state: Any = None
    """JSON that the adapter needs back verbatim: reasoning items, signatures, ids."""
    notices: list[str] = field(default_factory=list)
    """What the model was told just before it: what had been unknown, and is settled."""
    unrecorded: bool = False
    """The ledger did not take it yet: the run has it recorded before it acts on it."""


@dataclass(frozen=True)
class ToolResult:
    """What the model is told about one call; exactly one per call, in the calls' order."""

    position: str
    call_id: str
    name: str
    status: OutcomeStatus
    content: str
    """JSON text."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation: exactly the field that its role names is set."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    completion: Completion | None = None
    results: list[ToolResult] = field(default_factory=list)

    @classmethod
    def user(cls, text: str) -> Message:
        """What the person, or the application, said."""
        return cls(role="user", text=text)

    @classmethod
    def assistant(cls, completion: Completion) -> Message:
        """What the model answered."""
        return cls(role="assistant", completion=completion)

    @classmethod
    def tool(cls, results: list[ToolResult]) -> Message:
        """What became of the calls of the message before."""
        return cls(role="tool", results=results)
