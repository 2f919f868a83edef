"""Hearing of what the relay has to do: at once, once for many, and after a lost connection too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import psycopg
import pytest

from commitline.ledger import listen
from commitline.ledger import notifications as notices
from commitline.ledger.sql import QUERIES
from commitline.testing.proxy import TcpProxy

LONG = 1000.0
"""Seconds: no look by the clock within a test."""


class Listening:
    """What a listener has done."""

    def __init__(self) -> None:
        self.looks = 0
        self.told: list[tuple[bool, str]] = []
        self.may_look = asyncio.Event()
        self.may_look.set()

    async def look(self) -> None:
        self.looks += 1
        await self.may_look.wait()

    def hearing(self, hears: bool, why: str) -> None:
        self.told.append((hears, why))

    async def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not true():
            assert time.monotonic() < deadline, (self.looks, self.told)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(
    url: str, *, poll: float = LONG, alone: float = LONG
) -> AsyncIterator[Listening]:
    found = Listening()
    task = asyncio.create_task(
        listen(
            url,
            on_notice=found.look,
            on_hearing=found.hearing,
            poll_seconds=poll,
            poll_seconds_alone=alone,
        )
    )
    try:
        yield found
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert task.cancelled()


def announce(url: str, times: int = 1) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for number in range(times):
            conn.execute("select pg_notify('commitline_relay', %s)", (f"key {number}",))


async def test_what_is_announced_is_looked_for_at_once_and_many_are_one_look(
    ledger_database_url: str,
) -> None:
    async with listening(ledger_database_url) as found:
        await found.until(lambda: found.looks == 2)  # at the start, and when it listened
        assert found.told == [(True, "")]

        found.may_look.clear()
        announce(ledger_database_url)
        await found.until(lambda: found.looks == 3)
        announce(ledger_database_url, times=20)  # while it looks
        await asyncio.sleep(0.2)
        found.may_look.set()
        await found.until(lambda: found.looks == 4)
        await asyncio.sleep(0.2)

        assert found.looks == 4
    assert sessions(ledger_database_url) == 0


async def test_a_listener_that_loses_its_connection_looks_by_the_clock_and_listens_again(
    ledger_database_url: str,
) -> None:
    with TcpProxy.before(ledger_database_url) as proxy:
        async with listening(proxy.url(ledger_database_url), alone=0.02) as found:
            await found.until(lambda: found.told == [(True, "")])
            proxy.cut()
            await found.until(lambda: len(found.told) == 2)
            assert found.told[1][0] is False
            before = found.looks
            await found.until(lambda: found.looks > before + 3)  # nobody announces anything

            proxy.restore()
            await found.until(lambda: len(found.told) == 3)
            assert found.told[2] == (True, "")
            await asyncio.sleep(0.1)
            before = found.looks
            announce(ledger_database_url)
            await found.until(lambda: found.looks > before)


async def test_a_connection_that_is_frozen_is_found_out(
    ledger_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_ALIVE_EVERY", 0.1)
    monkeypatch.setattr(notices, "_ANSWERS_WITHIN", 0.5)
    with TcpProxy.before(ledger_database_url) as proxy:
        async with listening(proxy.url(ledger_database_url)) as found:
            await found.until(lambda: found.told == [(True, "")])
            proxy.freeze()
            await found.until(lambda: len(found.told) == 2)
            proxy.thaw()
            await found.until(lambda: found.told[-1] == (True, ""))


async def test_behind_a_pooler_that_keeps_no_announcements_it_looks_by_the_clock_and_says_so_once(
    ledger_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In transaction mode, ``listen`` takes effect in a session that is somebody else's then.
    monkeypatch.setitem(QUERIES, "listen", "select 1")
    monkeypatch.setattr(notices, "_PROBE_ARRIVES_WITHIN", 0.05)
    monkeypatch.setattr(notices, "_TEST_AGAIN_AFTER", 0.05)
    async with listening(ledger_database_url, alone=0.02) as found:
        await found.until(lambda: found.looks > 10)
        await asyncio.sleep(0.3)

    assert found.told == [(False, "announcements do not arrive: a pooler stands between")]


def sessions(url: str) -> int:
    """How many sessions of listeners there are."""
    with psycopg.connect(url) as conn:
        deadline = time.monotonic() + 10
        while True:
            row = conn.execute(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and application_name = 'commitline listen'"
            ).fetchone()
            conn.rollback()
            if row == (0,) or time.monotonic() > deadline:
                return int(row[0]) if row else 0
