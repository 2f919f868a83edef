"""Models of OpenAI, Anthropic, Google and the rest, through pydantic-ai's direct requests.

One `complete` is one HTTP request: Temporal owns the retries, so those of the provider's client
are switched off. Where pydantic-ai cannot switch them off (Bedrock, xAI and Hugging Face in
2.68), configure the client and pass the built pydantic-ai model instead of a string.

``openai:`` is the Responses API and ``openai-chat:`` the Chat Completions API, which is also what
most compatible servers speak.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from ..canonical import Json, dumps, parse, scrub
from ..errors import (
    ConfigurationError,
    ModelError,
    ModelRejected,
    ModelUnavailable,
    UnrepresentableValue,
)
from .conversation import Completion, FinishReason, Message, ToolCall, ToolResult, Usage
from .failures import ERROR_STATUSES, MAX_RETRY_AFTER, RETRYABLE_STATUSES
from .model import Model, ModelRequest

if TYPE_CHECKING:
    from pydantic_ai import messages as wire
    from pydantic_ai.models import Model as WireModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

_FINISH_REASONS: Final[dict[str | None, FinishReason]] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def resolve_model(model: str | Model) -> Model:
    """Return the model that a string such as ``openai:gpt-5-mini`` names, or the model given.

    Raises:
        ConfigurationError: A string was given and pydantic-ai is not installed.
    """
    return PydanticAIModel(model) if isinstance(model, str) else model


class PydanticAIModel:
    """A model that pydantic-ai can talk to; implements `Model`.

    One HTTP client serves all requests of an instance on one event loop. `aclose` closes it.

    Args:
        model_id: ``provider:model``, or a pydantic-ai model, which its owner closes.
        settings: pydantic-ai's model settings, except `max_retries`, which is 0.

    Raises:
        ConfigurationError: pydantic-ai is not installed.
    """

    def __init__(self, model_id: str | WireModel, *, settings: ModelSettings | None = None) -> None:
        if find_spec("pydantic_ai") is None:
            raise ConfigurationError(
                "this model needs pydantic-ai: pip install 'commitline[models]'"
            )
        self._model = model_id
        self._settings = settings
        self._built: WireModel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        """The model's id, ``provider:model``."""
        return self._model if isinstance(self._model, str) else self._model.model_id

    async def complete(self, request: ModelRequest) -> Completion:
        """Ask the provider once. Safe to repeat: nothing but tokens is spent.

        Raises:
            ModelUnavailable: HTTP 408, 409, 429 or 5xx, no connection, a time-out, or an answer
                that is not of the provider's protocol.
            ModelRejected: Any other status, a request or a client that cannot be built.
            ConfigurationError: The provider's own package is not installed.
        """
        from pydantic_ai.direct import model_request

        try:
            model = self._connect()
            response = await model_request(
                model,
                _messages_on_the_wire(request),
                model_settings=_without_retries(model, self._settings),
                model_request_parameters=_parameters(request),
            )
        except ModelError:
            raise
        except ImportError as err:
            raise ConfigurationError(f"{self.name}: {scrub(str(err))}") from err
        except Exception as err:
            raise _translate(err, self.name) from err
        return _completion(response)

    async def aclose(self) -> None:
        """Close the HTTP client, if this object made it. A second call does nothing."""
        built, self._built = self._built, None
        if built is not None and built is not self._model:
            # Leaving a pydantic-ai model closes the client of its provider.
            async with built:
                pass

    def _connect(self) -> WireModel:
        from pydantic_ai.models import infer_model

        # Connections belong to the event loop that opened them.
        loop = asyncio.get_running_loop()
        if self._built is None or loop is not self._loop:
            self._built = infer_model(self._model)
            self._loop = loop
        return self._built


# --- the request ---------------------------------------------------------------------------


def _without_retries(model: WireModel, settings: ModelSettings | None) -> ModelSettings:
    chosen: ModelSettings = {**settings} if settings else {}
    chosen["max_retries"] = 0
    # Models that ignore it would warn about it on every request.
    if "max_retries" in model.unsupported_settings:
        del chosen["max_retries"]
    return chosen


