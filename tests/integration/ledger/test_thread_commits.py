"""Commits of turns: one version each, all or nothing, and the first one of a turn stands."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pytest

from commitline.canonical import dumps, parse
from commitline.errors import LedgerUnavailable, StaleThread, StatementRefused, Unstorable
from commitline.identity import ActionKey
from commitline.ledger import (
    ActionLedger,
    Committed,
    NewMessage,
    Request,
    ThreadLedger,
    ledger_pool,
)
from commitline.ledger.pool import Pool
from commitline.testing.proxy import TcpProxy
from commitline.tests.builders import parked
from commitline.tests.integration.database import holding, sql, until_blocked
from commitline.tests.integration.ledger.conversations import (
    ODD,
    OTHER,
    RECEIPT,
    RUN_A,
    RUN_B,
    THREAD,
    action,
    everything,
    holding_thread,
    in_this_order,
    row,
    run_of,
    said,
    texts,
    turn,
    version,
)

pytestmark = pytest.mark.usefixtures("conversation")


async def test_each_commit_is_the_next_version_and_says_who_wrote_it(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    committed = [
        await threads.commit(turn(0)),
        await threads.commit(turn(1, step=1)),
        await threads.commit(turn(2, RUN_B)),
    ]

    assert committed == [Committed(1, 10, 2), Committed(2, 20, 4), Committed(3, 10, 2)]
    thread = await threads.get(THREAD)
    assert thread is not None
    assert (thread.version, thread.written_by) == (3, RUN_B)
    assert (await run_of(ledger, RUN_A)).input_tokens == 20
    assert (await run_of(ledger, RUN_B)).output_tokens == 2
    assert await version(threads, OTHER) == 0


async def test_messages_are_kept_in_the_order_of_the_commits_and_in_there_as_they_were_given(
    threads: ThreadLedger,
) -> None:
    many = [said(f"{number}") for number in range(30)]
    await threads.commit(turn(0, text="first", before=many))
    await threads.commit(turn(1, RUN_B, 7, epoch=0, text="second"))

    found = await threads.messages(THREAD)

    assert await texts(threads) == [
        *(str(one) for one in range(30)),
        "first!",
        "second?",
        "second!",
    ]
    assert [(one.version, one.ordinal) for one in found] == [
        *((1, ordinal) for ordinal in range(31)),
        (2, 0),
        (2, 1),
    ]
    assert [(one.role, one.run_key, one.step, one.epoch) for one in found[-3:]] == [
        ("assistant", RUN_A, 0, 0),
        ("user", RUN_B, 7, 0),
        ("assistant", RUN_B, 7, 0),
    ]


async def test_a_commit_writes_messages_version_tokens_reply_and_told_marks_at_once(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    settled = await parked(ledger, action())
    await ledger.settle(settled.key, RECEIPT, by="ada")
    await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    written = turn(
        0,
        before=[said("where is it?", "r1")],
        told=[settled.key],
        replies_to="r1",
        reply='{"output":"there"}',
    )

    assert await threads.commit(written) == Committed(1, 10, 2)

    assert await texts(threads) == ["where is it?", f"{RUN_A}, 0, 0!"]
    assert [one.request_id for one in await threads.messages(THREAD)] == ["r1", None]
    assert await threads.request(THREAD, "r1") == Request(
        THREAD, "r1", '"where is it?"', '{"output":"there"}'
    )
    assert (await row(ledger, action())).notified_version == 1
    (kept,) = await sql(pool, "select replied_version from agent_requests")
    assert kept["replied_version"] == 1


async def test_a_commit_from_an_older_version_writes_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    settled = await parked(ledger, action())
    await ledger.settle(settled.key, RECEIPT, by="ada")
    await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    await threads.commit(turn(0, RUN_B))
    before = await everything(pool)

    for number in (0, 2, -1):
        with pytest.raises(StaleThread, match=f"version 1, by {RUN_B}"):
            await threads.commit(
                turn(
                    number,
                    before=[said("where is it?", "r1")],
                    told=[settled.key],
                    replies_to="r1",
                    reply='"there"',
                )
            )

    assert await everything(pool) == before


@pytest.mark.parametrize(
    ("broken", "error", "why"),
    [
        (NewMessage("user", "no JSON"), Unstorable, "json"),
        (NewMessage(cast("Any", "system"), "{}"), StatementRefused, "agent_messages_role_is_known"),
        (said("where is it?", "r0"), StatementRefused, "agent_messages_one_per_request"),
    ],
    ids=["no JSON", "unknown role", "a request that is there"],
)
async def test_a_commit_of_which_one_message_cannot_be_written_writes_nothing(
    ledger: ActionLedger,
    pool: Pool,
    broken: NewMessage,
    error: type[Exception],
    why: str,
) -> None:
    threads = ledger.threads
    settled = await parked(ledger, action())
    await ledger.settle(settled.key, RECEIPT, by="ada")
    await threads.receive(THREAD, "r1", '"and now?"', agent=None)
    await threads.commit(turn(0, RUN_B, before=[said("where is it?", "r0")]))
    before = await everything(pool)
    written = turn(1, before=[said("and now?", "r1"), broken], told=[settled.key])

    with pytest.raises(error, match=why):
        await threads.commit(replace(written, replies_to="r1", reply='"there"'))

    assert await everything(pool) == before


async def test_of_two_commits_from_one_version_exactly_one_is_written(
    threads: ThreadLedger, pool: Pool, ledger: ActionLedger
) -> None:
    first, second = await in_this_order(
        pool,
        holding_thread(pool),
        threads.commit(turn(0, text="first")),
        threads.commit(turn(0, RUN_B, text="second")),
    )

    assert first == Committed(1, 10, 2)
    assert isinstance(second, StaleThread)
    assert await texts(threads) == ["first?", "first!"]
    assert (await run_of(ledger, RUN_B)).input_tokens == 0


async def test_of_many_commits_from_one_version_exactly_one_is_written(
    threads: ThreadLedger, pool: Pool, ledger: ActionLedger
) -> None:
    ended = await in_this_order(
        pool,
        holding_thread(pool),
        *(threads.commit(turn(0, run, step)) for step in range(4) for run in (RUN_A, RUN_B)),
    )

    assert [type(one) for one in ended] == [Committed, *[StaleThread] * 7]
    assert len(await threads.messages(THREAD)) == 2
    assert await version(threads) == 1


async def test_a_turn_that_is_committed_again_has_its_first_completion(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await threads.commit(turn(0, text="first"))
    before = await everything(pool)

    again = await threads.commit(turn(0, text="second"))

    assert await everything(pool) == before
    assert (again.version, again.input_tokens, again.output_tokens) == (1, 10, 2)
    assert again.earlier == (await threads.messages(THREAD))[-1]
    assert await texts(threads) == ["first?", "first!"]


async def test_a_turn_that_is_committed_again_much_later_has_its_first_completion(
    threads: ThreadLedger,
) -> None:
    await threads.commit(turn(0, text="first"))
    await threads.commit(turn(1, step=1))
    await threads.commit(turn(2, RUN_B))

    again = await threads.commit(turn(0, text="second"))

    assert (again.version, again.input_tokens) == (1, 20)
    assert again.earlier is not None
    assert (again.earlier.version, again.earlier.step) == (1, 0)
    assert "first!" in again.earlier.message


async def test_two_attempts_that_commit_one_turn_at_once_both_get_the_first_completion(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    first, second = await in_this_order(
        pool,
        holding_thread(pool),
        threads.commit(turn(0, text="first")),
        threads.commit(turn(0, text="second")),
    )

    assert first == Committed(1, 10, 2)
    assert isinstance(second, Committed)
    assert second == replace(first, earlier=(await threads.messages(THREAD))[-1])
    assert await texts(threads) == ["first?", "first!"]


async def test_a_turn_that_starts_from_what_it_wrote_itself_has_its_first_completion(
    threads: ThreadLedger, pool: Pool
) -> None:
    await threads.commit(turn(0, text="first"))
    before = await everything(pool)

    again = await threads.commit(turn(1, text="second"))

    assert again.earlier == (await threads.messages(THREAD))[-1]
    assert await everything(pool) == before


async def test_a_commit_whose_answer_was_lost_stands_and_is_found_by_the_next_one(
    threads: ThreadLedger, ledger_database_url: str
) -> None:
    with TcpProxy.before(ledger_database_url) as proxy:
        async with ledger_pool(proxy.url(ledger_database_url), size=1) as pool:
            await pool.wait()
            proxy.freeze_answers()
            with pytest.raises(LedgerUnavailable) as unanswered:
                await ThreadLedger(pool, statement_seconds=1.0).commit(turn(0, text="first"))
            proxy.thaw()

    again = await threads.commit(turn(0, text="second"))

    assert unanswered.value.reached
    assert (again.version, again.input_tokens) == (1, 10)
    assert again.earlier is not None
    assert await texts(threads) == ["first?", "first!"]


async def test_a_commit_that_waits_for_one_that_is_taken_back_is_written(
    threads: ThreadLedger, pool: Pool
) -> None:
    async with holding(
        pool, "update agent_threads set version = 9 where thread_id = %(thread)s", thread=THREAD
    ):
        waiting = asyncio.ensure_future(threads.commit(turn(0)))
        await until_blocked(pool, 1)

    assert await waiting == Committed(1, 10, 2)


async def test_what_was_said_comes_back_exactly(
    threads: ThreadLedger, ledger: ActionLedger
) -> None:
    odd = dumps(ODD)
    request = await threads.receive(THREAD, "r1", odd, agent=None)
    message = NewMessage("user", odd, "r1")
    await threads.commit(turn(0, before=[message], replies_to="r1", reply=odd))
    await ledger.put_value(ActionKey("large"), THREAD, odd)

    answered_request = await threads.request(THREAD, "r1")
    again = await threads.commit(replace(turn(0), messages=[NewMessage("assistant", odd)]))

    assert request == Request(THREAD, "r1", odd, None)
    assert answered_request == Request(THREAD, "r1", odd, odd)
    assert await ledger.get_value(ActionKey("large")) == odd
    assert (await threads.messages(THREAD))[0].message == odd
    assert repr(parse((await threads.read(RUN_A, THREAD)).messages[0].message)) == repr(ODD)
    assert again.earlier == (await threads.messages(THREAD))[1]


@pytest.mark.parametrize(
    "text",
    ['{"b" : 1,\n "a":2.50e1}', '{"a":1,"a":2}', '"\\u0000\\ud83d"', json.dumps("9" * 300_000)],
    ids=["white space", "key twice", "nul and surrogate", "long"],
)
async def test_json_text_is_kept_to_the_byte(threads: ThreadLedger, text: str) -> None:
    received = [await threads.receive(THREAD, "r1", text, agent=None) for _ in range(2)]
    message = NewMessage("assistant", text)
    await threads.commit(replace(turn(0), messages=[message], replies_to="r1", reply=text))

    found = await threads.request(THREAD, "r1")
    assert received == [Request(THREAD, "r1", text, None)] * 2
    assert found == Request(THREAD, "r1", text, text)
    assert [one.message for one in await threads.messages(THREAD)] == [text]
