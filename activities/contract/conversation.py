"""A conversation: the messages of the person, the model and the tools.

These are plain frozen dataclasses. They cross Temporal as JSON, so a field may be added later
with a default. Arguments and contents are JSON *text*, exactly as it was written: a string that
the model wrote may hold characters that only text keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
OutcomeStatus = Literal["ok", "error", "unknown"]
FinishReason = Literal[
    "stop", "tool_calls", "length", "content_filter", "refusal", "empty", "other"
]


@dataclass(frozen=True)
class ToolDefinition:
    """What a model reads of a tool."""

    name: str
    """By which the model calls it."""
    description: str
    """What it does, and when to call it."""
    parameters: dict[str, Any]
    """A JSON schema of type ``object``."""


@dataclass(frozen=True)
class ToolCall:
    """One call of a model's message. Its index in the message, not its id, is its identity."""

    id: str
    """The provider's id, for display only: models reuse, repeat and omit ids."""
    name: str
    """The tool that the model calls; there may be none of that name."""
    arguments: str
    """JSON text as the model wrote it."""
    problem: str | None = None
    """Why it must not be carried out (malformed, truncated, too large); None if it may."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one model request, as the provider counted them."""

    input_tokens: int = 0
    """Tokens of the request."""
    output_tokens: int = 0
    """Tokens of the answer."""

    def __add__(self, other: Usage) -> Usage:
        """Sum two requests."""
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        )


@dataclass(frozen=True)
class Completion:
    """A model's answer to one request."""

    text: str = ""
    """The text of the message; may stand beside calls."""
    calls: list[ToolCall] = field(default_factory=list)
    """In the order of the message."""
    finish_reason: FinishReason = "stop"
    """Why the model stopped; see `RunResult`."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of the request that it answers."""
    provider_state: Any = None
    """JSON data that the provider needs back unchanged: reasoning items, signatures, ids."""
    output: str | None = None
    """JSON text of the structured output, valid for the agent's ``output_type``; None if there is
    none."""


_LACKS: Final[Mapping[FinishReason, str]] = {
    "length": "its answer was cut off at its model's output limit",
    "content_filter": "the provider of its model withheld the rest, or all",
    "refusal": "its model refused",
    "empty": "its model said nothing",
}


@dataclass(frozen=True)
class RunResult:
    """How a run, or a request to a conversation, was answered."""

    output: str
    """The model's last text; with an ``output_type`` its output as JSON text (see `data`)."""
    steps: int
    """Model turns that it took."""
    finish_reason: FinishReason = "stop"
    """Why the model stopped. A text is a whole answer only with ``stop``.
    ``length``: it was cut off at the model's output limit. ``content_filter``: the provider
    withheld the rest, or all. ``refusal``: the model refused, and the output is what it said.
    ``empty``: it said nothing. ``other``: the provider gave no reason that is known."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of all of the run's model requests so far."""

    @property
    def lacks(self) -> str:
        """Why the output is no whole answer, in words; empty where it is one, or may be."""
        return _LACKS.get(self.finish_reason, "")

    def data(self, output_type: type[T]) -> T:
        """Return the output of an agent with an ``output_type``, as a value of that type.

        Raises:
            pydantic.ValidationError: It is of another type.
        """
        return TypeAdapter(output_type).validate_json(self.output)


@dataclass(frozen=True)
class ToolResult:
    """What the model reads of one call. Each call has exactly one, in the order of the calls."""

    position: str
    """The place of the call in its run."""
    call_id: str
    """The id of the call, as the provider gave it."""
    name: str
    """The tool."""
    status: OutcomeStatus
    """``ok``, ``error`` or ``unknown``."""
    content: str
    """JSON text."""
    changes: dict[str, Any] | None = None
    """What the call changed in the state (`Changes`), for the turn that merges it."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation.

    Its role says which one of the other fields is set.
    """

    role: Literal["user", "assistant", "tool"]
    """Who speaks; ``assistant`` is the model."""
    text: str = ""
    """Of a user."""
    completion: Completion | None = None
    """Of the assistant."""
    results: list[ToolResult] = field(default_factory=list)
    """Of the tools: one for each call of the message before, in the order of the calls."""

    @classmethod
    def user(cls, text: str) -> Message:
        """Return a message of the person, or of the application."""
        return cls(role="user", text=text)

    @classmethod
    def assistant(cls, completion: Completion) -> Message:
        """Return a message of the model."""
        return cls(role="assistant", completion=completion)

    @classmethod
    def tool(cls, results: list[ToolResult]) -> Message:
        """Return the results of the calls of the message before."""
        return cls(role="tool", results=results)
