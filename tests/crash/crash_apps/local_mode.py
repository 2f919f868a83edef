"""Apps in which every model turn and every call is tried as a local activity."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from commitline import Agent, App, Effect, ScriptedModel, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, call, say
from commitline.crash import crash_point
from commitline.examples.shop import app as shop
from commitline.tests.crash.crash_apps import services, undo

FOLDER = Path(os.environ["CRASH_FOLDER"])
READS = FOLDER / "reads"


def in_local_mode(app: App, *, seconds: float = 10) -> App:
    """Return an app in which every agent, and every tool, is local."""
    return App([_local(agent, seconds) for agent in app.agents])


def _local(agent: Agent, seconds: float) -> Agent:
    tools = [
        replace(one, local=True, tool_timeout=seconds)
        for one in agent.tools
        if isinstance(one, Tool)
    ]
    return replace(agent, local=True, model_timeout=seconds, tools=tools)


app: Final = in_local_mode(shop.app)
till: Final = in_local_mode(services.till)
takes_back: Final = in_local_mode(undo.app)


@tool(effect=Effect.READ)
async def look() -> int:
    """Answer another number each time."""
    number = len(READS.read_text()) if READS.exists() else 0
    with READS.open("a") as file:
        file.write("x")
    return number


@tool(effect=Effect.AT_MOST_ONCE)
async def note(number: int) -> int:
    """Do the last thing."""
    crash_point("after_effect", tool="note")
    return number


def _note_what_was_read(request: ModelRequest) -> Completion:
    (looked,) = request.messages[-1].results
    return call(("note", {"number": int(looked.content)}))


def _tell(request: ModelRequest) -> Completion:
    told = [one for message in request.messages for one in message.results]
    return say(" ".join(f"{one.name} {one.status} {one.content}" for one in told))


_SCRIPT: Final[list[Answer]] = [
    call(("charge_card", {"order_id": "4821", "amount_cents": 4900})),
    call(("send_mail", {"to": "ada@example.com", "text": "hi"})),
    call(("look", {})),
    _note_what_was_read,
    _tell,
]
turns: Final = in_local_mode(
    App(
        [
            Agent(
                "support",
                ScriptedModel("turns", _SCRIPT, count_file=services.COUNT_FILE),
                "",
                [services.charge_card, services.send_mail, look, note],
            )
        ]
    )
)
