"""Models of OpenAI, Anthropic, Google and the rest, through pydantic-ai's direct requests.

One `complete` is one HTTP request: Temporal retries, so the retries of the provider's client are
switched off. Where pydantic-ai cannot switch them off (Bedrock, xAI and Hugging Face in
2.68), configure the client and pass the built pydantic-ai model instead of a string.

``openai:`` is the Responses API and ``openai-chat:`` the Chat Completions API, which is also what
most compatible servers speak.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...canonical import scrub
from ...errors import ConfigurationError, ModelError
from ...redaction import redact
from ..contract.conversation import Completion
from .model import Model, ModelRequest
from .pydantic_ai_answer import completion_of
from .pydantic_ai_failure import model_error
from .pydantic_ai_request import messages_of, request_parameters, settings_without_retries

if TYPE_CHECKING:
    from pydantic_ai.models import Model as WireModel
    from pydantic_ai.settings import ModelSettings


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

    def check(self) -> None:
        """Look whether the model could be asked from here. It sends nothing.

        Raises:
            ConfigurationError: The provider's package or its key is missing, or there is no such
                provider; the message names it.
        """
        from pydantic_ai.models import infer_model

        try:
            infer_model(self._model)
        except Exception as err:
            raise ConfigurationError(f"{self.name}: {scrub(redact(str(err)), limit=300)}") from err

    async def complete(self, request: ModelRequest) -> Completion:
        """Ask the provider once. Safe to repeat: nothing but tokens is spent.

        Raises:
            ModelUnavailable: HTTP 408, 409, 429 or 5xx, no connection, a time-out, or an answer
                that is not of the provider's protocol.
            ContextWindowExceeded: The conversation is too long for the model.
            ModelRejected: Any other status, a request or a client that cannot be built.
            ConfigurationError: The provider's own package is not installed.
        """
        from pydantic_ai.direct import model_request

        try:
            model = self._connect()
            response = await model_request(
                model,
                messages_of(request, model),
                model_settings=settings_without_retries(model, self._settings),
                model_request_parameters=request_parameters(request),
            )
        except ModelError:
            raise
        except ImportError as err:
            raise ConfigurationError(f"{self.name}: {scrub(redact(str(err)))}") from err
        except Exception as err:
            raise model_error(err, self.name) from None  # a failure keeps its causes' text
        return completion_of(response, model)

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


# --- the answer ----------------------------------------------------------------------------


# --- what went wrong -----------------------------------------------------------------------
