"""An agent of Strands, whose tools are an MCP server's."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mcp import stdio_client
    from strands.tools.mcp import MCPClient
    from temporalio.strands_agents import StrandsPlugin, TemporalAgent, TemporalMCPClient

    from commitline.integrations import LedgerPlugin, mcp_effects
    from commitline.tests.frameworks.apart.bank import parameters
    from commitline.tests.frameworks.apart.strands_shop import Shop, told
    from commitline.tests.frameworks.tools import shop

BANK = TemporalMCPClient("bank", cache_tools=True, **shop.SERVER_OPTIONS)


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        agent = TemporalAgent(model="shop", tools=[BANK], **shop.MODEL_OPTIONS)
        await agent.invoke_async(prompt or "charge and mail")
        return shop.end(prompt, told(agent.messages))


def app() -> shop.App:
    """Return the worker."""
    servers = {"bank": lambda: MCPClient(lambda: stdio_client(parameters()), startup_timeout=120)}
    plugins: list[Any] = [StrandsPlugin(models={"shop": Shop}, mcp_clients=servers)]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN, mcp={"bank": mcp_effects()}))
    return shop.App(Clerk, plugins)
