"""Tools whose ends are counted: one that hangs, one that raises, and a read that is told twice."""

import asyncio
from dataclasses import replace

from commitline import Agent, App, Effect, ScriptedModel, tool
from commitline.activities.contract.conversation import Usage
from commitline.activities.model.scripted_model import call, say


@tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.3)
async def hangs() -> str:
    """Take longer than it may."""
    await asyncio.sleep(600)
    return "never"


@tool(effect=Effect.AT_MOST_ONCE)
async def raises() -> str:
    """Break down."""
    raise ValueError("half way through")


@tool(effect=Effect.IDEMPOTENT, tries=2, node_timeout=0.2)
async def has_no_time() -> str:
    """Fail when no time is left for another try."""
    raise ConnectionResetError("cut")


app = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "metrics",
                [
                    call(("hangs", {}), ("raises", {}), ("has_no_time", {})),
                    replace(say("done"), usage=Usage(11, 7)),
                ],
            ),
            instructions="",
            tools=[hangs, raises, has_no_time],
        )
    ]
)
