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
import re
from collections import deque
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from ...canonical import Json, dumps, parse, scrub
from ...errors import (
    ConfigurationError,
    ModelError,
    ModelRejected,
    ModelUnavailable,
    UnrepresentableValue,
)
from ..contract.conversation import Completion, FinishReason, Message, ToolCall, ToolResult, Usage
from ..contract.retry_rules import ERROR_STATUSES, MAX_RETRY_AFTER, RETRYABLE_STATUSES
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

_ORIGIN: Final = "commitline"
"""The key of a stored response's metadata, which is never sent, that says who was asked."""

_PLAIN: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider takes as a name, and as an id unless it prescribes its own form."""

_MADE_HERE: Final = re.compile(r"c[0-9a-z]{8}|pyd_ai_.*", re.DOTALL)
"""Ids that no provider gave: `_place_id`'s, and what pydantic-ai puts where one is missing.

A provider may still repeat one that it was sent. Kept, it could be another call's.
"""

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


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
                _messages_on_the_wire(request, model),
                model_settings=_without_retries(model, self._settings),
                model_request_parameters=_parameters(request),
            )
        except ModelError:
            raise
        except ImportError as err:
            raise ConfigurationError(f"{self.name}: {scrub(str(err))}") from err
        except Exception as err:
            raise _translate(err, self.name) from err
        return _completion(response, model)

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


def _messages_on_the_wire(request: ModelRequest, model: WireModel) -> list[wire.ModelMessage]:
    """Return the conversation as the model's provider takes it, one result to each call.

    Raises:
        ModelRejected: A result without a call, or a call without a result. Providers refuse
            both, with messages that tell nobody which it was.
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
            unanswered = _set_ids(response, model, turn=turn, taken=taken)
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
        requests[-1].instructions = _encodable(request.instructions)
    return history


def _request_parts(message: Message, unanswered: deque[str]) -> list[wire.ModelRequestPart]:
    from pydantic_ai import messages as wire

    if message.role == "user":
        return [wire.UserPromptPart(_encodable(message.text))]
    return [
        wire.ToolReturnPart(
            tool_name=_sendable_name(result.name),
            content=_encodable(result.content),
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
    """Return what was said: verbatim if this model said it, else its text and its calls alone.

    Another's reasoning, signatures and item ids are its own. pydantic-ai would show the reasoning
    as text, and send all of it to another model or endpoint that bears the same provider's name.
    """
    from pydantic_ai import messages as wire

    if _is_own(completion.provider_state, model):
        state = _encodable(completion.provider_state)
        (restored,) = wire.ModelMessagesTypeAdapter.validate_python([state])
        if not isinstance(restored, wire.ModelResponse):
            raise ModelRejected("the stored provider state is not a response")
        response = restored
    else:
        parts: list[wire.ModelResponsePart] = []
        if completion.text:
            parts.append(wire.TextPart(_encodable(completion.text)))
        parts += [
            wire.ToolCallPart(call.name, call.arguments, call.id) for call in completion.calls
        ]
        response = wire.ModelResponse(parts=parts)
    for part in _calls(response):
        part.tool_name = _sendable_name(part.tool_name)
        part.args = _sendable_arguments(part.args)
    return response


def _is_own(state: Json, model: WireModel) -> bool:
    metadata = state.get("metadata") if isinstance(state, dict) else None
    return isinstance(metadata, dict) and metadata.get(_ORIGIN) == _header(model)


def _header(model: WireModel) -> Json:
    """Say who is asked. The endpoint alone would not do: a gateway's stands for many providers."""
    return {"model": model.model_id, "base_url": model.base_url}


def _calls(response: wire.ModelResponse) -> list[wire.ToolCallPart]:
    from pydantic_ai import messages as wire

    return [part for part in response.parts if isinstance(part, wire.ToolCallPart)]


def _set_ids(
    response: wire.ModelResponse, model: WireModel, *, turn: int, taken: set[str]
) -> deque[str]:
    """Give each call an id that its provider takes and no other call has; return them in order.

    Models reuse ``call_1`` on every turn, and send empty and duplicate ids; Mistral takes nine
    letters and digits only, others 64 characters at most. So an id is kept only where this very
    provider gave it; the rest are made of the call's place, which no later request changes: the
    prompt cache holds.
    """
    # Of the models in a FallbackModel, another may be asked this time: there nothing is kept.
    keeps = (response.provider_name, response.provider_url) == (model.system, model.base_url)
    ids: deque[str] = deque()
    for number, part in enumerate(_calls(response)):
        if not keeps or part.tool_call_id in taken or not _is_providers(part.tool_call_id):
            part.tool_call_id = _place_id(turn, number)
            part.id = None  # what it is to the provider goes with the id that it gave
        taken.add(part.tool_call_id)
        ids.append(part.tool_call_id)
    return ids


def _is_providers(call_id: str) -> bool:
    return _PLAIN.fullmatch(call_id) is not None and _MADE_HERE.fullmatch(call_id) is None


def _place_id(turn: int, number: int) -> str:
    """Return nine letters and digits that no other place has: four digits for each number.

    A million calls fit, far more than a conversation can hold.
    """
    rest = turn * 36**4 + number
    digits = ""
    for _ in range(8):
        rest, digit = divmod(rest, 36)
        digits = _DIGITS[digit] + digits
    return f"c{digits}"


def _sendable_name(name: str) -> str:
    """Return a name that every provider takes: models call tools that nobody could define."""
    return name if _PLAIN.fullmatch(name) else re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"


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


def _completion(response: wire.ModelResponse, model: WireModel) -> Completion:
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
        provider_state=_state(response, model),
    )


def _raw(arguments: str | dict[str, Any] | None) -> str:
    # NaN is written as it is: `examine` refuses it, and the model is told.
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})


def _state(response: wire.ModelResponse, model: WireModel) -> Json:
    """Return the response as plain JSON with its origin, or None where it has no such form.

    None keeps an answer that was paid for: its text and calls still go back on the next turn.
    Only a provider that insists on its reasoning items would refuse that, visibly.
    """
    from pydantic_ai import messages as wire

    try:
        (state,) = wire.ModelMessagesTypeAdapter.dump_python([response], mode="json")
        state["metadata"] = {**(state["metadata"] or {}), _ORIGIN: _header(model)}
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
