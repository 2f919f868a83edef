"""The shop as an agent of pydantic-ai, with its own durable execution by Temporal."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import (
        Agent,
        ModelMessage,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.durable_exec.temporal import (
        AgentPlugin,
        PydanticAIPlugin,
        TemporalDurability,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from ....integrations import effect
    from ....ledger import Effect
    from .shop import ATTEMPT, CALLS, INSTRUCTIONS, WORKFLOW, Shop, charge, last_text, mail


def _scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Make the calls one after the other, and say what was read of them."""
    told = [
        part.model_response_str()
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if len(told) == len(CALLS):
        return ModelResponse(parts=[TextPart(last_text(told))])
    return ModelResponse(parts=[ToolCallPart(*CALLS[len(told)])])


agent: Final = Agent(
    FunctionModel(_scripted),
    name="support",
    instructions=INSTRUCTIONS,
    capabilities=[TemporalDurability(activity_config={"start_to_close_timeout": ATTEMPT})],
)
_CHARGE: Final = effect(
    Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", key_ttl=timedelta(hours=24)
)


@agent.tool_plain(metadata=_CHARGE.metadata)
async def charge_card(order_id: str, amount_cents: int) -> str:
    """Charge the customer's card for an order."""
    return await charge(order_id, amount_cents)


@agent.tool_plain(metadata=effect(Effect.AT_MOST_ONCE).metadata)
async def send_receipt(order_id: str, to: str) -> str:
    """Send the receipt of an order by mail."""
    return await mail(order_id, to)


@workflow.defn(name=WORKFLOW)
class ShopAgent:
    """The agent."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Return the model's last text."""
        return (await agent.run(prompt)).output


SHOP: Final = Shop(
    workflow=ShopAgent, plugins=[PydanticAIPlugin()], worker_plugins=[AgentPlugin(agent)]
)
