"""Forks that are refused: another run has written, the turn is not there, the run is stopped."""

from __future__ import annotations

import asyncio

import pytest

from commitline.errors import ResetRefused, StaleThread
from commitline.identity import RunKey
from commitline.ledger import ActionLedger, Committed, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import NOON
from commitline.tests.integration.database import until_blocked
from commitline.tests.integration.ledger.conversations import (
    RUN_A,
    RUN_B,
    RUN_D,
    THREAD,
    everything,
    give_up,
    holding_thread,
    in_this_order,
    open_run,
    three_turns,
    turn,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_a_fork_is_refused_when_another_run_has_written_since(
    threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    await threads.commit(turn(3, RUN_B))
    before = await everything(pool)

    with pytest.raises(StaleThread, match=RUN_B):
        await threads.fork(RUN_A, 1)

    assert await everything(pool) == before
    assert await threads.fork(RUN_B, 0) == 1


async def test_a_fork_that_the_run_has_not_gone_on_from_is_refused_once_another_run_has_written(
    threads: ThreadLedger,
) -> None:
    await three_turns(threads)
    await threads.fork(RUN_A, 1)
    await threads.commit(turn(4, RUN_B))

    for step in (1, 0):
        with pytest.raises(StaleThread, match=RUN_B):
            await threads.fork(RUN_A, step)


async def test_a_fork_that_waits_for_another_run_to_write_is_refused(
    threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)

    committed, forked = await in_this_order(
        pool,
        holding_thread(pool),
        threads.commit(turn(3, RUN_B)),
        threads.fork(RUN_A, 1),
    )

    assert isinstance(committed, Committed)
    assert isinstance(forked, StaleThread)
    assert len(await threads.messages(THREAD)) == 8


async def test_a_fork_is_refused_where_another_run_has_written_in_between(
    threads: ThreadLedger, pool: Pool
) -> None:
    await threads.commit(turn(0))
    await threads.commit(turn(1, RUN_B))
    await threads.commit(turn(2, step=1))
    before = await everything(pool)

    with pytest.raises(StaleThread):
        await threads.fork(RUN_A, 0)

    assert await everything(pool) == before
    assert await threads.fork(RUN_A, 1) == 1


async def test_a_fork_of_a_turn_that_is_not_there_is_refused(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    single = RunKey("single/x")
    await open_run(ledger, single, thread_id=None)
    before = await everything(pool)

    for run, step in ((RUN_A, 3), (RUN_A, -1), (single, 0), (RunKey("nobody/x"), 0)):
        with pytest.raises(ResetRefused):
            await threads.fork(run, step)
    with pytest.raises(ResetRefused):
        await threads.fork(RUN_D, 0)

    assert await everything(pool) == before


async def test_a_fork_that_waits_while_its_run_is_stopped_is_refused(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    async with holding_thread(pool):
        forking = asyncio.ensure_future(threads.fork(RUN_A, 1))
        await until_blocked(pool, 1)
        await ledger.runs.stop(
            RUN_A, workflow_id="w", agent="support", reason="ada stopped it", attempt_at=NOON
        )
    with pytest.raises(ResetRefused):
        await forking

    assert len(await threads.messages(THREAD)) == 6


@pytest.mark.parametrize("how", ["stopped", "given up"])
async def test_a_run_that_was_stopped_is_not_forked(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, how: str
) -> None:
    await three_turns(threads)
    if how == "stopped":
        await ledger.runs.stop(
            RUN_A, workflow_id="w", agent="support", reason="ada stopped it", attempt_at=NOON
        )
    else:
        await give_up(threads, RUN_A, [], by=RUN_B)
    before = await everything(pool)

    with pytest.raises(ResetRefused):
        await threads.fork(RUN_A, 1)

    assert await everything(pool) == before
