"""Tools for processes of their own: a child finds them by module and name, so they are here.

`app` is for a worker that is killed: its agent hangs in a process, and says where in a file.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from commitline import (
    Agent,
    App,
    Effect,
    Reducer,
    ScriptedModel,
    State,
    ToolContext,
    ToolRefused,
    tool,
)
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say

AT_MOST_ONCE = Effect.AT_MOST_ONCE
KILLED_AFTER = 5.0
"""Seconds; time for an interpreter to start on a machine that is busy."""


class Desk(State):
    """What the tools of `test_state` share."""

    place: str = ""
    owner: str = ""
    pens: Annotated[int, Reducer(operator.add)] = 0
    log: Annotated[list[str], Reducer(operator.add)] = Field(default_factory=list)


@tool(effect=AT_MOST_ONCE, isolation="process")
def pens_in_a_process(desk: Desk, pens: int, owner: str) -> str:
    desk.owner = owner
    desk.pens += pens
    desk.log.append("in a process")
    return desk.place


def write_pids(file: str, *pids: int) -> None:
    draft = Path(file).with_suffix(".tmp")
    draft.write_text(" ".join(map(str, pids)))
    draft.replace(file)


def child() -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid


@tool(effect=AT_MOST_ONCE, isolation="process", tool_timeout=20)
def reads_its_input() -> str:
    """Start what reads its standard input to the end, as ``ssh`` does."""
    subprocess.run(["cat"], check=True)
    return "done"


@tool(effect=AT_MOST_ONCE, isolation="process", tool_timeout=20)
def leaves_a_child() -> str:
    """Leave a child that holds everything open that it inherited."""
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    return "done"


def spin_for_ever() -> None:
    """Turn in C code: neither a signal handler nor another thread gets a chance."""
    sum(itertools.repeat(0))


@tool(effect=AT_MOST_ONCE, isolation="process", tool_timeout=KILLED_AFTER)
def spins(file: str) -> str:
    write_pids(file, os.getpid(), child())
    spin_for_ever()
    return "never"


@tool(effect=AT_MOST_ONCE, isolation="process")
def sleeps(file: str) -> str:
    write_pids(file, os.getpid(), child())
    time.sleep(600)
    return "never"


@tool(effect=AT_MOST_ONCE, isolation="process", tool_timeout=1)
def hangs_in_a_process(number: int) -> int:
    time.sleep(600)
    return number


@tool(effect=AT_MOST_ONCE, isolation="process")
def spins_unattended(file: str) -> str:
    write_pids(file, os.getpid())
    spin_for_ever()
    return "never"


@tool(effect=AT_MOST_ONCE, isolation="process")
def waits_for_a_file(file: str, go_on: str) -> str:
    write_pids(file, os.getpid())
    while not Path(go_on).exists():
        time.sleep(0.02)
    return "answered"


@tool(effect=AT_MOST_ONCE, isolation="process")
def returns(ctx: ToolContext, text: str) -> dict[str, str | int]:
    return {"text": text, "key": ctx.action_key, "pid": os.getpid()}


@tool(effect=AT_MOST_ONCE, isolation="process")
async def awaits(text: str) -> str:
    await asyncio.sleep(0.01)
    return f"{text} \ud83d"


@tool(effect=AT_MOST_ONCE, isolation="process")
def refuses() -> str:
    raise ToolRefused("no money")


@tool(effect=AT_MOST_ONCE, isolation="process")
def raises() -> str:
    raise ValueError("a fault \ud83d")


@tool(effect=AT_MOST_ONCE, isolation="process")
def prints() -> str:
    print('{"outcome": {"kind": "ok", "result": "1", "effect_possible": true}}', flush=True)
    os.write(1, b'{"outcome": null}')
    sys.stderr.write("a word\n")
    return "printed"


@tool(effect=AT_MOST_ONCE, isolation="process")
def exits() -> str:
    sys.exit(3)


@tool(effect=AT_MOST_ONCE, isolation="process")
def dies() -> str:
    os._exit(7)


@tool(effect=AT_MOST_ONCE, isolation="process")
def returns_much(characters: int) -> str:
    return "x" * characters


@tool(effect=AT_MOST_ONCE, isolation="process")
def returns_no_json() -> object:
    return object()


def _spin(request: ModelRequest) -> Completion:
    return call(("spins_unattended", {"file": request.messages[0].text}))


app = App([Agent("agent", ScriptedModel("spins", [_spin, say("Done.")]), "", [spins_unattended])])


@tool(effect=Effect.READ, isolation="process")
async def asks_elsewhere(ctx: ToolContext) -> Any:
    """Ask where no answer comes to."""
    return await ctx.interrupt("What?")
