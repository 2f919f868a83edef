"""An agent of Google's ADK, whose tools are own activities."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from google.adk.agents import LlmAgent
    from google.adk.models import BaseLlm, LLMRegistry
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types
    from temporalio.google_adk import GoogleAdkPlugin, TemporalModel
    from temporalio.google_adk.workflow import activity_as_tool

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.tools import shop


@effect(Effect.IDEMPOTENT, key_ttl=timedelta(hours=24))
@activity.defn
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return await shop.charge(order_id, cents, key=shop.key_of_call())


@effect(Effect.AT_MOST_ONCE)
@activity.defn
async def send_mail(to: str) -> str:
    """Send a mail."""
    return await shop.mail(to, key=shop.key_of_call())


class ShopLlm(BaseLlm):
    """Calls the tools one after the other."""

    @classmethod
    def supported_models(cls) -> list[str]:
        """Return its one name."""
        return ["shop-model"]

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer as a model does."""
        shop.count_model_call()
        parts = [part for content in llm_request.contents for part in content.parts or []]
        answered = sum(part.function_response is not None for part in parts)
        asked = [
            types.Part(function_call=types.FunctionCall(name=name, args=given))
            for name, given in shop.turn(shop.NAME, answered)
        ] or [types.Part(text="done")]
        yield LlmResponse(content=types.Content(role="model", parts=asked))


async def told(tools: list[Any]) -> list[str]:
    """Run an agent with these tools; return what it was told of its calls."""
    model = TemporalModel("shop-model", activity_config=shop.MODEL_OPTIONS)
    runner = InMemoryRunner(agent=LlmAgent(name="clerk", model=model, tools=tools), app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="ada")
    said = types.Content(role="user", parts=[types.Part(text="charge and mail")])
    found: list[str] = []
    async for event in runner.run_async(user_id="ada", session_id=session.id, new_message=said):
        parts = event.content.parts if event.content else None
        found += [
            json.dumps(part.function_response.response)
            for part in parts or []
            if part.function_response
        ]
    return found


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        tools: Any = [activity_as_tool(one, **shop.OPTIONS) for one in (charge_card, send_mail)]
        return shop.end(prompt, await told(tools))


def app() -> shop.App:
    """Return the worker."""
    LLMRegistry.register(ShopLlm)
    plugins: list[Any] = [GoogleAdkPlugin()]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN))
    return shop.App(Clerk, plugins, {"activities": [charge_card, send_mail]})
