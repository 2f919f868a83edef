"""An agent of Google's genai SDK, whose tools are an MCP server's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from mcp import ClientSession, stdio_client
    from temporalio.google_genai import TemporalMcpClientSession

    from commitline.integrations import LedgerPlugin, mcp_effects
    from commitline.tests.frameworks.apart.bank import parameters
    from commitline.tests.frameworks.apps.genai_shop import Gemini, told
    from commitline.tests.frameworks.tools import shop


@workflow.defn
class Clerk:
    """Charges, mails, and says what it was told of both."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Answer a prompt."""
        bank = TemporalMcpClientSession("bank", activity_config=shop.SERVER_OPTIONS)
        return shop.end(prompt, await told([bank]))


@asynccontextmanager
async def _bank() -> AsyncIterator[ClientSession]:
    async with stdio_client(parameters()) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


def app() -> shop.App:
    """Return the worker."""
    plugins: list[Any] = [Gemini([]).plugin(mcp_servers={"bank": _bank})]
    if shop.GUARDED:
        plugins.append(LedgerPlugin(**shop.PLUGIN, mcp={"bank": mcp_effects()}))
    return shop.App(Clerk, plugins)
