"""A Deep Agent: an own activity charges, a tool of `tool_as_activity` mails."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from temporalio.deepagents import DeepAgentsPlugin
    from temporalio.deepagents._tools import activity_as_tool, tool_as_activity
    from temporalio.deepagents.testing import FakeModel
    from temporalio.deepagents.workflow import create_temporal_deep_agent

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.tools import shop

TIMEOUT = shop.OPTIONS["start_to_close_timeout"]
OTHERS = {name: one for name, one in shop.OPTIONS.items() if name != "start_to_close_timeout"}


@effect(Effect.IDEMPOTENT, key_ttl=timedelta(hours=24))
@activity.defn
async def charge_card(order_id: str) -> str:
    """Charge an order: `activity_as_tool` gives an activity one argument."""
    return await shop.charge(order_id, 4900, key=shop.key_of_call())


async def send_mail(to: str) -> str:
    """Send a mail."""
    return await shop.mail(to, key=shop.key_of_call())


MAIL = tool_as_activity(send_mail, start_to_close_timeout=TIMEOUT, activity_options=OTHERS)


class Shop(FakeModel):
    """Calls the tools one after the other."""

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        shop.count_model_call()
        answered = sum(isinstance(one, ToolMessage) for one in messages)
        calls = [
            {"name": name, "args": _one(given), "id": f"call-{answered + place}"}
            for place, (name, given) in enumerate(shop.turn(shop.NAME, answered))
        ]
        answer = AIMessage("", tool_calls=calls) if calls else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _one(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "cents"}


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        agent = create_temporal_deep_agent(
            model="shop",
            tools=[activity_as_tool(charge_card, start_to_close_timeout=TIMEOUT), MAIL],
            activity_options={"start_to_close_timeout": TIMEOUT},
        )
        state = await agent.ainvoke({"messages": [("user", prompt)]})
        told = [str(one.content) for one in state["messages"] if isinstance(one, ToolMessage)]
        return shop.end(prompt, told)


def app() -> shop.App:
    """Return the worker."""
    model: Any = Shop
    plugins: list[Any] = [DeepAgentsPlugin(model_provider=lambda name: model(["unused"]))]
    if shop.GUARDED:
        plugins.append(
            LedgerPlugin(**shop.PLUGIN, effects={"send_mail": effect(Effect.AT_MOST_ONCE)})
        )
    return shop.App(Clerk, plugins, {"activities": [charge_card]})
