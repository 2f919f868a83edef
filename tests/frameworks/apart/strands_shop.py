"""A worker with an agent of Strands: an own activity charges, an MCP server mails."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from mcp import StdioServerParameters, stdio_client
    from strands.models import Model
    from strands.tools.mcp import MCPClient
    from temporalio.strands_agents import StrandsPlugin, TemporalAgent, TemporalMCPClient
    from temporalio.strands_agents.workflow import activity_as_tool

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect, mcp_effects
    from commitline.tests.frameworks.apps import shop

OPTIONS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(seconds=20),
    "heartbeat_timeout": timedelta(seconds=1),
}
CALLS = (
    ("charge_card", {"order_id": "4821", "cents": 4900}),
    ("send_mail", {"to": "ada@example.com"}),
)
POST = TemporalMCPClient("post", cache_tools=True, **OPTIONS)


@effect(Effect.IDEMPOTENT, key_ttl=timedelta(hours=24))
@activity.defn
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return shop.charge(order_id, cents, key=shop.key_of_call())


def _told(messages: Any) -> list[Any]:
    return [
        block["toolResult"]
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
        at = len(_told(messages))
        yield {"messageStart": {"role": "assistant"}}
        if at < len(CALLS):
            name, given = CALLS[at]
            use = {"name": name, "toolUseId": f"use-{workflow_free_id()}"}
            yield {"contentBlockStart": {"start": {"toolUse": use}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if at < len(CALLS) else "end_turn"}}


def workflow_free_id() -> str:
    """Return an id as a model makes one: another one each time."""
    import uuid

    return uuid.uuid4().hex


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        agent = TemporalAgent(
            model="shop", tools=[activity_as_tool(charge_card, **OPTIONS), POST], **OPTIONS
        )
        await agent.invoke_async(prompt)
        return " | ".join(one["content"][0]["text"] for one in _told(agent.messages))


def _post() -> MCPClient:
    server = [sys.executable, "-m", "commitline.tests.frameworks.apart.post_server"]
    import os

    return MCPClient(
        lambda: stdio_client(
            StdioServerParameters(command=server[0], args=server[1:], env=dict(os.environ))
        )
    )


async def main() -> None:
    """Serve until the process is killed."""
    plugins: list[Any] = [StrandsPlugin(models={"shop": Shop}, mcp_clients={"post": _post})]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(mcp={"post": mcp_effects()}))
    await shop.serve(Clerk, client=plugins, activities=[charge_card])
