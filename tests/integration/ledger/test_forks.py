"""Forks: what a fork takes back of a conversation, and what goes on after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitline.errors import LedgerUnavailable, ResetRefused, StaleThread
from commitline.ledger import ActionLedger, Committed, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import dispatched, parked
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.conversations import (
    OTHER,
    RECEIPT,
    RUN_A,
    RUN_B,
    RUN_D,
    THREAD,
    action,
    everything,
    holding_action,
    holding_thread,
    in_this_order,
    row,
    run_of,
    said,
    texts,
    three_turns,
    turn,
    version,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_a_fork_takes_back_what_was_said_from_its_turn_on(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)

    assert await threads.fork(RUN_A, 1) == 1

    assert await texts(threads) == ["0?", "0!"]
    assert await version(threads) == 4
    run = await run_of(ledger, RUN_A)
    assert (run.epoch, run.fork_step, run.state) == (1, 1, "running")
    replies = [await threads.request(THREAD, f"r{step}") for step in range(3)]
    assert [one.reply for one in replies if one is not None] == ['"0!"', None, None]
    (kept,) = await sql(pool, "select count(*) from agent_messages where superseded_at is not null")
    assert kept["count"] == 4


async def test_the_state_is_that_of_a_version_and_a_fork_takes_it_back(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    text = '{"a": 1.50, "\\ud83d": [true]}'
    await threads.commit(replace(turn(0), state=text))
    await threads.commit(turn(1, step=1))
    await threads.commit(replace(turn(2, step=2), state='{"a":2}'))
    again = await threads.commit(replace(turn(2, step=2), state='{"a":3}'))
    with pytest.raises(StaleThread):
        await threads.commit(replace(turn(1, RUN_B), state='{"a":4}'))

    read = [await threads.state(THREAD, version) for version in (0, 1, 2, 3, None)]

    assert read == ["{}", text, text, '{"a":2}', '{"a":2}']
    assert again.earlier is not None
    found = await threads.read(RUN_A, THREAD)
    assert (found.state, found.state_version) == ('{"a":2}', 3)
    await threads.fork(RUN_A, 2)
    assert await threads.state(THREAD) == text
    await threads.commit(replace(turn(4, step=2, epoch=1), state='{"a":5}'))
    assert await threads.state(THREAD, 4) == text
    assert await threads.state(THREAD) == '{"a":5}'


async def test_what_a_call_changed_is_recorded_with_its_outcome_and_once(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    """By its attempt, by one that was told to be unknown, and never by a receipt."""
    changes = '{"set":{"a":1}}'
    first, late = action(), action(position="0.1")
    claim = await dispatched(ledger, first)
    outcome = replace(RECEIPT, state_changes=changes)
    assert await ledger.record(claim, outcome) == outcome
    assert await ledger.record(claim, replace(outcome, state_changes=None)) == outcome
    unknown = await parked(ledger, late)
    assert (await row(ledger, late)).state_changes is None
    await ledger.record(unknown, outcome)

    assert [(await row(ledger, one)).state_changes for one in (first, late)] == [changes] * 2
    assert (await row(ledger, first)).recorded == outcome


async def test_a_forked_run_goes_another_way_and_what_it_answers_stands(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    await threads.fork(RUN_A, 1)

    committed = await threads.commit(
        turn(
            4,
            step=1,
            epoch=1,
            text="another",
            before=[said("1?", "r1")],
            replies_to="r1",
            reply='"another!"',
        )
    )

    assert (committed.version, committed.earlier) == (5, None)
    assert await texts(threads) == ["0?", "0!", "1?", "another!"]
    assert [one.epoch for one in await threads.messages(THREAD)] == [0, 0, 1, 1]
    found = await threads.request(THREAD, "r1")
    assert found is not None
    assert found.reply == '"another!"'
    with pytest.raises(StaleThread):
        await threads.commit(turn(2, step=2, text="late"))


async def test_the_execution_from_before_a_fork_commits_nothing(
    threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    await threads.fork(RUN_A, 1)
    before = await everything(pool)

    for late in (turn(1, step=1), turn(2, step=2), turn(3, step=3)):
        with pytest.raises(StaleThread):
            await threads.commit(late)
    again = await threads.commit(turn(0))

    assert again.earlier is not None
    assert again.earlier.version == 1
    assert await everything(pool) == before


@pytest.mark.parametrize("first", ["commit", "fork"])
async def test_of_a_fork_and_a_commit_at_once_the_later_sees_the_earlier(
    threads: ThreadLedger, pool: Pool, first: str
) -> None:
    await three_turns(threads)
    works = {"commit": threads.commit(turn(3, step=3, text="3")), "fork": threads.fork(RUN_A, 1)}
    order = [first, *(name for name in works if name != first)]

    ended = dict(
        zip(
            order,
            await in_this_order(pool, holding_thread(pool), *(works[name] for name in order)),
            strict=True,
        )
    )

    assert ended["fork"] == 1
    assert await texts(threads) == ["0?", "0!"]
    assert isinstance(ended["commit"], Committed if first == "commit" else StaleThread)
    assert await version(threads) == (5 if first == "commit" else 4)


async def test_a_fork_before_the_run_has_gone_on_is_the_same_one(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    await threads.fork(RUN_A, 1)
    before = await everything(pool)

    assert await threads.fork(RUN_A, 1) == 1
    assert await everything(pool) == before


async def test_of_two_forks_at_once_both_get_the_same_epoch(
    threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)

    forks = await in_this_order(
        pool, holding_thread(pool), *(threads.fork(RUN_A, 1) for _ in range(3))
    )

    assert forks == [1, 1, 1]
    assert await version(threads) == 4


async def test_a_fork_of_what_a_fork_said_opens_the_next_epoch(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await three_turns(threads)
    await threads.fork(RUN_A, 1)
    await threads.commit(turn(4, step=1, epoch=1, text="another"))

    assert await threads.fork(RUN_A, 1) == 2
    assert await threads.fork(RUN_A, 0) == 3

    assert await texts(threads) == []
    assert await version(threads) == 7
    with pytest.raises(ResetRefused):
        await threads.fork(RUN_A, 1)
    with pytest.raises(StaleThread):
        await threads.commit(turn(5, step=2, epoch=1))
    assert (await threads.commit(turn(7, epoch=3))).version == 8


async def test_a_fork_is_all_or_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    await dispatched(ledger, action("1.0"))
    before = await everything(pool)
    hasty = ThreadLedger(pool, statement_seconds=0.7)

    async with holding_action(pool, action("1.0").key):
        with pytest.raises(LedgerUnavailable):
            await hasty.fork(RUN_A, 1)

    assert await everything(pool) == before
    assert await threads.fork(RUN_A, 1) == 1


async def test_a_fork_leaves_other_conversations_alone(threads: ThreadLedger, pool: Pool) -> None:
    await three_turns(threads)
    await threads.receive(OTHER, "r0", '"hello"', agent=None)
    for number in range(3):
        await threads.commit(
            turn(number, RUN_D, number, thread_id=OTHER, replies_to="r0", reply='"there"')
        )
    before = await texts(threads, OTHER)

    await threads.fork(RUN_A, 0)

    assert await texts(threads, OTHER) == before
    assert await version(threads, OTHER) == 3
    found = await threads.request(OTHER, "r0")
    assert found is not None
    assert found.reply == '"there"'
    assert await texts(threads) == []
