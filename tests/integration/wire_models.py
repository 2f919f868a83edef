"""The providers' real clients, each against a server of ours.

They are imported when the first is made: they are four thousand modules, and each process of
pytest-xdist imports every file of tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitline.testing.openai_server import OpenAIServer

if TYPE_CHECKING:
    from pydantic_ai.models import Model


def wire_model(kind: str, server: OpenAIServer, name: str = "m") -> Model:
    """Make a client of ``openai``, ``anthropic`` or ``google``, or of OpenAI's older API."""
    match kind:
        case "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            anthropic = AnthropicProvider(base_url=server.url, api_key="none")
            return AnthropicModel(name, provider=anthropic)
        case "google":
            from pydantic_ai.models.google import GoogleModel
            from pydantic_ai.providers.google import GoogleProvider

            return GoogleModel(name, provider=GoogleProvider(base_url=server.url, api_key="none"))
        case _:
            from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
            from pydantic_ai.providers.openai import OpenAIProvider

            openai = OpenAIProvider(base_url=server.base_url, api_key="none")
            made = OpenAIResponsesModel if kind == "openai" else OpenAIChatModel
            return made(name, provider=openai)
