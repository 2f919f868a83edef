"""What is said between the run, the model and the tools.

Plain frozen dataclasses: they cross Temporal as JSON, so a field may be added later with a
default. Arguments and contents are JSON *text*, kept as it was written, since a string that
the model wrote may hold what only text carries faithfully.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
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

    def __add__(self, other: Usage) -> Usage:
        """Sum two requests."""
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        )


@dataclass(frozen=True)
class Completion:
    """A model's answer to one request."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    provider_state: Any = None
    """JSON that the adapter needs back verbatim: reasoning items, signatures, ids."""
    output: str | None = None
    """JSON text of the output that it gave, valid for the agent's ``output_type``."""


@dataclass(frozen=True)
class RunResult:
    """How a run, or a request to a conversation, was answered."""

    output: str
    """The model's last text; with an ``output_type`` its output as JSON text (see `data`)."""
    steps: int
    """Model turns that it took."""
    finish_reason: FinishReason = "stop"
    """``length``: the last text was cut off at the model's output limit."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of all of the run's model requests so far."""

    def data(self, output_type: type[T]) -> T:
        """Return the output of an agent with an ``output_type``, as a value of that type.

        Raises:
            pydantic.ValidationError: It is of another type.
        """
        return TypeAdapter(output_type).validate_json(self.output)


@dataclass(frozen=True)
class ToolResult:
    """What the model is told about one call; exactly one per call, in the calls' order."""

    position: str
    call_id: str
    name: str
    status: OutcomeStatus
    content: str
    """JSON text."""
    changes: dict[str, Any] | None = None
    """What it changed in the state (`state.Changes`), on its way to the turn that merges it."""


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
