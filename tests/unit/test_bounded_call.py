"""What the end of a call says, once somebody has cancelled it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from commitline.activities.runner.bounded_call import (
    Abandoned,
    Raised,
    Returned,
    call_within,
    cancelled_if_told,
)
from commitline.activities.runner.tool_runner import ToolRunner

LONG = 60.0


async def apologizes() -> str:
    try:
        await asyncio.sleep(LONG)
    except asyncio.CancelledError:
        await asyncio.sleep(0)
    return "sorry"


async def test_a_coroutine_that_was_told_ends_as_cancelled_whatever_it_returns() -> None:
    with ToolRunner() as runner:
        of_a_tool = await call_within(0.05, runner.run_async("act", apologizes))
    on_this_loop = await call_within(0.05, cancelled_if_told(apologizes()))

    for end in (of_a_tool, on_this_loop):
        assert end.stopped_by == "deadline"
        assert isinstance(end.how, Raised)
        assert isinstance(end.how.error, asyncio.CancelledError)


async def test_a_value_that_is_on_its_way_at_the_deadline_counts() -> None:
    ended = threading.Event()

    async def acts() -> str:
        ended.set()
        return "acted"

    with ToolRunner() as runner:
        calling = asyncio.ensure_future(call_within(0.2, runner.run_async("act", acts)))
        for _ in range(5):
            await asyncio.sleep(0)  # it is on its way to the tools' loop
        assert ended.wait(LONG)
        time.sleep(0.3)  # noqa: ASYNC251 - this loop sees the deadline and the value at once
        end = await calling

    assert end.how == Returned("acted")


async def test_a_coroutine_that_ends_before_it_can_be_told_has_its_own_end_however_late() -> None:
    release, late = threading.Event(), asyncio.Event()
    ends: list[Returned | Raised] = []

    async def blocks() -> str:
        release.wait(LONG)
        return "acted"

    async def on_late(end: Returned | Raised) -> None:
        ends.append(end)
        late.set()

    with ToolRunner() as runner:
        end = await call_within(0.01, runner.run_async("act", blocks), on_late=on_late)
        release.set()
        await late.wait()

    assert isinstance(end.how, Abandoned)
    assert ends == [Returned("acted")]


async def test_what_a_tool_returns_because_its_runner_closes_proves_nothing() -> None:
    began = threading.Event()

    async def acts() -> str:
        began.set()
        return await apologizes()

    with ToolRunner() as runner:
        calling = asyncio.ensure_future(call_within(None, runner.run_async("act", acts)))
        assert await asyncio.to_thread(began.wait, LONG)
    end = await calling

    assert isinstance(end.how, Raised)
    assert isinstance(end.how.error, asyncio.CancelledError)


async def test_a_runner_that_closes_lets_tools_clean_up_and_asyncio_complains_of_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began, release = threading.Event(), threading.Event()
    cleaned: list[int] = []

    async def cleans() -> None:
        try:
            began.set()
            await asyncio.sleep(LONG)
        finally:
            for step in range(3):
                await asyncio.sleep(0.01)
                cleaned.append(step)

    async def hangs() -> None:
        await asyncio.to_thread(release.wait, LONG)

    with ToolRunner() as runner:
        calls = [asyncio.ensure_future(runner.run_async("act", one)) for one in (cleans, hangs)]
        assert await asyncio.to_thread(began.wait, LONG)
    assert [call.cancel() for call in calls] == [True, True]
    await asyncio.wait(calls)
    del runner, calls
    gc.collect()

    assert cleaned == [0, 1, 2]
    assert "Task was destroyed" not in caplog.text
    release.set()
