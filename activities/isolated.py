"""A tool in a process of its own, for what must be killable: ``isolation="process"``.

A fresh interpreter is started for each call (spawned, not forked: no lock, no socket and no
thread of the worker is inherited), imports the tool by its module and name, calls it and
writes how it ended. It is killed, with every process that it started, when its call is
cancelled; when the worker dies, the kernel kills it (on Linux), and its next look at its
standard input ends it elsewhere.

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
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import IO, Any, Final

from ..canonical import scrub
from ..ledger.actions import Outcome
from ..ledger.codec import encode_result, error_text
from .failures import Failure, Kind
from .tool import Tool, ToolContext

_PR_SET_PDEATHSIG: Final = 1


class IsolatedFailure(Exception):
    """A tool in another process raised, or its process ended without an answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.told)
        self.failure = failure


async def run_isolated(tool: Tool, args: str, context: ToolContext) -> Outcome:
    """Call a tool in a process of its own; cancelled, kill it and wait until it is gone.

    Args:
        tool: Defined at the top of a module.
        args: Its stored arguments, JSON text.
        context: Its context.

    Raises:
        IsolatedFailure: It raised, or its process died.
    """
    read, write = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            str(write),
            stdin=asyncio.subprocess.PIPE,
            stderr=None,
            pass_fds=(write,),
            start_new_session=True,
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        return _read(await _converse(process, read, _question(tool, args, context)), process)
    except asyncio.CancelledError:
        await _kill(process)
        raise


def _question(tool: Tool, args: str, context: ToolContext) -> bytes:
    question = {
        "module": tool.fn.__module__,
        "name": tool.fn.__qualname__,
        "args": args,
        "context": asdict(context),
        "path": sys.path,
        "parent": os.getpid(),
    }
    return json.dumps(question).encode("ascii") + b"\n"


async def _converse(process: asyncio.subprocess.Process, read: int, question: bytes) -> bytes:
    """Send the question and return all that is written back, until the pipe is closed."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(read, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    assert process.stdin is not None
    try:
        with suppress(ConnectionError):  # it has died: what it wrote says how
            process.stdin.write(question)
            await process.stdin.drain()
        answer = await reader.read()
        process.stdin.close()
        await process.wait()
        return answer
    finally:
        transport.close()
        process.stdin.close()


def _read(answer: bytes, process: asyncio.subprocess.Process) -> Outcome:
    try:
        told = json.loads(answer)
    except ValueError:
        raise IsolatedFailure(
            Failure(Kind.OTHER, "ToolProcessDied", f"its process ended with {process.returncode}")
        ) from None
    if "outcome" in told:
        return Outcome(**told["outcome"])
    after = told["failure"].pop("retry_after")
    raise IsolatedFailure(
        Failure(
            kind=Kind(told["failure"].pop("kind")),
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
    question = json.loads(sys.stdin.buffer.readline())
    _die_with(question["parent"], sys.stdin.buffer)
    sys.path[:] = question["path"]
    answer = json.dumps(_answer(question))
    with os.fdopen(int(sys.argv[1]), "w") as pipe:
        pipe.write(answer)
    sys.stdout.flush()
    # The worker has its answer: nothing of the tool's (a thread, an exit hook) may keep it.
    os._exit(0)


def _die_with(parent: int, stdin: IO[bytes]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before we asked

    def watch() -> None:
        stdin.read()  # ends when the worker is gone, or has its answer
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        tool = _find(question["module"], question["name"])
        bound = tool.bind(question["args"], ToolContext(**question["context"]))
    except Exception as err:
        return _told(Failure(Kind.NOT_ATTEMPTED, type(err).__name__, error_text(err)))
    try:
        value = asyncio.run(tool.fn(**bound)) if tool.is_async else tool.fn(**bound)
    except BaseException as err:
        return _told(tool.failure(err))
    return {"outcome": asdict(encode_result(tool.name, value, tool.returns))}


def _told(failure: Failure) -> dict[str, Any]:
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
