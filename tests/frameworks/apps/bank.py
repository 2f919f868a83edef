"""An MCP server that charges and mails, in its worker's process or over stdio."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations

from commitline.tests.frameworks.tools import shop

KEY: Final = "com.example/idempotency-key"
COMMAND: Final = (sys.executable, "-m", "commitline.tests.frameworks.apps.bank")
bank = MCPServer("bank")


@bank.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look_up(order_id: str) -> str:
    """Look an order up."""
    return f"{order_id}: 49.00"


@bank.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
async def charge_card(order_id: str, cents: int, ctx: Context[Any]) -> str:
    """Charge an order."""
    meta: dict[str, Any] = dict(ctx.request_context.meta or {})
    return await shop.charge(order_id, cents, key=meta.get(KEY))


@bank.tool()
async def send_mail(to: str) -> str:
    """Send a mail."""
    return await shop.mail(to, key=None)


def environment() -> Mapping[str, str]:
    """Return that of the server's process."""
    return {**os.environ, "IS_SERVER": "1"}


if __name__ == "__main__":
    bank.run()
