"""A worker with an agent of pydantic-ai."""

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
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.apps import shop

CALLS = (
    ToolCallPart("charge_card", {"order_id": "4821", "cents": 4900}),
    ToolCallPart("send_mail", {"to": "ada@example.com"}),
)


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    shop.count_model_call()
    told = [
        part.model_response_str()
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    if len(told) < len(CALLS):
        return ModelResponse(parts=[CALLS[len(told)]])
    return ModelResponse(parts=[TextPart(" | ".join(told))])


agent = Agent(FunctionModel(_answer), name="clerk")
_CHARGE = effect(
    Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", key_ttl=timedelta(hours=24)
)


@agent.tool_plain(metadata=_CHARGE.metadata)
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return shop.charge(order_id, cents, key=shop.key_of_call())


@agent.tool_plain(metadata=effect(Effect.AT_MOST_ONCE, approve=shop.APPROVE).metadata)
def send_mail(to: str) -> str:
    """Send a mail, in a thread."""
    return shop.mail(to, key=shop.key_of_call())


durable = TemporalAgent(
    agent,
    activity_config={
        "start_to_close_timeout": timedelta(seconds=20),
        "heartbeat_timeout": timedelta(seconds=1),
    },
)


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        return str((await durable.run(prompt)).output)


async def main() -> None:
    """Serve until the process is killed."""
    plugins: list[Any] = [PydanticAIPlugin()]
    if shop.GUARDED:
        plugins.append(LedgerPlugin())
    await shop.serve(Clerk, client=plugins, plugins=[AgentPlugin(durable)])
