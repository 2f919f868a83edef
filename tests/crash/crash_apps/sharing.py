"""An agent whose tool changes the state, and whose second turn merges that."""

import asyncio
import operator
import os
from pathlib import Path
from typing import Annotated, Final

from commitline import Agent, App, Effect, Reducer, ScriptedModel, State, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.crash import VARIABLE

FOLDER: Final = Path(os.environ["CRASH_FOLDER"])


class Desk(State):
    """What it shares."""

    place: str = ""
    pens: Annotated[int, Reducer(operator.add)] = 0


async def _held(name: str) -> None:
    (FOLDER / f"{name} is there").touch()
    while (FOLDER / name).exists():  # noqa: ASYNC110 - another process takes it away
        await asyncio.sleep(0.02)


@tool(effect=Effect.IDEMPOTENT)
async def put(ctx: ToolContext, desk: Desk, place: str) -> int:
    """Put a pen down, as one would who looks how many there are."""
    with (FOLDER / "given").open("a") as file:
        file.write(f"{desk.pens}\n")
    desk.place = f"{place} by {ctx.position}"
    desk.pens = desk.pens + 1
    await _held("hold")
    return desk.pens


class _Model(ScriptedModel):
    """Has its worker die at a point of its second turn, once."""

    async def complete(self, request: ModelRequest) -> Completion:
        """See base class."""
        point, been = os.environ.get("CRASH_LATER"), FOLDER / "been"
        if point and len(request.messages) > 1 and not been.exists():
            been.touch()
            os.environ[VARIABLE] = point
        if len(request.messages) > 1:
            await _held("thinking")
        return await super().complete(request)


_PUTS: Final = [("put", {"place": "hall"}), ("put", {"place": "attic"})]
sharing = App(
    [
        Agent(
            "support",
            model=_Model("shares", [call(*_PUTS), say("done")]),
            instructions="",
            tools=[put],
            state=Desk,
        )
    ]
)
