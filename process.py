"""How a process of ours runs its event loop, and how it ends without waiting for a hanging tool."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` as `asyncio.run` does, in uvloop's event loop where that is installed.

    That takes an eighth off the processor time of a turn (``bench/README.md``). Tools have an event
    loop of their own, which stays asyncio's.
    """
    try:
        import uvloop  # not for commands that need no event loop: it loads for some time
    except ImportError:
        import asyncio

        return asyncio.run(main)
    return uvloop.run(main)


def on_stop_signal() -> asyncio.Event:
    """Return the event that SIGTERM or SIGINT sets, instead of ending the process."""
    import asyncio  # not before: every command is kept waiting for it otherwise

    stop_signal = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_signal.set)
    return stop_signal


class UnawaitedThreads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`, for which `asyncio.run` does not wait at its end.

    Another worker takes over a call that outlasts the grace period. The call's thread cannot be
    stopped, and waiting for it would keep the process for as long as the call hangs.
    """

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See base class; never waits."""
        super().shutdown(wait=False, cancel_futures=True)


def leave(status: int) -> NoReturn:
    """End the process with this status, without the interpreter's own finalization.

    With temporalio 1.35.0 on Python 3.11.7 one process in twelve aborts there
    (``PyGILState_Release``, exit status -6), after all its work is done: threads of the SDK's
    core still hold Python objects. Everything that must be closed is closed before this.
    Remove when the SDK joins those threads.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(status)
