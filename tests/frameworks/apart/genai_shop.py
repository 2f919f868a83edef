"""A worker with an agent of Google's genai SDK, whose tools are own activities."""

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
    from commitline.tests.frameworks.apps import shop

OPTIONS: Any = {
    "start_to_close_timeout": timedelta(seconds=20),
    "heartbeat_timeout": timedelta(seconds=1),
}
CALLS = (
    ("charge_card", {"order_id": "4821", "cents": 4900}),
    ("send_mail", {"to": "ada@example.com"}),
)


@effect(Effect.IDEMPOTENT, key_ttl=timedelta(hours=24))
@activity.defn
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return shop.charge(order_id, cents, key=shop.key_of_call())


@effect(Effect.AT_MOST_ONCE)
@activity.defn
async def send_mail(to: str) -> str:
    """Send a mail."""
    return shop.mail(to, key=shop.key_of_call())


class Gemini(GeminiTestServer):
    """Calls the tools one after the other."""

    def _next(self) -> str:
        shop.count_model_call()
        at = json.dumps(self.requests[-1], default=str).count('"functionResponse"')
        return function_call_response(*CALLS[at]) if at < len(CALLS) else text_response("done")


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        tools: Any = [
            activity_as_tool(one, activity_config=OPTIONS) for one in (charge_card, send_mail)
        ]
        answer = await TemporalAsyncClient().models.generate_content(
            model="gemini", contents=prompt, config=types.GenerateContentConfig(tools=tools)
        )
        told = [
            json.dumps(part.function_response.response)
            for content in answer.automatic_function_calling_history or []
            for part in content.parts or []
            if part.function_response
        ]
        return " | ".join(told)


async def main() -> None:
    """Serve until the process is killed."""
    plugins: list[Any] = [Gemini([]).plugin()]
    if shop.GUARDED:
        plugins.append(LedgerPlugin())
    await shop.serve(Clerk, client=plugins, activities=[charge_card, send_mail])
