"""A tool in a process of its own, for what must be killable: ``isolation="process"``.

A fresh interpreter is started for each call (spawned, not forked: no lock, no socket and no
thread of the worker is inherited), imports the tool by its module and name, calls it and
writes how it ended. It is killed, with every process of its session, when its call is
cancelled; when the worker dies, the kernel kills it (on Linux), or the end of its connection.

The stored arguments go in as JSON text and the outcome comes back as JSON text, encoded in the
child by the same codec, so that it makes no difference where a tool runs.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, Final

from ...canonical import scrub
from ...ledger.codec import error_text
from ...ledger.records import Outcome
from ..app.state_copy import GivenState
from ..app.tool import Tool
from ..app.tool_context import ToolContext, UndoneAction
from ..app.tool_failure import FailureKind, ToolFailure

_PR_SET_PDEATHSIG: Final = 1
_SIZE_BYTES: Final = 8
_LAST_WORDS_SECONDS: Final = 0.5
"""How long what a process wrote before it ended may take to arrive."""


class IsolatedFailure(Exception):
    """A tool in another process raised, or its process ended without an answer."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


async def run_isolated(
    tool: Tool, args: str, context: ToolContext, state: GivenState | None = None
) -> Outcome:
    """Call a tool in a process of its own; cancelled, kill it and wait until it is gone.

    Args:
        tool: Defined at the top of a module.
        args: Its stored arguments, JSON text.
        context: Its context.
        state: What it is given of the conversation's, if it takes that.

    Raises:
        IsolatedFailure: It raised, or its process died.
    """
    question = _question(tool, args, context, state)
    here, there = socket.socketpair()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            str(there.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(there.fileno(),),
            start_new_session=True,
        )
    except BaseException:
        here.close()
        raise
    finally:
        there.close()
    try:
        answer = await _converse(process, here, question)
    except BaseException:
        await _kill(process)
        raise
    return _read(answer, process)


def _context(given: dict[str, Any]) -> ToolContext:
    undoes = given.pop("undoes")
    return ToolContext(**given, undoes=undoes and UndoneAction(**undoes))


def _question(tool: Tool, args: str, context: ToolContext, state: GivenState | None) -> bytes:
    question = {
        "module": tool.fn.__module__,
        "name": tool.fn.__qualname__,
        "args": args,
        "context": asdict(replace(context, questions=None)),
        "state": None if state is None else asdict(state),
        "path": [str(place) for place in sys.path],
        "parent": os.getpid(),
    }
    return json.dumps(question).encode("ascii") + b"\n"


async def _converse(
    process: asyncio.subprocess.Process, here: socket.socket, question: bytes
) -> bytes:
    """Send the question and return the answer; nothing, if the process ended without one.

    What the tool has started may hold the other end open, so that its closing says nothing.
    """
    reader, writer = await asyncio.open_connection(sock=here)
    answering = asyncio.ensure_future(_answer_from(reader))
    ending = asyncio.ensure_future(process.wait())
    try:
        with suppress(ConnectionError):  # it has died: how is seen below
            writer.write(question)
            await writer.drain()
        await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            await asyncio.wait({answering}, timeout=_LAST_WORDS_SECONDS)
        if not answering.done():
            return b""
        writer.close()
        await process.wait()
        return answering.result()
    finally:
        answering.cancel()
        ending.cancel()
        writer.close()


async def _answer_from(reader: asyncio.StreamReader) -> bytes:
    try:
        size = int.from_bytes(await reader.readexactly(_SIZE_BYTES), "big")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _read(answer: bytes, process: asyncio.subprocess.Process) -> Outcome:
    try:
        told = json.loads(answer)
    except ValueError:
        raise IsolatedFailure(
            ToolFailure(
                FailureKind.OTHER, "ToolProcessDied", f"its process ended with {process.returncode}"
            )
        ) from None
    if "outcome" in told:
        return Outcome(**told["outcome"])
    after = told["failure"].pop("retry_after")
    raise IsolatedFailure(
        ToolFailure(
            kind=FailureKind(told["failure"].pop("kind")),
            retry_after=None if after is None else timedelta(seconds=after),
            **told["failure"],
        )
    )


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and all that it started, and wait until it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


# --- in the child ---------------------------------------------------------------------------


def main() -> None:
    """Be the child: read a question, call the tool, write how it ended."""
    with socket.socket(fileno=int(sys.argv[1])) as worker:
        os.set_inheritable(worker.fileno(), False)
        with worker.makefile("rb") as questions:
            question = json.loads(questions.readline())
        _die_with(question["parent"], worker)
        sys.path[:] = question["path"]
        answer = json.dumps(_answer(question)).encode("ascii")
        sys.stdout.flush()
        worker.sendall(len(answer).to_bytes(_SIZE_BYTES, "big") + answer)
        # The worker has its answer: nothing of the tool's (a thread, an exit hook) may keep it.
        os._exit(0)


def _die_with(parent: int, worker: socket.socket) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before we asked

    def watch() -> None:
        with suppress(OSError):
            worker.recv(1)  # ends when the worker is gone, or has its answer
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        tool = _find(question["module"], question["name"])
        state = question["state"]
        copy = tool.copy_of(None if state is None else GivenState(**state))
        bound = tool.bind(question["args"], _context(question["context"]), copy)
    except Exception as err:
        return _told(ToolFailure(FailureKind.NOT_ATTEMPTED, type(err).__name__, error_text(err)))
    try:
        ended = tool.finished(tool.fn(**bound), copy)
        if not isinstance(ended, Outcome):
            ended = asyncio.run(ended)
    except BaseException as err:
        return _told(tool.failure(err))
    return {"outcome": asdict(ended)}


def _told(failure: ToolFailure) -> dict[str, Any]:
    after = failure.retry_after
    return {
        "failure": {
            "kind": failure.kind,
            "type": failure.type,
            "message": scrub(failure.message, limit=4_000),
            "retry_after": None if after is None else after.total_seconds(),
        }
    }


def _find(module: str, name: str) -> Tool:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, Tool):
        raise TypeError(f"{module}:{name} is no tool")
    return found


if __name__ == "__main__":
    main()
