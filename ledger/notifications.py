"""Listening for due entries of the relay's queue: Postgres notifications, with polling behind them.

A commit that queues something notifies (``notify``), and every listener looks then. A notification
is only a hint: one may be lost (a cut connection, a pooler that keeps none), so a listener also
looks every few seconds, and more often while it gets no notifications. Many notifications are one
look.

The connection is one of its own: a transaction-mode pooler would take it away between two
statements, and the notifications with it. Whether it gets notifications is tested: another
connection sends a probe, which has to arrive.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from ..database_url import check_database_url
from .deadline import within
from .sql import QUERIES

CHANNEL: Final = "commitline_relay"
"""The payload is an action's key, or the order key of the next entry."""

_PROBE_ARRIVES_WITHIN: Final = 3.0
"""Seconds in which a probe arrives, or never does."""
_ALIVE_EVERY: Final = 15.0
"""Seconds without a notification after which the connection is tested."""
_ANSWERS_WITHIN: Final = 5.0
_CONNECT_AGAIN: Final = (0.2, 1.0, 5.0)
"""Seconds before it connects again, time after time."""
_TEST_AGAIN_AFTER: Final = 300.0
"""Seconds before a connection that gets no notifications is tried again."""

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

    At the start, after each notification, and every few seconds all the same. Never twice at
    once: notifications that arrive meanwhile are one more call after it. An error that it raises
    ends the listening.

    Args:
        database_url: Of a server itself, not of a pooler in transaction mode.
        on_notice: Looks for due entries.
        on_hearing: Called when notifications begin to arrive, or cease to, with the reason; not
            again while that stays so.
        poll_seconds: Between two looks while notifications arrive.
        poll_seconds_alone: The same while they are not.
    """
    listener = _Listener(database_url, on_hearing)
    hearing = asyncio.create_task(listener.run(), name="commitline listen")
    try:
        while True:
            listener.notified.clear()
            await on_notice()
            pause = poll_seconds if listener.hears else poll_seconds_alone
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await listener.notified.wait()
    finally:
        hearing.cancel()
        with suppress(asyncio.CancelledError):
            await hearing


class _Listener:
    """Keeps a connection that listens, and sets an event when a notification has arrived."""

    def __init__(self, database_url: str, on_hearing: OnHearing) -> None:
        self.notified = asyncio.Event()
        self.hears = False
        check_database_url(database_url, name="COMMITLINE_NOTIFY_URL")
        self._url = database_url
        self._on_hearing = on_hearing
        self._said: str | None = None

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
                pause, why = (
                    _TEST_AGAIN_AFTER,
                    "announcements do not arrive: a pooler stands between",
                )
            except (psycopg.Error, OSError, TimeoutError) as err:
                failures = 0 if self.hears else failures + 1
                pause = _CONNECT_AGAIN[min(failures, len(_CONNECT_AGAIN) - 1)]
                why = f"no connection that listens: {err or type(err).__name__}"
            self._is_hearing(False, why)
            # Notifications are missed from now on: look soon, and then by the clock.
            self.notified.set()
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        """Listen until the connection is lost; return at once if a probe does not arrive."""
        conn = await self._connect()
        try:
            await within(_ANSWERS_WITHIN, conn.execute(QUERIES["listen"]))
            if not await self._hears_a_probe(conn):
                return
            self._is_hearing(True, "")
            self.notified.set()  # for what was queued before
            while True:
                await self._take(conn, _ALIVE_EVERY)
                # Nothing else shows that the other end of the connection is lost.
                await within(_ANSWERS_WITHIN, conn.execute(QUERIES["alive"]))
        finally:
            # At once: `close` of psycopg does not wait for the server.
            await conn.close()

    async def _hears_a_probe(self, conn: AsyncConnection[Any]) -> bool:
        said = str(uuid.uuid4())
        async with await self._connect() as speaker:
            # Not over the listening connection: it would get the probe with its own answer.
            await within(_ANSWERS_WITHIN, speaker.execute(QUERIES["probe"], {"said": said}))
        loop = asyncio.get_running_loop()
        until = loop.time() + _PROBE_ARRIVES_WITHIN
        while (left := until - loop.time()) > 0:
            if said in await self._take(conn, left):
                return True
        return False

    async def _take(self, conn: AsyncConnection[Any], seconds: float) -> set[str]:
        """Wait for a notification, at most so long; return the payloads."""
        # To its end: a generator that is left in the middle keeps the connection locked.
        heard = [notice async for notice in conn.notifies(timeout=seconds, stop_after=1)]
        if any(notice.channel == CHANNEL for notice in heard):
            self.notified.set()
        return {notice.payload for notice in heard}

    async def _connect(self) -> AsyncConnection[Any]:
        # Bounded by its own time-out, not by ours: ours could end just after it has connected,
        # and then nothing would close that connection.
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
        # Without the error's text, which may differ from one time to the next.
        kind = "hears" if hears else why.partition(":")[0]
        if kind != self._said:
            self._said = kind
            self._on_hearing(hears, why)
