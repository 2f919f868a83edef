"""Where tools run: apart from the worker's event loop, so that none of them can stop it.

An async tool runs on an event loop of its own, in a thread of its own: one that blocks that
loop costs neither heartbeats nor the ledger nor model calls. A plain function gets a thread
each, not a pool that hung calls use up. (A process for one that must be killable is in
`isolated`.)

Each ``run`` ends when the tool has *really* ended. Cancelled, it passes the cancellation on
and goes on waiting; whoever cannot wait for a tool that takes no notice leaves it behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import structlog

from ..app.contained_error import contain, raise_contained

T = TypeVar("T")

log = structlog.get_logger("commitline")

_PROBE_SECONDS: Final = 1.0
"""How long the tools' event loop may be deaf before it is said in the log."""
_CLOSE_SECONDS: Final = 1.0
"""How long closing waits for the tools' event loop; a blocked one ends with the process."""


_threads: ContextVar[list[Future[Any]]] = ContextVar("commitline_threads")
"""The threads that the running tool has started with `asyncio.to_thread`."""


class _ThreadEach(ThreadPoolExecutor):
    """Gives every `asyncio.to_thread` of a tool a thread of its own.

    asyncio's own pool has a few threads more than the machine has cores: hung calls use it up,
    and every other async tool waits behind them.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See base class."""
        future: Future[T] = Future()
        threads = _threads.get(None)
        if threads is not None:
            threads.append(future)

        def body() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as err:
                future.set_exception(err)
            else:
                future.set_result(result)

        threading.Thread(target=body, name="commitline-to-thread", daemon=True).start()
        return future


class ToolRunner:
    """The tools' event loop and threads; use it as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="commitline-tools", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="commitline-watch", daemon=True)
        self._running: dict[int, str] = {}
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the loop. A tool that was left behind ends with the process, not before."""
        self._closing.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._watcher.join(_CLOSE_SECONDS)

    async def run(self, name: str, work: Callable[[], Any], *, is_async: bool) -> Any:
        """Run a function, ``async`` or plain; return what it returns, awaited if it can be.

        A plain wrapper around an ``async`` function has not run it when it returns.
        """
        if is_async:
            return await self.run_async(name, work)
        value = await self.run_thread(name, work)
        return await self.run_async(name, lambda: value) if inspect.isawaitable(value) else value

    async def run_async(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine function on the tools' event loop; return what it returns."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[Any] = here.create_future()
        context = contextvars.copy_context()
        tasks: list[asyncio.Task[Any]] = []

        def begin() -> None:
            task = self._loop.create_task(self._named(name, work), context=context)
            tasks.append(task)
            task.add_done_callback(lambda ended: _hand_over(here, done, *_end_of(ended)))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        self._loop.call_soon_threadsafe(begin)
        return await self._until_ended(done, lambda: self._loop.call_soon_threadsafe(cancel))

    async def run_thread(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a plain function in a thread of its own; it cannot be stopped, only left behind."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[Any] = here.create_future()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                result = context.run(work)
            except BaseException as err:
                _hand_over(here, done, None, contain(name, err))
            else:
                _hand_over(here, done, result, None)

        threading.Thread(target=body, name=f"commitline-{name}", daemon=True).start()
        return await self._until_ended(done, lambda: None)

    async def _until_ended(self, done: asyncio.Future[Any], cancel: Callable[[], object]) -> Any:
        """Wait for the tool's real end; pass a cancellation on, and go on waiting.

        Not once this is closed: the event loop that ends then cancels what is left, and would
        wait for a tool that hangs, and with it the process that was told to go.
        """
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError:
                if self._closing.is_set():
                    raise
                cancel()
        return done.result()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(_ThreadEach())
        while not self._closing.is_set():
            try:
                self._loop.run_forever()
            except BaseException as err:
                # A SystemExit in a task of a tool's own ends the loop; the others go on.
                log.error("tools.loop_broken", error=type(err).__name__)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))  # their `finally` gets this far
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _named(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        token = id(asyncio.current_task())
        self._running[token] = name
        threads: list[Future[Any]] = []
        _threads.set(threads)
        try:
            return await work()
        except BaseException as err:
            # A thread that it waited for goes on, and may send: so does the tool, then.
            await _ended(threads)
            raise_contained(name, err)
        finally:
            del self._running[token]

    def _watch(self) -> None:
        """Say which tools may be blocking the tools' event loop."""
        while not self._closing.wait(_PROBE_SECONDS):
            answered = threading.Event()
            began = time.monotonic()
            if not self._probe(answered) or self._answers(answered, _PROBE_SECONDS):
                continue
            log.warning("tools.loop_blocked", tools=sorted(set(self._running.copy().values())))
            while not self._answers(answered, _PROBE_SECONDS):
                pass
            log.warning("tools.loop_unblocked", seconds=round(time.monotonic() - began, 1))

    def _probe(self, answered: threading.Event) -> bool:
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return False  # closed meanwhile
        return True

    def _answers(self, answered: threading.Event, seconds: float) -> bool:
        return answered.wait(seconds) or self._closing.is_set()


async def _ended(threads: Iterable[Future[Any]]) -> None:
    """Wait until the threads have ended, however often this is cancelled."""
    waiting = {asyncio.wrap_future(one) for one in threads if not one.done()}
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting)
        except asyncio.CancelledError:
            waiting = {one for one in waiting if not one.done()}
    for one in threads:
        if not one.cancelled():
            one.exception()


def _end_of(task: asyncio.Task[Any]) -> tuple[Any, BaseException | None]:
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    return (None, error) if error is not None else (task.result(), None)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
) -> None:
    """Hand an end over to the worker's loop; nobody may be there any more to take it."""

    def take() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, asyncio.CancelledError):
            done.cancel()
        else:
            done.set_exception(error)

    try:
        loop.call_soon_threadsafe(take)
    except RuntimeError:
        log.warning("tool.ended_after_worker", error=type(error).__name__ if error else None)
