"""An agent of pydantic-ai, whose tools are functions."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai import (
        Agent,
        ModelMessage,
        ModelResponse,
        ModelRetry,
        RetryPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.tools import shop


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as a model does."""
    of = shop.whose(str(getattr(messages[0].parts[0], "content", "")))
    await shop.think(of)
    calls = shop.turn(of, len(told(messages)))
    if not calls:
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart(name, given) for name, given in calls])


def told(messages: list[ModelMessage]) -> list[str]:
    """Return what an agent was told of its calls."""
    return [
        part.model_response() if isinstance(part, RetryPromptPart) else part.model_response_str()
        for message in messages
        for part in message.parts
        if isinstance(part, (ToolReturnPart, RetryPromptPart))
    ]


agent = Agent(FunctionModel(answer), name="clerk")
_CHARGE = effect(
    Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", key_ttl=timedelta(hours=24)
)


@agent.tool_plain(metadata=_CHARGE.metadata)
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    if cents > shop.TOO_MUCH:
        raise ModelRetry("too much")
    return await shop.charge(order_id, cents, key=shop.key_of_call())


@agent.tool_plain(metadata=effect(Effect.AT_MOST_ONCE, approve=shop.APPROVE).metadata)
def send_mail(to: str) -> str:
    """Send a mail, in a thread."""
    return shop.mail_in_thread(to, key=shop.key_of_call())


durable = TemporalAgent(agent, activity_config=shop.OPTIONS)


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        prompts = ("a", "b") if prompt == "two agents" else (prompt,)
        runs = await asyncio.gather(*(durable.run(one) for one in prompts))
        return shop.end(prompt, [one for run in runs for one in told(run.all_messages())])


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [PydanticAIPlugin()]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN))
    return shop.App(Clerk, plugins, {"plugins": [AgentPlugin(durable)]})
