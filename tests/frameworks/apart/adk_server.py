"""An agent of Google's ADK, whose tools are an MCP server's."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from google.adk.models import LLMRegistry
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
    from temporalio.google_adk import (
        GoogleAdkPlugin,
        TemporalMcpToolSet,
        TemporalMcpToolSetProvider,
    )

    from commitline.integrations import LedgerPlugin, mcp_effects
    from commitline.tests.frameworks.apart.adk_shop import ShopLlm, told
    from commitline.tests.frameworks.apart.bank import parameters
    from commitline.tests.frameworks.tools import shop


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        return shop.end(prompt, await told([TemporalMcpToolSet("bank", shop.SERVER_OPTIONS)]))


def _bank(argument: Any) -> McpToolset:
    stdio = StdioConnectionParams(server_params=parameters(), timeout=120)
    return McpToolset(connection_params=stdio)


def app() -> shop.App:
    """Return the worker."""
    LLMRegistry.register(ShopLlm)
    plugins: list[Any] = [GoogleAdkPlugin([TemporalMcpToolSetProvider("bank", _bank)])]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN, mcp={"bank": mcp_effects()}))
    return shop.App(Clerk, plugins)
