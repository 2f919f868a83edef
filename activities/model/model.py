"""`Model`: what a run needs of a language model, and the checks of what a model wrote.

A model turns a request into a completion. It does not retry (Temporal does) and it does not run
tools (the run does). It raises `ModelUnavailable` if another try may succeed, and `ModelRejected`
if it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

from ...canonical import dumps, parse, scrub
from ...errors import UnrepresentableValue
from ..contract.conversation import (
    Completion,
    FinishReason,
    Message,
    ToolCall,
    ToolDefinition,
)

MAX_ARGUMENTS: Final = 256 * 1024
"""Bytes of one call's arguments as ASCII JSON. Temporal wedges a workflow task at 2 MiB."""
MAX_CALLS: Final = 500
"""Calls of one message. Over 2,000 pending activities wedge a workflow task for ever."""
_CUT_OFF: Final[dict[FinishReason, str]] = {
    "length": "the message was cut off at the model's output limit, so none of it was run",
    "content_filter": "the provider withheld a part of the message, so none of it was run",
    "refusal": "the message is a refusal, so none of it was run",
}
"""Why no call is run of a message that may be a part of one."""


@dataclass(frozen=True)
class ModelRequest:
    """Everything that a completion depends on."""

    model: str
    """The name of the model."""
    instructions: str
    """The system prompt."""
    tools: list[ToolDefinition]
    """The tools that the model may call."""
    messages: list[Message]
    """The conversation, in order. Do not change it: later turns get the same objects."""


@runtime_checkable
class Model(Protocol):
    """A language model.

    ``name`` is what the run's spec keeps and what the UI shows.
    """

    @property
    def name(self) -> str:
        """The model's name, stable over deploys."""
        ...

    async def complete(self, request: ModelRequest) -> Completion:
        """Make one model request. Safe to repeat: a completion has no effect until it is recorded.

        Raises:
            ModelUnavailable: Worth another try (408, 409, 429, 5xx, connection, time-out).
            ModelRejected: Final (any other 4xx, a request that cannot be built);
                `ContextWindowExceeded` if the conversation is too long.
        """
        ...


def examine(completion: Completion) -> Completion:
    """Return the completion with each call marked that must not be run, and why not.

    Nothing is repaired: half a list of commands is a valid list of other commands. If the
    completion was cut off, by whatever, no call of it is run, also none that looks complete.

    A completion without text and calls is told as ``empty``.

    The provider's state holds the arguments a second time. If they are too large, it is dropped,
    and the adapter sends back the text and the calls as they stand here.
    """
    cut_off = _CUT_OFF.get(completion.finish_reason)
    calls = [
        _examine_call(call, cut_off=cut_off, excess=index >= MAX_CALLS)
        for index, call in enumerate(completion.calls)
    ]
    too_large = any(
        call.problem is not None and len(dumps(given.arguments)) > MAX_ARGUMENTS
        for given, call in zip(completion.calls, calls, strict=True)
    )
    state = None if too_large else completion.provider_state
    reason = completion.finish_reason
    if reason in ("stop", "tool_calls") and not calls and not completion.text.strip():
        reason = "empty"
    return replace(completion, calls=calls, provider_state=state, finish_reason=reason)


def _examine_call(call: ToolCall, *, cut_off: str | None, excess: bool) -> ToolCall:
    problem: str | None = None
    if excess:
        problem = f"a message may hold {MAX_CALLS} calls at most"
    elif cut_off is not None:
        problem = cut_off
    else:
        try:
            arguments = parse(call.arguments or "{}")
            # The text travels with its white space, and as ASCII JSON, which may be longer.
            size = max(len(call.arguments), len(dumps(arguments)))
        except UnrepresentableValue as err:
            problem = scrub(f"the arguments are malformed or truncated: {err.message}", limit=300)
        else:
            if not isinstance(arguments, dict):
                problem = "the arguments are not a JSON object"
            else:
                problem = over_limit(call.name, size)
    if problem is None:
        return replace(call, arguments=call.arguments or "{}")
    # The arguments of a call that is not run need not travel whole.
    return replace(call, problem=problem, arguments=call.arguments[:2_000])


def over_limit(tool: str, size: int) -> str | None:
    """Return the problem of a call whose arguments have too many bytes of JSON; None if none."""
    if size <= MAX_ARGUMENTS:
        return None
    return (
        f"{scrub(tool, limit=64)}: the arguments have {size:,} bytes, "
        f"over {MAX_ARGUMENTS // 1024} KiB"
    )
