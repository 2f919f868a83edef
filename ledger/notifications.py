"""Hearing at once of what the relay has to do: ``listen``, with polling behind it.

A commit that leaves work announces it (``notify``); whoever listens looks then. Announcements are
only a hint: one may be lost (a cut connection, a pooler that keeps none), so there is a look every
few seconds too, more often while nobody hears anything. Many announcements are one look.

The connection is one of its own, since a transaction-mode pooler takes it away between two
statements, and announcements with it. Whether it hears is therefore tried out: another connection
says something, and it has to arrive.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from .deadline import within
from .sql import QUERIES

CHANNEL: Final = "commitline_relay"
"""What is announced is an action's key, or the order that another one waits in."""

_HEARD_WITHIN: Final = 3.0
"""Seconds in which a probe arrives, or never does."""
_ALIVE_EVERY: Final = 15.0
"""Seconds of silence after which the connection is asked whether it is alive."""
_ANSWERS_WITHIN: Final = 5.0
_CONNECT_AGAIN: Final = (0.2, 1.0, 5.0)
"""Seconds before it connects again, time after time."""
_DEAF_FOR: Final = 300.0
"""Seconds before a connection that hears nothing is tried again."""

OnNotice = Callable[[], Awaitable[Any]]
OnHearing = Callable[[bool, str], None]


async def listen(
    database_url: str,
    *,
    on_notice: OnNotice,
    on_hearing: OnHearing = lambda hears, why: None,
    poll_seconds: float = 5.0,
    poll_seconds_alone: float = 1.0,
) -> None:
    """Call ``on_notice`` whenever there may be something to do, until cancelled.

    At the start, after each announcement, and every few seconds all the same. Never twice at
    once: what is announced meanwhile is one more call after it. What it raises ends this, so it
    takes care of its own errors.

    Args:
        database_url: Of a server itself, not of a pooler in transaction mode.
        on_notice: Looks for what there is to do.
        on_hearing: Told when announcements begin, or cease, to be heard, and why; not again
            while that stays so.
        poll_seconds: Between two looks while announcements are heard.
        poll_seconds_alone: The same while they are not.
    """
    listener = _Listener(database_url, on_hearing)
    hearing = asyncio.create_task(listener.run(), name="commitline listen")
    try:
        while True:
            listener.told.clear()
            await on_notice()
            pause = poll_seconds if listener.hears else poll_seconds_alone
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await listener.told.wait()
    finally:
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing


class _Listener:
    """Keeps a connection that listens, and says by an event that something was announced."""

    def __init__(self, database_url: str, on_hearing: OnHearing) -> None:
        self.told = asyncio.Event()
        self.hears = False
        self._url = database_url
        self._on_hearing = on_hearing
        self._said: str | None = None

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
                pause, why = _DEAF_FOR, "announcements do not arrive: a pooler stands between"
            except (psycopg.Error, OSError, TimeoutError) as err:
                failures = 0 if self.hears else failures + 1
                pause = _CONNECT_AGAIN[min(failures, len(_CONNECT_AGAIN) - 1)]
                why = f"no connection that listens: {err or type(err).__name__}"
            self._is_hearing(False, why)
            # What is announced now is not heard: look soon, and then by the clock.
            self.told.set()
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        """Listen until the connection is lost; return where it does not hear what is said."""
        conn = await self._connect()
        try:
            await within(_ANSWERS_WITHIN, conn.execute(QUERIES["listen"]))
            if not await self._hears_a_probe(conn):
                return
            self._is_hearing(True, "")
            self.told.set()  # what was announced before is to be looked for
            while True:
                await self._take(conn, _ALIVE_EVERY)
                # Of a connection whose other end is gone there is no other sign.
                await within(_ANSWERS_WITHIN, conn.execute(QUERIES["alive"]))
        finally:
            # At once: `close` of psycopg does not wait for the server.
            await conn.close()

    async def _hears_a_probe(self, conn: AsyncConnection[Any]) -> bool:
        said = str(uuid.uuid4())
        async with await self._connect() as speaker:
            # Not by the listening connection, which would be given it with its answer.
            await within(_ANSWERS_WITHIN, speaker.execute(QUERIES["probe"], {"said": said}))
        loop = asyncio.get_running_loop()
        until = loop.time() + _HEARD_WITHIN
        while (left := until - loop.time()) > 0:
            if said in await self._take(conn, left):
                return True
        return False

    async def _take(self, conn: AsyncConnection[Any], seconds: float) -> set[str]:
        """Wait for something that is said, so long at most; return the payloads."""
        # To its end: a generator that is left in the middle keeps the connection to itself.
        heard = [notice async for notice in conn.notifies(timeout=seconds, stop_after=1)]
        if any(notice.channel == CHANNEL for notice in heard):
            self.told.set()
        return {notice.payload for notice in heard}

    async def _connect(self) -> AsyncConnection[Any]:
        # Bounded by its own time-out. Not by ours, which may come when it is just connected:
        # that connection would be nobody's.
        opening = asyncio.ensure_future(
            AsyncConnection.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=5,
                application_name="commitline listen",
            )
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            with suppress(psycopg.Error, OSError):
                await (await opening).close()
            raise

    def _is_hearing(self, hears: bool, why: str) -> None:
        self.hears = hears
        # Not the error's words, which may differ from one time to the next.
        kind = "hears" if hears else why.partition(":")[0]
        if kind != self._said:
            self._said = kind
            self._on_hearing(hears, why)
