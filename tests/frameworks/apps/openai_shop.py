"""An agent of the OpenAI Agents integration, whose tools are own activities."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, RunConfig, Runner
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.tools import shop


@effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
@activity.defn
async def refund(order_id: str, result: str) -> str:
    """Refund what was charged."""
    return await shop.refund(order_id, result, key=shop.key_of_call())


@effect(
    Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-charge",
    key_ttl=timedelta(hours=24),
    compensate=refund,
)
@activity.defn
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return await shop.charge(order_id, cents, key=shop.key_of_call())


@effect(Effect.AT_MOST_ONCE, approve=shop.APPROVE)
@activity.defn
async def send_mail(to: str) -> str:
    """Send a mail."""
    return await shop.mail(to, key=shop.key_of_call())


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        tools: list[Any] = [
            activity_as_tool(one, **shop.OPTIONS) for one in (charge_card, send_mail)
        ]
        agent = Agent(name="clerk", instructions="", tools=tools)
        if prompt == "two agents":
            both = await asyncio.gather(*(_told(agent, name) for name in ("a", "b")))
            return shop.end(prompt, [one for told in both for one in told])
        return shop.end(prompt, await _told(agent, prompt))


async def _told(agent: Agent[Any], prompt: str) -> list[str]:
    """Run an agent; return what it was told of its calls."""
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(agent, input=prompt, run_config=config)
    items = [one for one in result.new_items if one.type == "tool_call_output_item"]
    return [str(one.output) for one in items]


class Model(TestModel):
    """Asks for what the script says."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **k: Any) -> Any:
        """Answer as a model does."""
        of = shop.whose(input if isinstance(input, str) else input[0]["content"])
        await shop.think(of)
        answered = sum(one_type(one) == "function_call_output" for one in input)
        asked: list[Any] = []
        for place, (name, given) in enumerate(shop.turn(of, answered)):
            response: Any = ResponseBuilders.tool_call(json.dumps(given), name)
            response.output[0].call_id = f"call_{answered + place}"
            asked.append(response)
        if not asked:
            return ResponseBuilders.output_message("done")
        asked[0].output = [one for response in asked for one in response.output]
        return asked[0]


def one_type(item: Any) -> str:
    """Return the type of an item of a model's input."""
    return item.get("type", "") if isinstance(item, dict) else getattr(item, "type", "")


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [
        OpenAIAgentsPlugin(
            model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=120)),
            model_provider=TestModelProvider(Model(lambda: ResponseBuilders.output_message(""))),
        )
    ]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN))
    return shop.App(Clerk, plugins, {"activities": [charge_card, send_mail, refund]})
