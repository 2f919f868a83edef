"""A workflow that calls the tools of an MCP server by `temporalio-mcp`; it has no model."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import mcp
    from temporalio.mcp import MCPPlugin, TemporalMCPClient

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect, mcp_effects
    from commitline.tests.frameworks.apps.bank import KEY, bank
    from commitline.tests.frameworks.tools import shop

HINTS = bool(os.environ.get("HINTS"))


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        client = TemporalMCPClient("bank", activity_config=shop.OPTIONS)
        if HINTS:
            await client.list_tools()
            await client.call_tool("look_up", {"order_id": shop.NAME})
        told: list[str] = []
        while calls := shop.turn(shop.NAME, len(told)):
            results = await asyncio.gather(*(client.call_tool(*call) for call in calls))
            told += [str(getattr(result.content[0], "text", "")) for result in results]
        return shop.end(prompt, told)


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [MCPPlugin({"bank": lambda: mcp.Client(bank)})]
    if shop.GUARDED:
        charge = effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
        mail = effect(Effect.AT_MOST_ONCE, approve=shop.APPROVE)
        if HINTS:
            rules = mcp_effects(key_in_meta=KEY, trust_hints=True)
        else:
            named = {"charge_card": charge, "send_mail": mail}
            rules = mcp_effects(tools=named, key_in_meta=KEY)
        plugins.append(LedgerPlugin(**shop.PLUGIN, mcp={"bank": rules}))
    return shop.App(Clerk, plugins)
