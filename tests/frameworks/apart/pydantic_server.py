"""An agent of pydantic-ai whose tools are an MCP server's."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalAgent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.function import FunctionModel

    from commitline.integrations import LedgerPlugin, mcp_effects
    from commitline.tests.frameworks.apart.bank import parameters
    from commitline.tests.frameworks.apps.pydantic_shop import answer, told
    from commitline.tests.frameworks.tools import shop

_SERVER = parameters()
bank: Any = MCPToolset(
    StdioTransport(_SERVER.command, _SERVER.args, env=_SERVER.env),
    id="bank",
    read_timeout=120,
    init_timeout=120,
)
agent = Agent(FunctionModel(answer), name="clerk", toolsets=[bank])
durable = TemporalAgent(agent, activity_config=shop.SERVER_OPTIONS)


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        answered = await durable.run(prompt or "charge and mail")
        return shop.end(prompt, told(answered.all_messages()))


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [PydanticAIPlugin()]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN, mcp={"bank": mcp_effects()}))
    return shop.App(Clerk, plugins, {"plugins": [AgentPlugin(durable)]})
