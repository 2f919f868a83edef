"""An agent of Strands, whose tools are own activities."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from strands.models import Model
    from temporalio.strands_agents import StrandsPlugin, TemporalAgent
    from temporalio.strands_agents.workflow import activity_as_tool

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect
    from commitline.tests.frameworks.tools import shop


@effect(Effect.IDEMPOTENT, key_ttl=timedelta(hours=24))
@activity.defn
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return await shop.charge(order_id, cents, key=shop.key_of_call())


@effect(Effect.AT_MOST_ONCE)
@activity.defn
async def send_mail(to: str) -> str:
    """Send a mail."""
    return await shop.mail(to, key=shop.key_of_call())


def told(messages: Any) -> list[str]:
    """Return what an agent was told of its calls."""
    return [
        str(block["toolResult"]["content"][0]["text"])
        for message in messages
        for block in message["content"]
        if "toolResult" in block
    ]


class Shop(Model):
    """Calls the tools one after the other."""

    def update_config(self, **model_config: Any) -> None:
        """There is nothing to configure."""

    def get_config(self) -> Any:
        """See above."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Nobody asks for it."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Answer as a model does."""
        shop.count_model_call()
        calls = shop.turn(shop.NAME, len(told(messages)))
        yield {"messageStart": {"role": "assistant"}}
        for name, given in calls:
            use = {"name": name, "toolUseId": f"use-{uuid.uuid4().hex}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
            yield {"contentBlockStop": {}}
        if not calls:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        tools: Any = [activity_as_tool(one, **shop.OPTIONS) for one in (charge_card, send_mail)]
        agent = TemporalAgent(model="shop", tools=tools, **shop.MODEL_OPTIONS)
        await agent.invoke_async(prompt or "charge and mail")
        return shop.end(prompt, told(agent.messages))


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [StrandsPlugin(models={"shop": Shop})]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN))
    return shop.App(Clerk, plugins, {"activities": [charge_card, send_mail]})
