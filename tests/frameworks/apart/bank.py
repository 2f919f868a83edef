"""The MCP server of `apps.bank` by MCP's first SDK, whose calls carry no key."""

from __future__ import annotations

import os
import sys
from typing import Final

from mcp import StdioServerParameters
from mcp.server.fastmcp import FastMCP

from commitline.tests.frameworks.tools import shop

_MODULE: Final = "commitline.tests.frameworks.apart.bank"
bank = FastMCP("bank")


@bank.tool()
async def charge_card(order_id: str, cents: int) -> str:
    """Charge an order."""
    return await shop.charge(order_id, cents, key=None)


@bank.tool()
async def send_mail(to: str) -> str:
    """Send a mail."""
    return await shop.mail(to, key=None)


def parameters() -> StdioServerParameters:
    """Return how it is started."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", _MODULE], env={**os.environ, "IS_SERVER": "1"}
    )


if __name__ == "__main__":
    bank.run()