def _parameters(request: ModelRequest) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=_encodable(tool.description),
                parameters_json_schema=_encodable(tool.parameters),
            )
            for tool in request.tools
        ]
    )


def _messages_on_the_wire(request: ModelRequest) -> list[wire.ModelMessage]:
    from pydantic_ai import messages as wire

    history: list[wire.ModelMessage] = []
    taken: set[str] = set()
    unanswered: Iterator[str] = iter(())
    for index, message in enumerate(request.messages):
        if message.completion is not None:
            response = _response(message.completion)
            unanswered = iter(_set_unique_ids(response, index=index, taken=taken))
            # A provider refuses an assistant message that says nothing.
            if response.parts:
                history.append(response)
        else:
            history.append(wire.ModelRequest(parts=_request_parts(message, unanswered)))
    # pydantic-ai reads the instructions off the last request.
    requests = [item for item in history if isinstance(item, wire.ModelRequest)]
    if requests and request.instructions:
        requests[-1].instructions = _encodable(request.instructions)
    return history


def _request_parts(message: Message, unanswered: Iterator[str]) -> list[wire.ModelRequestPart]:
    from pydantic_ai import messages as wire

    if message.role == "user":
        return [wire.UserPromptPart(_encodable(message.text))]
    return [
        wire.ToolReturnPart(
            tool_name=result.name,
            content=_encodable(result.content),
            tool_call_id=_next_id(unanswered, result),
        )
        for result in message.results
    ]


def _next_id(unanswered: Iterator[str], result: ToolResult) -> str:
    call_id = next(unanswered, None)
    if call_id is None:
        raise ModelRejected(
            f"the result at position {scrub(result.position)} answers no call of the message before"
        )
    return call_id


def _response(completion: Completion) -> wire.ModelResponse:
    """Return what the provider said, as it said it where that was kept."""
    from pydantic_ai import messages as wire

    if completion.provider_state is None:
        parts: list[wire.ModelResponsePart] = []
        if completion.text:
            parts.append(wire.TextPart(_encodable(completion.text)))
        parts += [
            wire.ToolCallPart(call.name, call.arguments, call.id) for call in completion.calls
        ]
        response = wire.ModelResponse(parts=parts)
    else:
        state = _encodable(completion.provider_state)
        (restored,) = wire.ModelMessagesTypeAdapter.validate_python([state])
        if not isinstance(restored, wire.ModelResponse):
            raise ModelRejected("the stored provider state is not a response")
        response = restored
    for part in _calls(response):
        part.args = _sendable_arguments(part.args)
    return response


def _calls(response: wire.ModelResponse) -> list[wire.ToolCallPart]:
    from pydantic_ai import messages as wire

    return [part for part in response.parts if isinstance(part, wire.ToolCallPart)]


def _set_unique_ids(response: wire.ModelResponse, *, index: int, taken: set[str]) -> list[str]:
    """Give each call an id that no other call of the request has, and return them in order.

    Models reuse ``call_1`` on every turn, and send empty and duplicate ids; Anthropic and the
    Responses API want them unique over the whole conversation. The substitute comes from the
    position, so that it is the same in every later request and the prompt cache holds.
    """
    ids = []
    for number, part in enumerate(_calls(response)):
        if not part.tool_call_id or part.tool_call_id in taken:
            part.tool_call_id = f"call_{index}_{number}"
            while part.tool_call_id in taken:
                part.tool_call_id += "_"
        taken.add(part.tool_call_id)
        ids.append(part.tool_call_id)
    return ids


