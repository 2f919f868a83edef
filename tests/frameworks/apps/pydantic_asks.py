"""An agent of pydantic-ai whose tool asks for an approval itself."""

from __future__ import annotations

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
    from commitline.tests.frameworks.tools import shop


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
    return ModelResponse(
        parts=[ToolCallPart("charge_card", {"order_id": shop.NAME, "cents": 4900})]
    )


agent: Agent[object, Any] = Agent(
    FunctionModel(_answer), name="clerk", output_type=[str, DeferredToolRequests]
)
_CHARGE = effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")


@agent.tool(metadata=_CHARGE.metadata)
async def charge_card(ctx: RunContext[object], order_id: str, cents: int) -> str:
    """Charge an order, once somebody has approved it."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired
    return await shop.charge(order_id, cents, key=shop.key_of_call())


durable = TemporalAgent(agent, activity_config=shop.OPTIONS)


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


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [PydanticAIPlugin(), LedgerPlugin(**shop.PLUGIN)]
    return shop.App(Clerk, plugins, {"plugins": [AgentPlugin(durable)]})
