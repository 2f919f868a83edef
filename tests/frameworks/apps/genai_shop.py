"""An agent of Google's genai SDK, whose tools are own activities."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from google.genai import types
    from temporalio.google_genai import TemporalAsyncClient
    from temporalio.google_genai.testing import (
        GeminiTestServer,
        function_call_response,
        text_response,
    )
    from temporalio.google_genai.workflow import activity_as_tool

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


class Gemini(GeminiTestServer):
    """Calls the tools one after the other."""

    def _next(self) -> str:
        shop.count_model_call()
        answered = json.dumps(self.requests[-1], default=str).count('"functionResponse"')
        calls = shop.turn(shop.NAME, answered)
        return function_call_response(*calls[0]) if calls else text_response("done")


async def told(tools: list[Any]) -> list[str]:
    """Run an agent with these tools; return what it was told of its calls."""
    answer = await TemporalAsyncClient().models.generate_content(
        model="gemini",
        contents="charge and mail",
        config=types.GenerateContentConfig(tools=tools),
    )
    return [
        json.dumps(part.function_response.response, default=str)
        for content in answer.automatic_function_calling_history or []
        for part in content.parts or []
        if part.function_response
    ]


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        tools: Any = [
            activity_as_tool(one, activity_config=shop.OPTIONS) for one in (charge_card, send_mail)
        ]
        return shop.end(prompt, await told(tools))


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [Gemini([]).plugin()]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN))
    return shop.App(Clerk, plugins, {"activities": [charge_card, send_mail]})
