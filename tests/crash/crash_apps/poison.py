"""A tool that kills its worker, each time: what no deadline inside the worker can end."""

import os
import signal
from datetime import timedelta
from pathlib import Path

from commitline import Agent, App, Effect, ScriptedModel, tool
from commitline.activities.contract import deadlines
from commitline.activities.model.scripted_model import call, say

# The server's time-outs lie half a minute beyond ours; a test cannot wait for them so long.
deadlines.BACKSTOP = timedelta(seconds=1)  # type: ignore[misc]

CALLS = Path(os.environ["CRASH_FOLDER"]) / "poison_calls"


@tool(effect=Effect.IDEMPOTENT)
async def poison() -> str:
    """Take the worker down."""
    with CALLS.open("a") as file:
        file.write("called\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


app = App(
    [
        Agent(
            "support",
            model=ScriptedModel("poison", [call(("poison", {})), say("done")]),
            instructions="",
            tools=[poison],
            node_timeout=3,
        )
    ]
)
