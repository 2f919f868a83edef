"""Requests of a conversation: each counts once, however often it is sent."""

from __future__ import annotations

import asyncio
from typing import LiteralString

import pytest

from commitline.errors import RequestConflict
from commitline.ledger import Request, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.integration.database import holding, sql, until_blocked
from commitline.tests.integration.ledger.conversations import (
    OTHER,
    RUN_B,
    THREAD,
    everything,
    turn,
    version,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_a_request_is_one_however_often_it_is_sent(threads: ThreadLedger, pool: Pool) -> None:
    received = await asyncio.gather(
        *(threads.receive(THREAD, "r1", '"where is it?"', agent=None) for _ in range(20))
    )

    assert received == [Request(THREAD, "r1", '"where is it?"', None)] * 20
    (count,) = await sql(pool, "select count(*) from agent_requests")
    assert count["count"] == 1


async def test_a_request_that_begins_a_conversation_is_one_however_often_it_is_sent(
    threads: ThreadLedger, pool: Pool
) -> None:
    received = await asyncio.gather(
        *(threads.receive("new", "r1", '"hello"', agent="support") for _ in range(20))
    )

    assert received == [Request("new", "r1", '"hello"', None)] * 20
    assert len(await everything(pool, "agent_requests")) == 1
    begun = await threads.get("new")
    assert begun is not None
    assert (begun.agent, begun.version) == ("support", 0)


async def test_a_request_that_waits_for_the_same_one_is_the_same_or_takes_its_place(
    threads: ThreadLedger, pool: Pool
) -> None:
    insert: LiteralString = (
        "insert into agent_requests (thread_id, request_id, message) "
        "values (%(thread)s, 'r1', '\"first\"')"
    )
    async with holding(pool, insert, thread=THREAD):
        waiting = asyncio.ensure_future(threads.receive(THREAD, "r1", '"mine"', agent=None))
        await until_blocked(pool, 1)

    assert (await waiting).message == '"mine"'
    with pytest.raises(RequestConflict):
        await threads.receive(THREAD, "r1", '"first"', agent=None)


async def test_an_id_that_was_used_for_another_text_is_refused_and_the_first_text_stands(
    threads: ThreadLedger,
) -> None:
    await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    await threads.commit(turn(0, replies_to="r1", reply='"there"'))

    for other in ('"where is it"', ' "where is it?"'):
        with pytest.raises(RequestConflict):
            await threads.receive(THREAD, "r1", other, agent="support")

    found = await threads.request(THREAD, "r1")
    assert found == Request(THREAD, "r1", '"where is it?"', '"there"')


async def test_an_id_counts_within_its_conversation(threads: ThreadLedger) -> None:
    await threads.receive(THREAD, "r1", '"one"', agent=None)
    await threads.receive(OTHER, "r1", '"two"', agent=None)
    await threads.commit(turn(0, replies_to="r1", reply='"there"'))

    assert await threads.request(OTHER, "r1") == Request(OTHER, "r1", '"two"', None)
    assert await threads.request(THREAD, "r1") == Request(THREAD, "r1", '"one"', '"there"')


async def test_a_request_is_answered_by_the_first_commit_that_answers_it(
    threads: ThreadLedger, pool: Pool
) -> None:
    await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    await threads.commit(turn(0))
    assert await threads.request(THREAD, "r1") == Request(THREAD, "r1", '"where is it?"', None)

    await threads.commit(turn(1, step=1, replies_to="r1", reply='"there"'))
    await threads.commit(turn(2, step=2, replies_to="r1", reply='"elsewhere"'))
    await threads.commit(turn(3, RUN_B, replies_to="r1", reply='"nowhere"'))

    received = await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    assert received.reply == '"there"'
    (kept,) = await sql(pool, "select replied_version from agent_requests")
    assert kept["replied_version"] == 2
    assert await version(threads) == 4
