"""A tool in a process of its own, for tools that must be killable: ``isolation="process"``.

A fresh interpreter is started for each call. It is spawned, not forked: it inherits no lock, no
socket and no thread of the worker. It imports the tool by its module and name, calls it and
writes how the call ended (`isolated_child`). The process is killed, with every process of its
session, when its call is cancelled. When the worker dies, the kernel kills the process (on
Linux), or the end of its connection does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

from ...ledger.action_records import Outcome
from ..app.state_copy import GivenState
from ..app.tool import Tool
from ..app.tool_context import ToolContext
from ..app.tool_failure import FailureKind, ToolFailure
from . import isolated_child
from .isolated_call import SIZE_BYTES, IsolatedCall, read_answer

_LAST_WORDS_SECONDS: Final = 0.5
"""How long an answer may take to arrive that the process wrote before it ended."""


class IsolatedFailure(Exception):
    """A tool in another process raised, or its process ended without an answer."""

    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


async def run_isolated(
    tool: Tool, args: str, context: ToolContext, state: GivenState | None = None
) -> Outcome:
    """Call a tool in a process of its own. If cancelled, kill it and wait until it is gone.

    What it had answered by then counts: a process that is killed is told of no cancellation.

    Args:
        tool: A tool that is defined at the top of a module.
        args: Its stored arguments, JSON text.
        context: Its context.
        state: The state of the conversation, if the tool takes it.

    Raises:
        IsolatedFailure: It raised, or its process died.
    """
    call = IsolatedCall.of(tool, args, context, state)
    here, there = socket.socketpair()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            isolated_child.__name__,
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
        answer = await _converse(process, here, call.line)
    except BaseException:
        await _kill(process)
        raise
    ended = read_answer(answer)
    if ended is None:
        text = f"its process ended with {process.returncode}"
        ended = ToolFailure(FailureKind.OTHER, "ToolProcessDied", text)
    if isinstance(ended, ToolFailure):
        raise IsolatedFailure(ended)
    return ended


async def _converse(
    process: asyncio.subprocess.Process, here: socket.socket, request: bytes
) -> bytes:
    """Send the request and return the answer; empty if the process ended without one.

    A process that the tool has started may hold the other end open. So the end of the connection
    does not say that the tool's process has ended, and both are waited for.
    """
    reader, writer = await asyncio.open_connection(sock=here)
    answering = asyncio.ensure_future(_answer_from(reader))
    ending = asyncio.ensure_future(process.wait())
    try:
        with suppress(ConnectionError):  # the process has died; what follows notices it
            writer.write(request)
            await writer.drain()
        await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
        answer = await _last_words(answering)
        if answering.done():
            writer.close()
            await process.wait()
        return answer
    except asyncio.CancelledError:
        await _kill(process)
        if answer := await _last_words(answering):
            return answer
        raise
    finally:
        answering.cancel()
        ending.cancel()
        writer.close()


async def _answer_from(reader: asyncio.StreamReader) -> bytes:
    try:
        size = int.from_bytes(await reader.readexactly(SIZE_BYTES), "big")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def _last_words(answering: asyncio.Future[bytes]) -> bytes:
    """Return the answer of a process that has ended, or has just answered; empty if none comes."""
    if not answering.done():
        await asyncio.wait({answering}, timeout=_LAST_WORDS_SECONDS)
    return answering.result() if answering.done() else b""


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and all that it started, and wait until it is gone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
