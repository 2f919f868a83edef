"""Opening conversations, and reading them, their runs and their actions."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from commitline.canonical import dumps
from commitline.errors import RunNotRunning, ThreadNotFound
from commitline.identity import RunKey
from commitline.ledger import ActionLedger, Dispatched, Effect, NewMessage, Request, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import NOON, attempt, dispatched
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.conversations import (
    DOMAIN_KEY,
    OTHER,
    RUN_A,
    RUN_B,
    RUN_C,
    THREAD,
    action,
    give_up,
    run_of,
    turn,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_a_conversation_begins_once_however_often_it_is_opened(
    threads: ThreadLedger, pool: Pool
) -> None:
    opened = await asyncio.gather(
        *(threads.open("new", agent=f"agent {number}") for number in range(20))
    )

    # Whoever asks is its agent, until it has been written: the first may be a misprint.
    assert len({thread.agent for thread in opened}) == 20
    assert {(thread.version, thread.written_by, thread.deleted_at) for thread in opened} == {
        (0, None, None)
    }
    assert await threads.get("new") in opened
    (count,) = await sql(pool, "select count(*) from agent_threads where thread_id = 'new'")
    assert count["count"] == 1


async def test_opening_a_conversation_that_has_gone_on_changes_nothing(
    threads: ThreadLedger,
) -> None:
    await threads.commit(turn(0))
    before = await threads.get(THREAD)

    assert await threads.open(THREAD, agent="sales") == before
    assert before is not None
    assert (before.agent, before.version, before.written_by) == ("support", 1, RUN_A)


async def test_a_conversation_that_is_not_there_is_not_found(threads: ThreadLedger) -> None:
    assert await threads.get("none") is None
    assert await threads.request("none", "r1") is None
    assert await threads.pending_notices("none") == []
    with pytest.raises(ThreadNotFound):
        await threads.messages("none")
    with pytest.raises(ThreadNotFound):
        await threads.read(RUN_A, "none")
    with pytest.raises(RunNotRunning):
        await threads.read(RunKey("nobody/x"), THREAD)
    with pytest.raises(ThreadNotFound):
        await threads.receive("none", "r1", '"hello"', agent=None)
    with pytest.raises(ThreadNotFound):
        await threads.commit(turn(0, thread_id="none"))
    with pytest.raises(ThreadNotFound):
        await threads.delete("none")


async def test_a_call_that_another_actions_row_was_carried_out_for_is_told_by_that_row(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    """A call may take over the dead holder of its business fact, and die before it has a row."""
    holder = replace(action("0.0", effect=Effect.IDEMPOTENT, domain_key=DOMAIN_KEY), run_key=RUN_B)
    await dispatched(ledger, holder, replace(attempt(), lease=timedelta(0)))
    taking = action("2.0", effect=Effect.IDEMPOTENT, domain_key=DOMAIN_KEY)
    taken = await ledger.claim(taking, attempt(1))
    assert isinstance(taken, Dispatched)
    assert taken.settles_for == taking.key

    found = await give_up(threads, RUN_A, [taking.position], by=RUN_C)

    assert {at: (one.key, one.state) for at, one in found.items()} == {
        taking.position: (holder.key, "unknown")
    }


async def test_a_run_whose_row_is_lost_is_given_up_for_good_too(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    gone = RunKey("thread:gone/a")

    await give_up(threads, gone, [], by=RUN_B)

    with pytest.raises(RunNotRunning, match="was stopped"):
        await ledger.claim(replace(action("0.0"), run_key=gone), attempt(1))


async def test_what_is_hard_to_escape_takes_no_longer_to_commit(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    """The driver escapes a list of texts by regular expressions: seconds for a megabyte."""

    async def seconds(text: str, version: int) -> float:
        began = time.perf_counter()
        new = NewMessage("user", dumps(text))
        await threads.commit(replace(turn(version), messages=[new]))
        return time.perf_counter() - began

    await seconds("warm", 0)
    plain = await seconds("x" * 1_600_000, 1)
    hard = await seconds("\\" * 800_000, 2)

    assert hard < 20 * plain


async def test_conversations_are_listed_newest_first_with_what_they_say_now(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await threads.open("newest", agent="sales")
    await threads.commit(turn(0))
    await threads.commit(turn(1, step=1))
    await threads.fork(RUN_A, 1)

    listed = await threads.list()

    assert [(thread.thread_id, count) for thread, count in listed] == [
        ("newest", 0),
        (OTHER, 0),
        (THREAD, 2),
    ]
    assert listed[2][0] == await threads.get(THREAD)
    assert [thread.thread_id for thread, _ in await threads.list(limit=1)] == ["newest"]


async def test_a_turn_starts_from_the_run_the_conversation_and_its_request(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    await threads.commit(turn(0))

    found = await threads.read(RUN_A, THREAD, request_id="r1")
    without = await threads.read(RUN_B, THREAD)
    unheard = await threads.read(RUN_B, THREAD, request_id="r2")

    assert replace(found.run, now=NOON) == await run_of(ledger, RUN_A)
    assert found.run.spec == '{"name":"support"}'
    assert found.thread == await threads.get(THREAD)
    assert found.messages == await threads.messages(THREAD)
    assert found.request == Request(THREAD, "r1", '"where is it?"', None)
    assert (without.run.run_key, without.request, unheard.request) == (RUN_B, None, None)
