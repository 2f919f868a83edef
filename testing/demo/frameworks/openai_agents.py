"""The shop as an agent of the OpenAI Agents SDK, with its own package for Temporal."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, RunConfig, Runner
    from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporalio.openai_agents.testing import ResponseBuilders, TestModel, TestModelProvider
    from temporalio.openai_agents.workflow import activity_as_tool

    from ....integrations import effect
    from ....ledger import Effect
    from .shop import ATTEMPT, CALLS, INSTRUCTIONS, WORKFLOW, Shop, charge, last_text, mail


@effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", key_ttl=timedelta(hours=24))
@activity.defn
async def charge_card(order_id: str, amount_cents: int) -> str:
    """Charge the customer's card for an order."""
    return await charge(order_id, amount_cents)


@effect(Effect.AT_MOST_ONCE)
@activity.defn
async def send_receipt(order_id: str, to: str) -> str:
    """Send the receipt of an order by mail."""
    return await mail(order_id, to)


@workflow.defn(name=WORKFLOW)
class ShopAgent:
    """The agent."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Return the model's last text."""
        tools: list[Any] = [
            activity_as_tool(one, start_to_close_timeout=ATTEMPT)
            for one in (charge_card, send_receipt)
        ]
        agent = Agent(name="support", instructions=INSTRUCTIONS, tools=tools)
        config = RunConfig(tracing_disabled=True)
        return str((await Runner.run(agent, input=prompt, run_config=config)).final_output)


class _Scripted(TestModel):
    """Makes the calls one after the other, and says what it has read of them."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **k: Any) -> Any:
        """Answer by what the tools have answered so far."""
        told = [str(one["output"]) for one in input if "output" in one]
        if len(told) == len(CALLS):
            return ResponseBuilders.output_message(last_text(told))
        name, arguments = CALLS[len(told)]
        response: Any = ResponseBuilders.tool_call(json.dumps(arguments), name)
        response.output[0].call_id = f"call_{len(told)}"
        return response


_PROVIDER: Final = TestModelProvider(_Scripted(lambda: ResponseBuilders.output_message("")))

SHOP: Final = Shop(
    workflow=ShopAgent,
    plugins=[
        OpenAIAgentsPlugin(
            model_params=ModelActivityParameters(start_to_close_timeout=ATTEMPT),
            model_provider=_PROVIDER,
        )
    ],
    activities=[charge_card, send_receipt],
)
