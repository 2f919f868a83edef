"""The process of an isolated tool: reads the call, makes it, writes how it ended.

Run as ``python -m`` by `isolated_process`, with the file descriptor of its connection to the
worker. It ends when the worker ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from ...errors import ArgumentsChanged
from ...ledger.action_records import Outcome
from ...ledger.result_codec import error_text
from ...log_output import configure_logging, log_uncaught
from ..app.tool_failure import FailureKind, ToolFailure
from .isolated_call import SIZE_BYTES, IsolatedCall, write_answer

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Read the call, make it, write how it ended, and exit."""
    with socket.socket(fileno=int(sys.argv[1])) as worker:
        os.set_inheritable(worker.fileno(), False)
        with worker.makefile("rb") as requests:
            call = IsolatedCall.read(requests.readline())
        _die_with(call.parent, worker)
        sys.path[:] = call.path
        configure_logging()
        log_uncaught()
        answer = write_answer(_ended(call))
        sys.stdout.flush()
        worker.sendall(len(answer).to_bytes(SIZE_BYTES, "big") + answer)
        # The worker has its answer: a thread or an exit hook of the tool must not delay the exit.
        os._exit(0)


def _die_with(parent: int, worker: socket.socket) -> None:
    """Have this process end when the worker ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the worker died before the line above

    def watch() -> None:
        with suppress(OSError):
            worker.recv(1)  # returns when the worker is gone, or has its answer
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _ended(call: IsolatedCall) -> Outcome | ToolFailure:
    """Make the call and return how it ended."""
    try:
        tool = call.find_tool()
    except Exception as err:
        return _not_attempted(err)
    try:
        copy = tool.copy_of(call.given_state)
        bound = tool.bind(call.args, call.tool_context, copy)
    except ArgumentsChanged as err:  # nothing was called, and another try would not be either
        return tool.failure(err)
    except Exception as err:
        return _not_attempted(err)
    try:
        ended: Any = tool.finished(tool.fn(**bound), copy)
        outcome: Outcome = ended if isinstance(ended, Outcome) else asyncio.run(ended)
    except BaseException as err:
        return tool.failure(err)
    return outcome


def _not_attempted(err: Exception) -> ToolFailure:
    return ToolFailure(FailureKind.NOT_ATTEMPTED, type(err).__name__, error_text(err))


if __name__ == "__main__":
    main()
