"""An agent of pydantic-ai, as you would write it without Commitline.

Two things are Commitline's: `LedgerPlugin`, last among the client's plugins, and an `effect` in the
metadata of each tool.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

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
    from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, TemporalAgent
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from commitline import Effect, current
    from commitline.integrations import LedgerPlugin, effect

CALLS = (
    ToolCallPart("charge_card", {"order_id": "4822", "cents": 4900}),
    ToolCallPart("send_mail", {"to": "ada@example.com"}),
)


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call both tools, one after the other, and tell what they answered."""
    told = [
        part.model_response_str()
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if len(told) == len(CALLS):
        return ModelResponse(parts=[TextPart("; ".join(told))])
    return ModelResponse(parts=[CALLS[len(told)]])


model = FunctionModel(scripted)  # a real provider: "openai:gpt-…", and its key in the environment
agent = Agent(model, name="clerk", instructions="You are a shop's clerk.")

CHARGE = effect(
    Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", key_ttl=timedelta(hours=24)
)


@agent.tool_plain(metadata=CHARGE.metadata)
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    # Your provider is here; it gets the key, and so charges once.
    return f"charged {cents} cents under the key {current().idempotency_key}"


@agent.tool_plain(metadata=effect(Effect.AT_MOST_ONCE).metadata)
async def send_mail(to: str) -> str:
    """Send the receipt."""
    return f"mailed {to}"


durable = TemporalAgent(agent, activity_config={"start_to_close_timeout": timedelta(seconds=30)})


@workflow.defn
class Clerk:
    """Charges and mails."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        return str((await durable.run(prompt)).output)


def plugins() -> list[Any]:
    """Return the client's plugins."""
    return [PydanticAIPlugin(), LedgerPlugin()]
