"""An agent of the OpenAI Agents integration whose tools are an MCP server's.

``openai_server`` is the integration's way of today; ``openai_server@stateless`` and
``openai_server@stateful`` are those that it has deprecated.
"""

from __future__ import annotations

import warnings
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agents import Agent, RunConfig, Runner
    from agents.mcp import MCPServerStdio
    from temporalio.openai_agents import (
        ModelActivityParameters,
        OpenAIAgentsPlugin,
        StatefulMCPServerProvider,
        StatelessMCPServerProvider,
    )
    from temporalio.openai_agents.testing import ResponseBuilders, TestModelProvider
    from temporalio.openai_agents.workflow import (
        stateful_mcp_server,
        stateless_mcp_server,
        temporal_mcp_server,
    )

    from commitline import Effect
    from commitline.integrations import LedgerPlugin, effect, mcp_effects
    from commitline.tests.frameworks.apps.bank import COMMAND, KEY, environment
    from commitline.tests.frameworks.apps.openai_shop import Model
    from commitline.tests.frameworks.tools import shop

KIND = shop.NAME.partition("@")[2]
_STARTS = timedelta(seconds=10)
warnings.simplefilter("ignore", DeprecationWarning)


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        config = RunConfig(tracing_disabled=True)
        async with AsyncExitStack() as stack:
            if KIND == "stateful":
                options: Any = {**shop.SERVER_OPTIONS, "schedule_to_start_timeout": _STARTS}
                server = await stack.enter_async_context(stateful_mcp_server("bank", options))
            elif KIND == "stateless":
                server = stateless_mcp_server("bank", shop.SERVER_OPTIONS)
            else:
                server = temporal_mcp_server("bank", shop.SERVER_OPTIONS)
            agent = Agent(name="clerk", instructions="", mcp_servers=[server])
            result = await Runner.run(agent, input=prompt, run_config=config)
        items = [one for one in result.new_items if one.type == "tool_call_output_item"]
        return shop.end(prompt, [_text(one.output) for one in items])


def _text(output: Any) -> str:
    return str(output.get("text", output)) if isinstance(output, dict) else str(output)


def _bank(argument: Any = None) -> MCPServerStdio:
    params: Any = {"command": COMMAND[0], "args": list(COMMAND[1:]), "env": environment()}
    return MCPServerStdio(params, name="bank", client_session_timeout_seconds=120)


def app() -> shop.App:
    """Return the worker."""
    servers: dict[str, Any] = {"mcp_servers": {"bank": _bank}}
    if KIND == "stateful":
        servers = {"mcp_server_providers": [StatefulMCPServerProvider("bank", _bank)]}
    elif KIND == "stateless":
        servers = {"mcp_server_providers": [StatelessMCPServerProvider("bank", _bank)]}
    plugins: list[Any] = [
        OpenAIAgentsPlugin(
            model_params=ModelActivityParameters(start_to_close_timeout=timedelta(seconds=120)),
            model_provider=TestModelProvider(Model(lambda: ResponseBuilders.output_message(""))),
            **servers,
        )
    ]
    if shop.GUARDED:
        charge = effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
        rules = mcp_effects(tools={"charge_card": charge}, key_in_meta=KEY)
        named = {f"bank-{KIND}" if KIND else "bank": rules}
        plugins.append(LedgerPlugin(**shop.PLUGIN, mcp=named))
    return shop.App(Clerk, plugins)
