"""A `ModelRequest` as a request of pydantic-ai: its tools, its settings, its messages."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...canonical import scrub
from ...errors import ModelRejected
from ..contract.conversation import Completion, Message, ToolResult
from .call_ids import set_call_ids, tool_calls_of
from .model import ModelRequest
from .provider_state import is_own
from .sendable import encodable, sendable_arguments, sendable_name

if TYPE_CHECKING:
    from pydantic_ai import messages as wire
    from pydantic_ai.models import Model as WireModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings


def settings_without_retries(model: WireModel, settings: ModelSettings | None) -> ModelSettings:
    """Return the settings of a request, with the retries of the provider's client switched off."""
    chosen: ModelSettings = {**settings} if settings else {}
    chosen["max_retries"] = 0
    # Models that ignore it would warn about it on every request.
    if "max_retries" in model.unsupported_settings:
        del chosen["max_retries"]
    return chosen


def request_parameters(request: ModelRequest) -> ModelRequestParameters:
    """Return the tools of a request."""
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=encodable(tool.description),
                parameters_json_schema=encodable(tool.parameters),
            )
            for tool in request.tools
        ]
    )


def messages_of(request: ModelRequest, model: WireModel) -> list[wire.ModelMessage]:
    """Return the conversation as the model's provider takes it, with one result for each call.

    Raises:
        ModelRejected: A result has no call, or a call has no result. Providers refuse both, with
            messages that do not say which call it was.
    """
    from pydantic_ai import messages as wire

    history: list[wire.ModelMessage] = []
    taken: set[str] = set()
    unanswered: deque[str] = deque()
    turn = 0
    for message in request.messages:
        if message.role != "tool":
            _refuse_unanswered(unanswered, turn)
        if message.completion is not None:
            response = _response(message.completion, model)
            unanswered = set_call_ids(response, model, turn=turn, taken=taken)
            turn += 1
            # A provider refuses an assistant message that says nothing.
            if response.parts:
                history.append(response)
        else:
            history.append(wire.ModelRequest(parts=_request_parts(message, unanswered)))
    _refuse_unanswered(unanswered, turn)
    # pydantic-ai reads the instructions off the last request.
    requests = [item for item in history if isinstance(item, wire.ModelRequest)]
    if requests and request.instructions:
        requests[-1].instructions = encodable(request.instructions)
    return history


def _request_parts(message: Message, unanswered: deque[str]) -> list[wire.ModelRequestPart]:
    from pydantic_ai import messages as wire

    if message.role == "user":
        return [wire.UserPromptPart(encodable(message.text))]
    return [
        wire.ToolReturnPart(
            tool_name=sendable_name(result.name),
            content=encodable(result.content),
            tool_call_id=_next_id(unanswered, result),
        )
        for result in message.results
    ]


def _next_id(unanswered: deque[str], result: ToolResult) -> str:
    if not unanswered:
        raise ModelRejected(
            f"the result at position {scrub(result.position)} answers no call of the message before"
        )
    return unanswered.popleft()


def _refuse_unanswered(unanswered: deque[str], turn: int) -> None:
    if unanswered:
        raise ModelRejected(
            f"{len(unanswered)} calls of the model's message {turn} have no result after it"
        )


def _response(completion: Completion, model: WireModel) -> wire.ModelResponse:
    """Return a completion as a response: whole if this model gave it, else its text and calls.

    Reasoning, signatures and item ids of one model are of no use to another. pydantic-ai would
    show the reasoning as text, and send all of it to any model of a provider of the same name.
    """
    from pydantic_ai import messages as wire

    if is_own(completion.provider_state, model):
        state = encodable(completion.provider_state)
        (restored,) = wire.ModelMessagesTypeAdapter.validate_python([state])
        if not isinstance(restored, wire.ModelResponse):
            raise ModelRejected("the stored provider state is not a response")
        response = restored
    else:
        parts: list[wire.ModelResponsePart] = []
        if completion.text:
            parts.append(wire.TextPart(encodable(completion.text)))
        parts += [
            wire.ToolCallPart(call.name, call.arguments, call.id) for call in completion.calls
        ]
        response = wire.ModelResponse(parts=parts)
    for part in tool_calls_of(response):
        part.tool_name = sendable_name(part.tool_name)
        part.args = sendable_arguments(part.args)
    return response
