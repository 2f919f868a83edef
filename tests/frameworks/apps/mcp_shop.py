"""A worker with an MCP server's tools in a workflow of `temporalio-mcp`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import mcp
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context
    from mcp.types import ToolAnnotations
    from temporalio.mcp import MCPPlugin, TemporalMCPClient

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect, mcp_effects
    from commitline.tests.frameworks.apps import shop

HINTS = bool(os.environ.get("HINTS"))
KEY = "com.example/idempotency-key"
bank = MCPServer("bank")


@bank.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look_up(order_id: str) -> str:
    """Look an order up."""
    return f"{order_id}: 49.00"


@bank.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
async def charge_card(order_id: str, cents: int, ctx: Context[Any]) -> str:
    """Charge an order."""
    meta: dict[str, Any] = dict(ctx.request_context.meta or {})
    return shop.charge(order_id, cents, key=meta.get(KEY))


@bank.tool()
async def send_mail(to: str) -> str:
    """Send a mail."""
    return shop.mail(to, key=None)


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        client = TemporalMCPClient(
            "bank", activity_config={"heartbeat_timeout": timedelta(seconds=1)}
        )
        if HINTS:
            await client.list_tools()
            await client.call_tool("look_up", {"order_id": "4821"})
        results = [
            await client.call_tool("charge_card", {"order_id": "4821", "cents": 4900}),
            await client.call_tool("send_mail", {"to": "ada@example.com"}),
        ]
        return " | ".join(str(getattr(result.content[0], "text", "")) for result in results)


async def main() -> None:
    """Serve until the process is killed."""
    plugins: list[Any] = [MCPPlugin({"bank": lambda: mcp.Client(bank)})]
    if shop.GUARDED:
        charge = effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
        mail = effect(Effect.AT_MOST_ONCE, approve=shop.APPROVE)
        if HINTS:
            rules = mcp_effects(key_in_meta=KEY, trust_hints=True)
        else:
            named = {"charge_card": charge, "send_mail": mail}
            rules = mcp_effects(tools=named, key_in_meta=KEY)
        plugins.append(LedgerPlugin(mcp={"bank": rules}))
    await shop.serve(Clerk, client=plugins)
