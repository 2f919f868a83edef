"""A worker with an agent of pydantic-ai whose tool asks for an approval itself; run as a module."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import (
        Agent,
        ApprovalRequired,
        DeferredToolRequests,
        DeferredToolResults,
        ModelMessage,
        ModelResponse,
        RunContext,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.apps import shop


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    shop.count_model_call()
    told = [
        part.model_response_str()
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if told:
        return ModelResponse(parts=[TextPart(told[0])])
    return ModelResponse(parts=[ToolCallPart("charge_card", {"order_id": "4821", "cents": 4900})])


agent: Agent[object, Any] = Agent(
    FunctionModel(_answer), name="clerk", output_type=[str, DeferredToolRequests]
)
_CHARGE = effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")


@agent.tool(metadata=_CHARGE.metadata)
async def charge_card(ctx: RunContext[object], order_id: str, cents: int) -> str:
    """Charge an order, once somebody has approved it."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired
    return shop.charge(order_id, cents, key=shop.key_of_call())


durable = TemporalAgent(
    agent,
    activity_config={
        "start_to_close_timeout": timedelta(seconds=20),
        "heartbeat_timeout": timedelta(seconds=1),
    },
)


@workflow.defn
class Clerk:
    """Charges after an approval of the framework's own, and says what it was told."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        asked: Any = await durable.run(prompt)
        approvals: Any = {call.tool_call_id: True for call in asked.output.approvals}
        resumed = await durable.run(
            message_history=asked.all_messages(),
            deferred_tool_results=DeferredToolResults(approvals=approvals),
        )
        return str(resumed.output)


async def main() -> None:
    """Serve until the process is killed."""
    plugins: list[Any] = [PydanticAIPlugin(), LedgerPlugin()]
    await shop.serve(Clerk, client=plugins, plugins=[AgentPlugin(durable)])


if __name__ == "__main__":
    asyncio.run(main())