def _sendable_arguments(arguments: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return arguments that every provider accepts: an object, or what was said in an object.

    Malformed arguments come back to the model as it wrote them, under the key that pydantic-ai
    uses for it; it would let NaN and infinities through, which break the request.
    """
    if not arguments:
        return arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        value = parse(text)
        dumps(value)  # 1e999 is read as an infinity
    except UnrepresentableValue:
        value = None
    if not isinstance(value, dict):
        return {"INVALID_JSON": _encodable(text)}
    clean: dict[str, Any] = _encodable(value)
    return arguments if clean == value else clean


def _encodable(value: Json) -> Any:
    """Replace lone surrogates, which UTF-8 cannot hold; for the wire only."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


# --- the answer ----------------------------------------------------------------------------


def _completion(response: wire.ModelResponse) -> Completion:
    from pydantic_ai import messages as wire

    return Completion(
        text="".join(part.content for part in response.parts if isinstance(part, wire.TextPart)),
        calls=[
            ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=_raw(part.args))
            for part in _calls(response)
        ],
        finish_reason=_FINISH_REASONS.get(response.finish_reason, "other"),
        usage=Usage(
            input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens
        ),
        provider_state=_state(response),
    )


def _raw(arguments: str | dict[str, Any] | None) -> str:
    # NaN is written as it is: `examine` refuses it, and the model is told.
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _state(response: wire.ModelResponse) -> Json:
    """Return the response as plain JSON, or None where it has no such form.

    None keeps an answer that was paid for: its text and calls still go back on the next turn.
    Only a provider that insists on its reasoning items would refuse that, visibly.
    """
    from pydantic_ai import messages as wire

    try:
        (state,) = wire.ModelMessagesTypeAdapter.dump_python([response], mode="json")
        dumps(state)
    except (ValueError, UnrepresentableValue):  # pydantic's serialization errors are ValueErrors
        return None
    return state


# --- what went wrong -----------------------------------------------------------------------


def _translate(err: Exception, name: str) -> ModelError:
    """Say whether another try may help. Where there is a status code, it alone decides."""
    if isinstance(err, ExceptionGroup):  # a FallbackModel, all of whose models failed
        errors = [_translate(item, name) for item in err.exceptions if isinstance(item, Exception)]
        return next((item for item in errors if item.retryable), errors[0])

    message = f"{name}: {type(err).__name__}: {scrub(str(err))}"
    status = _status(err)
    if status is None:
        unavailable = _is_passing(err)
    else:
        unavailable = status in RETRYABLE_STATUSES
        if status not in ERROR_STATUSES:
            message = f"{name}: {status} is no status code of an HTTP error: {scrub(str(err))}"
    if unavailable:
        return ModelUnavailable(message, retry_after=_retry_after(err))
    return ModelRejected(message)


def _status(err: Exception) -> int | None:
    """Return the code that came with the answer; a number in the message is none."""
    for source in (err, err.__cause__):
        status = getattr(source, "status_code", None)
        if isinstance(status, int):
            return status
    return None


def _is_passing(err: Exception) -> bool:
    """Whether an error without a status code may be gone on the next try."""
    from pydantic_ai import exceptions as ai

    if isinstance(
        err, ai.ModelRequestRejectedError | ai.ModelQuotaExceededError | ai.ContentFilterError
    ):
        return False
    # The rest of these are connection errors, time-outs, and answers that are not of the
    # provider's protocol: a gateway's error page under status 200, a body that was cut off, a
    # field that the model garbled. Another request gets another answer, and tries are limited.
    if isinstance(err, ai.ModelAPIError | ai.UnexpectedModelBehavior | OSError):
        return True
    # What an SDK let through of its HTTP library. Everything else is a request that cannot be
    # built (a UserError, an unsupported part) or a bug, and would end the same way again.
    return any(
        base.__name__ == "TransportError" and base.__module__.partition(".")[0].startswith("httpx")
        for base in type(err).__mro__
    )


def _retry_after(err: Exception) -> timedelta | None:
    seconds = getattr(err, "retry_after", None)
    if not isinstance(seconds, int | float):
        return None
    return timedelta(seconds=min(max(seconds, 0), MAX_RETRY_AFTER.total_seconds()))
