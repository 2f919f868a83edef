"""`ToolRunner`: where tools run, apart from the worker's event loop, so that none can block it.

All async tools share an event loop in a thread of its own. A tool that blocks that loop delays
neither heartbeats nor the ledger nor model requests. A plain function gets a thread of its own;
in a pool, calls that hang would use the threads up. A tool that must be killable runs in a process
(`isolated_process`).

Each ``run`` ends when the tool has *really* ended. If it is cancelled, it cancels the tool and goes
on waiting. A caller that cannot wait for a tool that ignores its cancellation abandons it
(`bounded_call`). Once a cancellation has reached a coroutine, its end is that cancellation,
whatever it returns or raises. One that had ended by then has its own end, and so has a thread,
which cannot be told.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ...logs import Log
from ..app.contained_error import contain, raise_contained
from ..app.interrupt import is_interrupt
from ..app.tool_context import note_work_beside_question
from .tool_tasks import ended_with_question, noted_task, tool_tasks
from .tool_threads import ThreadForEach, all_ended, tool_threads

T = TypeVar("T")

log = Log()

_PROBE_SECONDS: Final = 1.0
"""How long the tools' event loop may be blocked before the log says so."""
_CLEAN_UP_SECONDS: Final = 0.2
"""How long closing waits for the `finally` blocks of tools."""
_CLOSE_SECONDS: Final = 1.0
"""How long closing waits for the tools' event loop; a blocked one ends with the process."""

_left: Final[set[asyncio.Task[Any]]] = set()
"""Tools that went on when their event loop ended; asyncio complains of one that is collected."""


class ToolRunner:
    """The tools' event loop and threads; use it as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(noted_task)
        self._thread = threading.Thread(target=self._run_loop, name="commitline-tools", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="commitline-watch", daemon=True)
        self._running: dict[int, str] = {}
        self._told: set[asyncio.Task[Any]] = set()
        """Tasks that a cancellation has reached."""
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
        """Stop the loop. A tool that was abandoned ends with the process, not before."""
        self._closing.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._watcher.join(_CLOSE_SECONDS)

    async def run(self, name: str, work: Callable[[], Any], *, is_async: bool) -> Any:
        """Run a function, ``async`` or plain; return what it returns, awaited if it can be.

        A plain function may return a coroutine: a wrapper around an ``async`` one does.
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
            task.add_done_callback(lambda ended: _set_end(here, done, *self._end_of(ended)))

        def cancel() -> None:
            for task in tasks:
                self._cancel(task)

        self._loop.call_soon_threadsafe(begin)
        return await self._until_ended(done, lambda: self._loop.call_soon_threadsafe(cancel))

    async def run_thread(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a plain function in a thread of its own; it cannot be stopped, only abandoned."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[Any] = here.create_future()
        context = contextvars.copy_context()

        def body() -> None:
            try:
                result = context.run(work)
            except BaseException as err:
                _set_end(here, done, None, contain(name, err))
            else:
                _set_end(here, done, result, None)

        threading.Thread(target=body, name=f"commitline-{name}", daemon=True).start()
        return await self._until_ended(done, lambda: None)

    async def _until_ended(self, done: asyncio.Future[Any], cancel: Callable[[], object]) -> Any:
        """Wait until the tool has really ended. A cancellation cancels the tool; the wait goes on.

        Once the runner is closed, a cancellation ends the wait: the worker's event loop is ending
        then, and the process must not wait for a tool that hangs.
        """
        while not done.done():
            try:
                await asyncio.wait({done})
            except asyncio.CancelledError:
                if self._closing.is_set():
                    raise
                cancel()
        return done.result()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(ThreadForEach())
        while not self._closing.is_set():
            try:
                self._loop.run_forever()
            except BaseException as err:
                # A SystemExit in a task of a tool ends the loop; it goes on for the other tools.
                log.error("tools.loop_broken", error=type(err).__name__)
        self._loop.run_until_complete(self._end_tasks())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _end_tasks(self) -> None:
        """Cancel what is left, and let it clean up; what takes longer ends with the process."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            self._cancel(task)
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=_CLEAN_UP_SECONDS)
            _left.update(left)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task; called in the tools' event loop. One that has ended is not told."""
        if task.cancel():
            self._told.add(task)

    def _end_of(self, task: asyncio.Task[Any]) -> tuple[Any, BaseException | None]:
        """Return what a task returned, or how it failed: by its cancellation, if that was told."""
        told = task in self._told
        self._told.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if told or error is not None:
            return None, asyncio.CancelledError() if told else error
        return task.result(), None

    async def _named(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        token = id(asyncio.current_task())
        self._running[token] = name
        threads: list[Future[Any]] = []
        tool_threads.set(threads)
        tasks: set[asyncio.Task[Any]] = set()
        tool_tasks.set(tasks)
        try:
            return await work()
        except BaseException as err:
            if is_interrupt(err) and await ended_with_question(tasks):
                note_work_beside_question()
            # A thread that the tool waited for goes on and may send, so the tool has not ended yet.
            await all_ended(threads)
            raise_contained(name, err)
        finally:
            del self._running[token]

    def _watch(self) -> None:
        """Log which tools may be blocking the tools' event loop."""
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


def _set_end(
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
) -> None:
    """Set the end of a tool in the worker's event loop, which may be closed by now."""

    def set_end() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, asyncio.CancelledError):
            done.cancel()
        else:
            done.set_exception(error)

    try:
        loop.call_soon_threadsafe(set_end)
    except RuntimeError:
        log.warning("tool.ended_after_worker", error=type(error).__name__ if error else None)
