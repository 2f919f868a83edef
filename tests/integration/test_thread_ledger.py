"""Conversations in Postgres: commits, requests, notices, deletion, giving up, forks.

Races are arranged: a session of the test's holds a lock until Postgres shows that the others
wait for it, in the order in which they came, and only then lets go. A deadlock would not be
resolved (see conftest).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString, TypeVar, cast
from uuid import uuid4

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql as statements

from commitline.canonical import digest, dumps, parse
from commitline.errors import (
    Fenced,
    LedgerUnavailable,
    RequestConflict,
    ResetRefused,
    RunNotRunning,
    StaleThread,
    ThreadDeleted,
    ThreadNotFound,
    Unstorable,
)
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Committed,
    Dispatched,
    Effect,
    NewMessage,
    Outcome,
    Parked,
    Request,
    Run,
    ThreadLedger,
    Turn,
    ledger_pool,
)
from commitline.ledger.pool import Pool
from commitline.testing.proxy import TcpProxy
from commitline.tests.integration.database import holding, sql, until_blocked

T = TypeVar("T")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
THREAD: Final = "support-4821"
OTHER: Final = "support-4822"
RUN_A = RunKey("thread:support-4821/a")
RUN_B = RunKey("thread:support-4821/b")
RUN_C = RunKey("thread:support-4821/c")
RUN_D = RunKey("thread:support-4822/d")
DOMAIN_KEY: Final = "order-4821-ship"
ARGS: Final = '{"order_id":"4821"}'
RECEIPT = Outcome.ok('{"id":"sh_1"}')
DECLINED = Outcome.error(kind="ToolRefused", message="no such address", effect_possible=False)
LEASE = timedelta(minutes=5)
ODD: Final = {
    "nul": "a\x00b",
    "lone": "\ud83d and \udc00",
    "float": 2.561422288066971e16,
    "small": 5e-324,
    "minus": -0.0,
    "big": 10**400,
    "text": 'quotes " and \\ and {braces} and NULL, \n and ☃',
}
_TABLES: Final = (
    "agent_threads",
    "agent_messages",
    "agent_requests",
    "agent_values",
    "agent_states",
    "agent_approvals",
    "agent_relay",
    "agent_questions",
    "agent_runs",
    "agent_actions",
    "agent_domain_keys",
)


@pytest.fixture
def threads(ledger: ActionLedger) -> ThreadLedger:
    return ledger.threads


@pytest_asyncio.fixture(autouse=True)
async def conversation(ledger: ActionLedger, threads: ThreadLedger) -> None:
    """A conversation of three runs, and one of a fourth."""
    await threads.open(THREAD, agent="support")
    await threads.open(OTHER, agent="support")
    for run in (RUN_A, RUN_B, RUN_C):
        await open_run(ledger, run)
    await open_run(ledger, RUN_D, thread_id=OTHER)


async def give_up(
    threads: ThreadLedger, run: RunKey, positions: Sequence[Position], *, by: RunKey
) -> dict[Position, Action]:
    """Have a run that goes on from the conversation's newest version give another one up."""
    found = await threads.get(THREAD) or await threads.open(THREAD, agent="support")
    return await threads.give_up_turn(
        run, positions, by=by, thread_id=THREAD, version=found.version
    )


async def open_run(
    ledger: ActionLedger, run: RunKey, *, second: int = 0, thread_id: str | None = THREAD
) -> Run:
    return await ledger.open_run(
        run_key=run,
        workflow_id=run.rpartition("/")[0],
        agent="support",
        input_digest="input",
        attempt_at=NOON + timedelta(seconds=second),
        thread_id=thread_id,
        spec='{"name":"support"}',
    )


def said(text: str, request_id: str | None = None) -> NewMessage:
    return NewMessage("user", dumps({"role": "user", "text": text}), request_id)


def answered(text: str) -> NewMessage:
    return NewMessage("assistant", dumps({"role": "assistant", "completion": {"text": text}}))


def turn(
    version: int,
    run: RunKey = RUN_A,
    step: int = 0,
    *,
    epoch: int = 0,
    text: str = "",
    thread_id: str = THREAD,
    before: Sequence[NewMessage] | None = None,
    told: Sequence[str] = (),
    replies_to: str | None = None,
    reply: str | None = None,
) -> Turn:
    """A turn that says something and is answered, which took 10 and 2 tokens."""
    name = text or f"{run}, {step}, {epoch}"
    messages = [said(f"{name}?")] if before is None else before
    return Turn(
        thread_id,
        version,
        run,
        step,
        epoch,
        [*messages, answered(f"{name}!")],
        10,
        2,
        told=told,
        replies_to=replies_to,
        reply=reply,
    )


def action(
    position: str = "0.0",
    *,
    run: RunKey = RUN_A,
    effect: Effect = Effect.AT_MOST_ONCE,
    thread_id: str | None = THREAD,
    domain_key: str | None = None,
    args: str = ARGS,
) -> ActionRequest:
    return ActionRequest(
        run_key=run,
        position=Position(position),
        tool="ship",
        args=args,
        effect=effect,
        requested_digest=digest(parse(args)),
        effective_digest=digest(parse(args)),
        domain_key=domain_key,
        thread_id=thread_id,
    )


def attempt(second: int = 0) -> Attempt:
    """An attempt that began so many seconds after noon, by the engine's clock."""
    return Attempt(NOON + timedelta(seconds=second), uuid4(), LEASE)


async def dispatched(
    ledger: ActionLedger, request: ActionRequest, by: Attempt | None = None
) -> Dispatched:
    claim = await ledger.claim(request, by or attempt())
    assert isinstance(claim, Dispatched)
    return claim


async def unknown(ledger: ActionLedger, request: ActionRequest) -> Dispatched:
    """An action that is parked, and that a person may settle."""
    claim = await dispatched(ledger, request)
    await ledger.park(claim, "the provider hung up")
    return claim


async def handed_back(ledger: ActionLedger, request: ActionRequest) -> None:
    """An intent: its attempt has sent nothing."""
    by = attempt()
    await dispatched(ledger, request, by)
    assert await ledger.hand_back(request, by)


async def row(ledger: ActionLedger, request: ActionRequest) -> Action:
    found = await ledger.get(request.key)
    assert found is not None
    return found


async def run_of(ledger: ActionLedger, run: RunKey) -> Run:
    """The run as it is stored, whenever it is read."""
    found = await ledger.get_run(run)
    assert found is not None
    return replace(found, now=NOON)


async def version(threads: ThreadLedger, thread_id: str = THREAD) -> int:
    found = await threads.get(thread_id)
    assert found is not None
    return found.version


async def texts(threads: ThreadLedger, thread_id: str = THREAD) -> list[str]:
    """What was said, in short."""
    found = []
    for stored in await threads.messages(thread_id):
        message = json.loads(stored.message)
        found.append(message.get("text") or message["completion"]["text"])
    return found


async def everything(pool: Pool, *tables: str) -> dict[str, list[str]]:
    """All rows of these tables; of all that conversations touch, if none is named."""
    found = {}
    async with pool.connection() as connection:
        for table in tables or _TABLES:
            query = statements.SQL("select t::text as row from {} as t")
            cursor = await connection.execute(query.format(statements.Identifier(table)))
            found[table] = sorted(row["row"] for row in await cursor.fetchall())
    return found


def holding_thread(pool: Pool) -> Any:
    return holding(
        pool, "select from agent_threads where thread_id = %(thread)s for update", thread=THREAD
    )


def holding_run(pool: Pool, run: RunKey) -> Any:
    return holding(pool, "select from agent_runs where run_key = %(run)s for update", run=run)


def holding_action(pool: Pool, key: ActionKey) -> Any:
    return holding(pool, "select from agent_actions where key = %(key)s for update", key=key)


async def until_blocked_or_done(pool: Pool, sessions: int, work: asyncio.Future[Any]) -> None:
    """Return when one more session waits for a lock, or its work did not have to."""
    blocked = asyncio.ensure_future(until_blocked(pool, sessions))
    await asyncio.wait({blocked, work}, return_when=asyncio.FIRST_COMPLETED)
    blocked.cancel()


async def in_this_order(pool: Pool, hold: Any, *works: Awaitable[Any]) -> list[Any]:
    """Let each wait behind the one before it, then let all go on; return what became of them."""
    tasks = []
    async with hold:
        for number, work in enumerate(works, 1):
            tasks.append(asyncio.ensure_future(work))
            await until_blocked(pool, number)
    return list(await asyncio.gather(*tasks, return_exceptions=True))


# --- opening and reading -----------------------------------------------------------------


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


# --- commits -----------------------------------------------------------------------------


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
    settled = await unknown(ledger, action())
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
    settled = await unknown(ledger, action())
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
    ("broken", "error"),
    [
        (NewMessage("user", "no JSON"), Unstorable),
        (NewMessage(cast("Any", "system"), "{}"), psycopg.errors.CheckViolation),
        (said("where is it?", "r0"), psycopg.errors.UniqueViolation),
    ],
    ids=["no JSON", "unknown role", "a request that is there"],
)
async def test_a_commit_of_which_one_message_cannot_be_written_writes_nothing(
    ledger: ActionLedger,
    threads: ThreadLedger,
    pool: Pool,
    broken: NewMessage,
    error: type[Exception],
) -> None:
    settled = await unknown(ledger, action())
    await ledger.settle(settled.key, RECEIPT, by="ada")
    await threads.receive(THREAD, "r1", '"and now?"', agent=None)
    await threads.commit(turn(0, RUN_B, before=[said("where is it?", "r0")]))
    before = await everything(pool)
    written = turn(1, before=[said("and now?", "r1"), broken], told=[settled.key])

    with pytest.raises(error):
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


# --- requests ----------------------------------------------------------------------------


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


# --- notices -----------------------------------------------------------------------------


async def test_what_was_settled_is_told_once_by_the_commit_that_tells_it(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await unknown(ledger, action())
    assert await threads.pending_notices(THREAD) == []

    await ledger.settle(first.key, RECEIPT, by="ada")
    (found,) = await threads.pending_notices(THREAD)
    (again,) = await threads.pending_notices(THREAD)
    await threads.commit(turn(0, told=[first.key]))

    assert (found.key, found.state, found.decided_by) == (first.key, "ok", "ada")
    assert again.key == found.key
    assert await threads.pending_notices(THREAD) == []
    assert (await row(ledger, action())).notified_version == 1


async def test_a_commit_that_fails_tells_nothing(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await unknown(ledger, action())
    await ledger.settle(first.key, RECEIPT, by="ada")
    await threads.commit(turn(0))

    with pytest.raises(StaleThread):
        await threads.commit(turn(0, RUN_B, told=[first.key]))

    assert [one.key for one in await threads.pending_notices(THREAD)] == [first.key]


async def test_of_two_turns_that_tell_one_settlement_at_once_one_tells_it(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    first = await unknown(ledger, action())
    await ledger.settle(first.key, RECEIPT, by="ada")

    _, stale = await in_this_order(
        pool,
        holding_thread(pool),
        threads.commit(turn(0, RUN_B, told=[first.key])),
        threads.commit(turn(0, RUN_C, told=[first.key])),
    )
    await threads.commit(turn(1, RUN_C, told=[first.key]))

    assert isinstance(stale, StaleThread)
    assert (await row(ledger, action())).notified_version == 1


async def test_what_is_still_unknown_is_not_marked_as_told(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await unknown(ledger, action())

    await threads.commit(turn(0, told=[first.key, "no such action"]))
    await ledger.settle(first.key, RECEIPT, by="ada")

    assert [one.key for one in await threads.pending_notices(THREAD)] == [first.key]


async def test_what_is_settled_after_a_run_has_ended_is_told_to_the_next_one_once(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await unknown(ledger, action())
    elsewhere = await unknown(ledger, action(run=RUN_D, thread_id=OTHER))
    await threads.commit(turn(0))
    await ledger.end_run(RUN_A, attempt_at=NOON)

    for claim in (first, elsewhere):
        await ledger.settle(claim.key, RECEIPT, by="ada")

    (told,) = await threads.pending_notices(THREAD)
    assert told.key == first.key
    await threads.commit(turn(1, RUN_B, told=[told.key]))
    assert await threads.pending_notices(THREAD) == []
    assert [one.key for one in await threads.pending_notices(OTHER)] == [elsewhere.key]


async def test_a_late_answer_to_what_was_unknown_is_told_and_its_repetition_with_it(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    first = await unknown(ledger, action())
    repeated = await ledger.claim(action(run=RUN_B), attempt())
    assert isinstance(repeated, Parked)

    await ledger.record(first, RECEIPT)

    found = await threads.pending_notices(THREAD)
    assert {one.key for one in found} == {first.key, repeated.action.key}
    await threads.commit(turn(0, RUN_C, told=[one.key for one in found]))
    assert await threads.pending_notices(THREAD) == []


async def test_what_an_earlier_release_told_is_not_told_again(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    # It kept no thread on its rows, and told a run, by its turns.
    run = RunKey("single/x")
    await open_run(ledger, run, thread_id=None)
    first = await unknown(ledger, action(run=run, thread_id=None))
    second = await unknown(ledger, action("1.0", run=run, thread_id=None, args='{"order_id":"2"}'))
    await ledger.settle(first.key, RECEIPT, by="ada")
    await ledger.take_notices(run, 3)
    await ledger.settle(second.key, RECEIPT, by="ada")

    assert [one.key for one in await threads.pending_notices(run)] == [second.key]
    assert await threads.pending_notices(THREAD) == []


# --- an unknown holds back its repetition ------------------------------------------------


async def test_an_unknown_of_another_run_of_the_conversation_is_not_repeated(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await unknown(ledger, action())

    claim = await ledger.claim(action(run=RUN_B), attempt())

    assert isinstance(claim, Parked)
    assert (claim.action.key, claim.action.duplicate_of) == (action(run=RUN_B).key, first.key)
    assert (claim.action.dispatched_at, claim.action.thread_id) == (None, THREAD)


async def test_an_unknown_of_another_conversation_holds_nothing_back(ledger: ActionLedger) -> None:
    await unknown(ledger, action())

    await dispatched(ledger, action(run=RUN_D, thread_id=OTHER))
    await dispatched(ledger, action("1.0", run=RUN_B, args='{"order_id":"4822"}'))


async def test_an_unknown_that_became_known_holds_nothing_back_any_more(
    ledger: ActionLedger,
) -> None:
    first = await unknown(ledger, action())
    await ledger.settle(first.key, RECEIPT, by="ada")

    await dispatched(ledger, action(run=RUN_B))


async def test_a_row_without_a_conversation_counts_for_its_run(ledger: ActionLedger) -> None:
    run, other = RunKey("single/x"), RunKey("single/y")
    for one in (run, other):
        await open_run(ledger, one, thread_id=None)
    await unknown(ledger, action(run=run, thread_id=None))

    # The next release names the run's own conversation, which is the run's key.
    repeated = await ledger.claim(action("1.0", run=run, thread_id=run), attempt())
    older = await ledger.claim(action("2.0", run=run, thread_id=None), attempt())

    assert isinstance(repeated, Parked)
    assert isinstance(older, Parked)
    await dispatched(ledger, action(run=other, thread_id=None))
    await dispatched(ledger, action(run=RUN_A))


async def test_a_repetition_that_waits_for_a_settlement_is_sent_once_that_is_known(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await unknown(ledger, action())

    settled, claim = await in_this_order(
        pool,
        holding_action(pool, first.key),
        ledger.settle(first.key, RECEIPT, by="ada"),
        ledger.claim(action(run=RUN_B), attempt()),
    )

    assert [one.key for one in settled] == [first.key]
    assert isinstance(claim, Dispatched)


async def test_a_settlement_that_waits_for_a_repetition_settles_it_too(
    ledger: ActionLedger, pool: Pool, threads: ThreadLedger
) -> None:
    first = await unknown(ledger, action())

    claim, settled = await in_this_order(
        pool,
        holding_action(pool, first.key),
        ledger.claim(action(run=RUN_B), attempt()),
        ledger.settle(first.key, RECEIPT, by="ada"),
    )

    assert isinstance(claim, Parked)
    assert {one.key for one in settled} == {first.key, action(run=RUN_B).key}
    assert {one.key for one in await threads.pending_notices(THREAD)} == {
        one.key for one in settled
    }


# --- deletion ----------------------------------------------------------------------------


async def written(ledger: ActionLedger, threads: ThreadLedger) -> None:
    """A conversation with everything in it."""
    await unknown(ledger, action())
    await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    await threads.receive(THREAD, "r2", '"and now?"', agent=None)
    await threads.commit(replace(turn(0, replies_to="r1", reply='"there"'), state='{"a":1}'))
    await threads.commit(turn(1, step=1))
    await ledger.put_value(ActionKey("large"), THREAD, '"large"')


async def test_a_deleted_conversation_leaves_a_tombstone_and_the_record_of_its_actions(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await written(ledger, threads)
    await threads.fork(RUN_A, 1)
    actions = await everything(pool, "agent_actions", "agent_runs", "agent_domain_keys")
    await threads.receive(OTHER, "r1", '"hello"', agent=None)
    await threads.commit(turn(0, RUN_D, thread_id=OTHER))
    await ledger.put_value(ActionKey("other"), OTHER, '"large"')
    other = await texts(threads, OTHER)

    await threads.delete(THREAD)

    tombstone = await threads.get(THREAD)
    assert tombstone is not None
    assert (tombstone.version, tombstone.written_by) == (3, RUN_A)
    assert tombstone.deleted_at is not None
    left = await everything(
        pool, "agent_messages", "agent_requests", "agent_values", "agent_states"
    )
    assert not [text for rows in left.values() for text in rows if THREAD in text]
    assert await ledger.get_value(ActionKey("large")) is None
    kept = await everything(pool, "agent_actions", "agent_domain_keys")
    assert kept == {table: actions[table] for table in kept}
    assert await texts(threads, OTHER) == other
    assert await threads.request(OTHER, "r1") is not None
    assert await ledger.get_value(ActionKey("other")) == '"large"'


async def test_nothing_brings_a_deleted_conversation_back(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await written(ledger, threads)
    await threads.delete(THREAD)
    before = await everything(pool)

    works: list[Callable[[], Awaitable[Any]]] = [
        lambda: threads.commit(turn(2, step=2)),
        lambda: threads.commit(turn(0)),
        lambda: threads.receive(THREAD, "r1", '"where is it?"', agent=None),
        lambda: threads.receive(THREAD, "r3", '"hello"', agent="support"),
        lambda: threads.open(THREAD, agent="support"),
        lambda: threads.read(RUN_A, THREAD),
        lambda: threads.messages(THREAD),
        lambda: threads.fork(RUN_A, 1),
    ]
    for work in works:
        with pytest.raises(ThreadDeleted):
            await work()
    await ledger.put_value(ActionKey("large"), THREAD, '"late"')

    assert await everything(pool) == before
    assert await ledger.get_value(ActionKey("large")) is None


async def test_a_conversation_may_be_deleted_twice(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await written(ledger, threads)
    first, second = await in_this_order(
        pool, holding_thread(pool), threads.delete(THREAD), threads.delete(THREAD)
    )
    before = await everything(pool)

    await threads.delete(THREAD)

    assert (first, second) == (None, None)
    assert await everything(pool) == before


async def test_a_value_of_a_conversation_that_is_not_there_is_not_kept(
    ledger: ActionLedger,
) -> None:
    await ledger.put_value(ActionKey("large"), "none", '"large"')

    assert await ledger.get_value(ActionKey("large")) is None


async def test_of_two_values_of_one_read_the_last_is_kept(ledger: ActionLedger) -> None:
    for text in ('"first"', '"second"'):
        await ledger.put_value(ActionKey("large"), THREAD, text)

    assert await ledger.get_value(ActionKey("large")) == '"second"'


Writer = Callable[[ActionLedger, ThreadLedger], Awaitable[Any]]
WRITERS: Final[dict[str, Writer]] = {
    "commit": lambda _, threads: threads.commit(turn(2, step=2)),
    "receive": lambda _, threads: threads.receive(THREAD, "r3", '"late"', agent=None),
    "receive, and begin": lambda _, threads: threads.receive(THREAD, "r3", '"late"', agent="x"),
    "open": lambda _, threads: threads.open(THREAD, agent="support"),
    "put a value": lambda ledger, _: ledger.put_value(ActionKey("late"), THREAD, '"late"'),
    "fork": lambda _, threads: threads.fork(RUN_A, 1),
}


@pytest.mark.parametrize("name", WRITERS)
async def test_what_waits_for_a_deletion_writes_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, name: str
) -> None:
    await written(ledger, threads)
    deleted, late = await in_this_order(
        pool,
        holding_thread(pool),
        threads.delete(THREAD),
        WRITERS[name](ledger, threads),
    )
    after = await everything(pool)

    assert deleted is None
    assert late is None if name == "put a value" else isinstance(late, ThreadDeleted)
    found = await everything(pool, "agent_messages", "agent_requests", "agent_values")
    assert found == {"agent_messages": [], "agent_requests": [], "agent_values": []}
    tombstone = await threads.get(THREAD)
    assert tombstone is not None
    assert (tombstone.version, tombstone.deleted_at is None) == (2, False)
    assert await everything(pool) == after
    assert ((await run_of(ledger, RUN_A)).input_tokens, (await run_of(ledger, RUN_A)).epoch) == (
        20,
        0,
    )


@pytest.mark.parametrize("name", WRITERS)
async def test_a_deletion_that_waits_for_a_write_deletes_that_too(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, name: str
) -> None:
    await written(ledger, threads)
    late, deleted = await in_this_order(
        pool,
        holding_thread(pool),
        WRITERS[name](ledger, threads),
        threads.delete(THREAD),
    )

    assert deleted is None
    # Taking a request up is several statements: what it has written may be gone again.
    assert not isinstance(late, Exception) or isinstance(late, ThreadDeleted)
    assert not isinstance(late, Exception) or name.startswith("receive")
    found = await everything(pool, "agent_messages", "agent_requests", "agent_values")
    assert found == {"agent_messages": [], "agent_requests": [], "agent_values": []}
    with pytest.raises(ThreadDeleted):
        await threads.messages(THREAD)


async def test_an_action_of_a_deleted_conversation_is_recorded_settled_and_untouched(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    late = await dispatched(ledger, action("0.1", args='{"order_id":"2"}'))
    parked = await unknown(ledger, action("0.2", args='{"order_id":"3"}'))
    declined = await dispatched(ledger, action("0.3", domain_key=DOMAIN_KEY))
    before = await everything(pool, "agent_actions")

    await threads.delete(THREAD)

    assert await everything(pool, "agent_actions") == before
    assert await ledger.record(late, RECEIPT) == RECEIPT
    assert await ledger.record(declined, DECLINED) == DECLINED
    assert [one.state for one in await ledger.settle(parked.key, RECEIPT, by="ada")] == ["ok"]
    assert (await row(ledger, action("0.1", args='{"order_id":"2"}'))).state == "ok"


# --- giving a turn up --------------------------------------------------------------------


async def test_what_is_done_keeps_its_outcome_when_its_turn_is_given_up(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    done = action("0.0", domain_key=DOMAIN_KEY)
    refused = action("0.1", args='{"order_id":"2"}')
    await ledger.record(await dispatched(ledger, done), RECEIPT)
    await ledger.record(await dispatched(ledger, refused), DECLINED)
    before = [await row(ledger, one) for one in (done, refused)]

    found = await give_up(threads, RUN_A, [done.position, refused.position], by=RUN_B)

    assert [replace(found[one.position], now=NOON) for one in (done, refused)] == [
        replace(one, now=NOON) for one in before
    ]
    assert await threads.pending_notices(THREAD) == []


async def test_what_may_have_been_sent_is_parked_and_its_lease_stays(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    await dispatched(ledger, request)
    before = await row(ledger, request)

    found = await give_up(threads, RUN_A, [request.position], by=RUN_B)

    after = found[request.position]
    assert (after.state, after.lease_until, after.claim_token) == (
        "unknown",
        before.lease_until,
        before.claim_token,
    )
    assert replace(await row(ledger, request), now=NOON) == replace(after, now=NOON)


async def test_a_late_answer_settles_what_was_given_up_and_is_told_to_the_next_run(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    claim = await dispatched(ledger, request)
    await give_up(threads, RUN_A, [request.position], by=RUN_B)
    assert await threads.pending_notices(THREAD) == []

    assert await ledger.record(claim, RECEIPT) == RECEIPT

    (told,) = await threads.pending_notices(THREAD)
    assert (told.key, told.state) == (request.key, "ok")
    await threads.commit(turn(0, RUN_B, told=[told.key]))
    assert await threads.pending_notices(THREAD) == []


async def test_an_attempt_that_sent_nothing_after_all_does_not_take_back_what_was_given_up(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    by = attempt()
    await dispatched(ledger, request, by)
    await give_up(threads, RUN_A, [request.position], by=RUN_B)

    assert not await ledger.hand_back(request, by)
    assert (await row(ledger, request)).state == "unknown"


async def test_what_was_never_sent_is_void_and_its_business_fact_is_free_again(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    await handed_back(ledger, request)

    found = await give_up(threads, RUN_A, [request.position], by=RUN_B)
    claim = await dispatched(ledger, action(run=RUN_B, domain_key=DOMAIN_KEY))

    voided = found[request.position]
    assert (voided.state, voided.effect_possible, voided.settled_at) == ("error", False, None)
    assert (claim.key, claim.taken_over) == (action(run=RUN_B).key, False)
    assert claim.idempotency_key == f"{DOMAIN_KEY}~2"
    assert await threads.pending_notices(THREAD) == []


async def test_a_business_fact_that_may_have_happened_is_not_free(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    await dispatched(ledger, request)
    await give_up(threads, RUN_A, [request.position], by=RUN_B)

    claim = await ledger.claim(action(run=RUN_B, domain_key=DOMAIN_KEY), attempt())

    assert isinstance(claim, Parked)
    assert claim.action.duplicate_of == request.key


async def test_only_what_the_ledger_has_of_a_turn_is_returned_and_other_turns_are_left_alone(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    earlier = action("0.0", args='{"order_id":"2"}')
    given_up = action("1.1")
    await dispatched(ledger, earlier)
    await dispatched(ledger, given_up)

    found = await give_up(
        threads, RUN_A, [Position("1.0"), Position("1.1"), Position("1.2")], by=RUN_B
    )

    assert list(found) == ["1.1"]
    assert (await row(ledger, earlier)).state == "dispatched"


async def test_giving_a_turn_up_again_changes_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await dispatched(ledger, action("0.0"))
    await handed_back(ledger, action("0.1", domain_key=DOMAIN_KEY))
    positions = [Position("0.0"), Position("0.1")]
    first = await give_up(threads, RUN_A, positions, by=RUN_B)
    before = await everything(pool)

    for by in (RUN_B, RUN_C):
        again = await give_up(threads, RUN_A, positions, by=by)
        assert {at: one.state for at, one in again.items()} == {
            at: one.state for at, one in first.items()
        }

    assert await everything(pool) == before
    assert (await run_of(ledger, RUN_A)).stop_reason == f"the conversation went on with {RUN_B}"


async def test_a_run_that_was_given_up_starts_nothing_any_more(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    intent = action("0.0", domain_key=DOMAIN_KEY)
    await handed_back(ledger, intent)
    taken_over = action("0.1", effect=Effect.IDEMPOTENT, args='{"order_id":"2"}')
    await dispatched(ledger, taken_over)
    forgotten = action("0.2", effect=Effect.IDEMPOTENT, args='{"order_id":"3"}')
    await dispatched(ledger, forgotten)
    left = action("0.3", args='{"order_id":"4"}')
    await handed_back(ledger, left)
    lookup = replace(action("0.4", effect=Effect.LOOKUP, args='{"order_id":"5"}'), can_look_up=True)
    await dispatched(ledger, lookup)

    await give_up(threads, RUN_A, [intent.position, taken_over.position], by=RUN_B)
    before = await everything(pool)

    assert isinstance(await ledger.claim(intent, attempt(1)), AlreadyDone)
    assert isinstance(await ledger.claim(taken_over, attempt(1)), Parked)
    for request in (forgotten, left, lookup, action("0.5"), action("e1-0.5"), action("9.0")):
        for second in (1, 10_000):
            with pytest.raises(RunNotRunning):
                await ledger.claim(request, attempt(second))
    with pytest.raises(RunNotRunning):
        await ledger.claim(action("1.0", domain_key="new"), attempt(1))
    assert await everything(pool) == before
    reopened = await open_run(ledger, RUN_A, second=10_000)
    assert (reopened.state, reopened.stopped_at is None) == ("ended", False)
    with pytest.raises(RunNotRunning):
        await ledger.claim(action("9.0"), attempt(20_000))


async def test_what_a_run_that_was_given_up_asks_about_is_not_sent(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    from commitline.ledger import LookUp

    request = replace(action(effect=Effect.LOOKUP), can_look_up=True)
    await dispatched(ledger, request)
    ask = await ledger.claim(request, attempt(1))
    assert isinstance(ask, LookUp)

    await give_up(threads, RUN_A, [request.position], by=RUN_B)

    with pytest.raises((RunNotRunning, Fenced)):
        await ledger.send_after_lookup(request, ask.call)
    assert (await row(ledger, request)).state == "unknown"


async def test_a_run_that_ended_or_was_stopped_before_keeps_its_own_reason(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await ledger.end_run(RUN_A, attempt_at=NOON + timedelta(hours=1))
    await ledger.stop_run(
        RUN_C, workflow_id="w", agent="support", reason="ada stopped it", attempt_at=NOON
    )
    stopped = await run_of(ledger, RUN_C)

    for run in (RUN_A, RUN_C):
        await give_up(threads, run, [], by=RUN_B)

    ended = await run_of(ledger, RUN_A)
    assert (ended.state, ended.ended_attempt_at) == ("ended", NOON + timedelta(hours=1))
    assert ended.stopped_at is not None
    given_up = await run_of(ledger, RUN_C)
    assert (given_up.state, given_up.stop_reason) == ("ended", "ada stopped it")
    assert given_up.stopped_at == stopped.stopped_at


async def test_a_run_gives_up_a_turn_of_its_own_and_goes_on(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    request = action()
    await dispatched(ledger, request)
    before = await run_of(ledger, RUN_A)

    found = await give_up(threads, RUN_A, [request.position], by=RUN_A)

    assert found[request.position].state == "unknown"
    assert await run_of(ledger, RUN_A) == before
    await dispatched(ledger, action("1.0", args='{"order_id":"2"}'))


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY], ids=["keyless", "keyed"])
async def test_a_claim_that_waits_while_its_run_is_given_up_claims_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, domain_key: str | None
) -> None:
    request = action(domain_key=domain_key)

    found, claim = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.claim(request, attempt()),
    )

    assert found == {}
    assert isinstance(claim, RunNotRunning)
    assert await ledger.get(request.key) is None


async def test_a_claim_of_its_own_intent_that_waits_while_its_run_is_given_up_sends_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    await handed_back(ledger, request)

    found, claim = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.claim(request, attempt(1)),
    )

    assert found[request.position].state == "error"
    assert isinstance(claim, AlreadyDone)
    assert (await row(ledger, request)).tries == 0


@pytest.mark.parametrize("effect", [Effect.IDEMPOTENT, Effect.AT_MOST_ONCE])
async def test_a_take_over_that_waits_while_its_run_is_given_up_sends_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, effect: Effect
) -> None:
    request = action(effect=effect)
    await dispatched(ledger, request)

    _, claim = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.claim(request, attempt(1)),
    )

    assert isinstance(claim, Parked)
    assert (await row(ledger, request)).tries == 1


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY], ids=["keyless", "keyed"])
async def test_a_run_is_given_up_behind_a_claim_and_what_that_sends_is_parked(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, domain_key: str | None
) -> None:
    request = action(domain_key=domain_key)

    claim, found = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        ledger.claim(request, attempt()),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
    )

    assert isinstance(claim, Dispatched)
    assert found[request.position].state == "unknown"
    assert await ledger.record(claim, RECEIPT) == RECEIPT
    assert [one.key for one in await threads.pending_notices(THREAD)] == [request.key]


async def test_a_record_that_waits_for_giving_up_settles_what_was_parked(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action()
    claim = await dispatched(ledger, request)

    found, recorded = await in_this_order(
        pool,
        holding_action(pool, request.key),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
        ledger.record(claim, RECEIPT),
    )

    assert found[request.position].state == "unknown"
    assert recorded == RECEIPT
    assert [one.key for one in await threads.pending_notices(THREAD)] == [request.key]


async def test_giving_up_that_waits_for_a_record_tells_what_was_recorded(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action()
    claim = await dispatched(ledger, request)

    recorded, found = await in_this_order(
        pool,
        holding_action(pool, request.key),
        ledger.record(claim, RECEIPT),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
    )

    assert recorded == RECEIPT
    assert found[request.position].recorded == RECEIPT
    assert await threads.pending_notices(THREAD) == []


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY], ids=["keyless", "keyed"])
async def test_what_is_handed_back_before_it_is_given_up_is_void_and_not_unknown(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool, domain_key: str | None
) -> None:
    request = action(domain_key=domain_key)
    by = attempt()
    await dispatched(ledger, request, by)

    handed, found = await in_this_order(
        pool,
        holding_action(pool, request.key),
        ledger.hand_back(request, by),
        give_up(threads, RUN_A, [request.position], by=RUN_B),
    )

    assert handed is True
    assert found[request.position].state == "error"
    await dispatched(ledger, action(run=RUN_B, domain_key=domain_key))


async def test_an_intent_that_another_run_claims_at_once_is_sent_or_void_and_never_both(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    request = action(domain_key=DOMAIN_KEY)
    wanted = action(run=RUN_B, domain_key=DOMAIN_KEY)
    for order in ((0, 1), (1, 0)):
        await everything_gone(pool)
        await handed_back(ledger, request)
        works = [
            give_up(threads, RUN_A, [request.position], by=RUN_C),
            ledger.claim(wanted, attempt(1)),
        ]
        ended = await in_this_order(
            pool,
            holding(pool, "select from agent_domain_keys for update"),
            *(works[index] for index in order),
        )
        found, claim = (ended[order.index(index)] for index in (0, 1))

        assert isinstance(claim, Dispatched), claim
        if claim.key == request.key:  # sent for the one who wants it
            assert found[request.position].state == "unknown"
        else:
            assert found[request.position].state == "error"
            assert claim.idempotency_key == f"{DOMAIN_KEY}~2"


async def everything_gone(pool: Pool) -> None:
    """Forget the actions, and what came of giving runs up."""
    await sql(pool, "delete from agent_actions")
    await sql(pool, "delete from agent_domain_keys")
    await sql(
        pool,
        "update agent_runs set state = 'running', stopped_at = null, stop_reason = null, "
        "ended_attempt_at = null",
    )


# --- forks -------------------------------------------------------------------------------


async def three_turns(threads: ThreadLedger) -> None:
    """Three turns of one run, each of which answers a request."""
    for step in range(3):
        request = f"r{step}"
        await threads.receive(THREAD, request, f'"{step}"', agent=None)
        await threads.commit(
            turn(
                step,
                step=step,
                text=f"{step}",
                before=[said(f"{step}?", request)],
                replies_to=request,
                reply=f'"{step}!"',
            )
        )


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
    parked = await unknown(ledger, late)
    assert (await row(ledger, late)).state_changes is None
    await ledger.record(parked, outcome)

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
        await ledger.stop_run(
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
        await ledger.stop_run(
            RUN_A, workflow_id="w", agent="support", reason="ada stopped it", attempt_at=NOON
        )
    else:
        await give_up(threads, RUN_A, [], by=RUN_B)
    before = await everything(pool)

    with pytest.raises(ResetRefused):
        await threads.fork(RUN_A, 1)

    assert await everything(pool) == before


async def test_a_fork_goes_on_at_positions_of_its_own(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await three_turns(threads)
    done = action("1.0")
    await ledger.record(await dispatched(ledger, done), RECEIPT)
    await threads.fork(RUN_A, 1)

    anew = await dispatched(ledger, action("e1-1.0"))

    assert anew.key == f"{RUN_A}:e1-1.0"
    assert (await row(ledger, done)).recorded == RECEIPT
    again = await ledger.claim(done, attempt(1))
    assert isinstance(again, AlreadyDone)
    await threads.commit(turn(4, step=1, epoch=1))
    await threads.fork(RUN_A, 1)
    await dispatched(ledger, action("e2-1.0", args='{"order_id":"2"}'))


async def test_the_execution_from_before_a_fork_starts_nothing(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    intent = action("1.0", domain_key=DOMAIN_KEY)
    await handed_back(ledger, intent)
    await threads.fork(RUN_A, 1)
    before = await everything(pool)

    for late in (action("1.1"), action("2.0"), action("2.1", domain_key="new")):
        with pytest.raises(StaleThread):
            await ledger.claim(late, attempt(1))
    assert isinstance(await ledger.claim(intent, attempt(1)), AlreadyDone)

    assert await everything(pool) == before
    # What both ways have in common goes on.
    assert isinstance(await ledger.claim(action("0.0"), attempt(1)), Dispatched)
    await threads.commit(turn(4, step=1, epoch=1))
    await threads.fork(RUN_A, 1)
    with pytest.raises(StaleThread):
        await ledger.claim(action("e1-1.0"), attempt(1))


async def test_a_claim_that_waits_for_a_fork_is_fenced_and_one_before_it_is_parked(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    await three_turns(threads)
    forked, late = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        threads.fork(RUN_A, 2),
        ledger.claim(action("2.0"), attempt()),
    )
    await threads.commit(turn(4, step=2, epoch=1))
    early, again = await in_this_order(
        pool,
        holding_run(pool, RUN_A),
        ledger.claim(action("e1-2.0"), attempt()),
        threads.fork(RUN_A, 2),
    )

    assert (forked, again) == (1, 2)
    assert isinstance(late, StaleThread)
    assert isinstance(early, Dispatched)
    assert (await row(ledger, action("e1-2.0"))).state == "unknown"


async def test_a_fork_parks_what_may_have_been_sent_from_its_turn_on_and_voids_what_was_not(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await three_turns(threads)
    before = action("0.0", args='{"order_id":"0"}')
    sent = action("1.0", args='{"order_id":"1"}')
    later = action("12.0", args='{"order_id":"2"}')
    intent = action("2.0", domain_key=DOMAIN_KEY)
    foreign = action("undo of 1.0", args='{"order_id":"3"}')
    other = action("1.0", run=RUN_B, args='{"order_id":"4"}')
    for request in (before, later, foreign, other):
        await dispatched(ledger, request)
    claim = await dispatched(ledger, sent)
    await handed_back(ledger, intent)

    await threads.fork(RUN_A, 1)

    states = {one.position + one.run_key[-1]: one.state for one in await ledger.list()}
    assert states == {
        "0.0a": "dispatched",
        "1.0a": "unknown",
        "12.0a": "unknown",
        "2.0a": "error",
        "undo of 1.0a": "dispatched",
        "1.0b": "dispatched",
    }
    free = await dispatched(ledger, action("e1-1.0", domain_key=DOMAIN_KEY))
    assert free.idempotency_key == f"{DOMAIN_KEY}~2"
    await ledger.record(claim, RECEIPT)
    assert [one.key for one in await threads.pending_notices(THREAD)] == [sent.key]


async def test_an_unknown_that_a_fork_left_holds_back_its_repetition(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    await three_turns(threads)
    await dispatched(ledger, action("1.0"))
    await threads.fork(RUN_A, 1)

    claim = await ledger.claim(action("e1-1.0"), attempt())

    assert isinstance(claim, Parked)
    assert claim.action.duplicate_of == action("1.0").key


async def test_what_was_told_in_what_a_fork_takes_back_is_told_again(
    ledger: ActionLedger, threads: ThreadLedger
) -> None:
    early = await unknown(ledger, action("0.0", args='{"order_id":"1"}'))
    late = await unknown(ledger, action("0.1", args='{"order_id":"2"}'))
    other = await unknown(ledger, action(run=RUN_D, thread_id=OTHER))
    for claim in (early, late, other):
        await ledger.settle(claim.key, RECEIPT, by="ada")
    await threads.commit(turn(0, told=[early.key]))
    await threads.commit(turn(1, step=1, told=[late.key]))
    for number in range(3):
        await threads.commit(turn(number, RUN_D, number, thread_id=OTHER, told=[other.key]))

    await threads.fork(RUN_A, 1)

    assert [one.key for one in await threads.pending_notices(THREAD)] == [late.key]
    assert await threads.pending_notices(OTHER) == []
    await threads.commit(turn(3, step=1, epoch=1, told=[late.key]))
    assert await threads.pending_notices(THREAD) == []


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


# --- the order of locks ------------------------------------------------------------------


async def test_a_fork_and_a_settlement_of_what_its_turns_repeat_do_not_wait_for_each_other(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    # "…:10.0" sorts before "…:8.0" and "…:9.0".
    for step in range(11):
        await threads.commit(turn(step, step=step))
    between = action("8.0", args='{"order_id":"8"}')
    await dispatched(ledger, between)
    original = await unknown(ledger, action("9.0"))
    repeated = await ledger.claim(action("10.0"), attempt())
    assert isinstance(repeated, Parked)

    async with holding_action(pool, between.key):
        forking = asyncio.ensure_future(threads.fork(RUN_A, 8))
        await until_blocked(pool, 1)
        settling = asyncio.ensure_future(ledger.settle(original.key, RECEIPT, by="ada"))
        await until_blocked_or_done(pool, 2, settling)

    assert {one.key for one in await settling} == {original.key, repeated.action.key}
    assert await forking == 1


async def test_a_fork_and_a_settlement_of_what_it_takes_back_do_not_wait_for_each_other(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    never = Outcome.error(kind="DidNotHappen", message="ada looked", effect_possible=False)
    first = await unknown(ledger, action("0.0", domain_key=DOMAIN_KEY))
    await ledger.settle(first.key, never, by="ada")
    await threads.commit(turn(0, told=[first.key]))
    await handed_back(ledger, action("0.1", domain_key=DOMAIN_KEY))

    settled, forked = await in_this_order(
        pool,
        holding(pool, "select from agent_domain_keys for update"),
        ledger.settle(first.key, never, by="ada"),
        threads.fork(RUN_A, 0),
    )

    assert [one.key for one in settled] == [first.key]
    assert forked == 1


async def test_an_intent_that_comes_back_while_its_turn_is_given_up_is_void_and_nobody_waits(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    before, intent, after = (
        action("0.0", args='{"order_id":"0"}'),
        action("0.1", domain_key=DOMAIN_KEY),
        action("0.2", args='{"order_id":"2"}'),
    )
    by = attempt()
    for request in (before, after):
        await dispatched(ledger, request)
    await dispatched(ledger, intent, by)
    positions = [before.position, intent.position, after.position]

    async with holding_action(pool, after.key):
        async with holding_action(pool, before.key):
            giving_up = asyncio.ensure_future(give_up(threads, RUN_A, positions, by=RUN_C))
            await until_blocked(pool, 1)
            handing_back = asyncio.ensure_future(ledger.hand_back(intent, by))
            await until_blocked_or_done(pool, 2, handing_back)
        await until_blocked(pool, 1)
        claiming = asyncio.ensure_future(
            ledger.claim(action(run=RUN_B, domain_key=DOMAIN_KEY), attempt(1))
        )
        await until_blocked(pool, 2)

    found = await giving_up
    await handing_back
    await claiming
    assert {one.state for one in found.values()} <= {"unknown", "error"}


async def test_giving_up_and_a_settlement_of_what_its_calls_repeat_do_not_wait_for_each_other(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    # Its rows lie in the order of these claims.
    await sql(pool, "truncate agent_relay, agent_actions")
    original = await unknown(ledger, action("0.0"))
    for request in (action("1.9"), action(run=RUN_C), action("1.10")):
        assert isinstance(await ledger.claim(request, attempt()), Parked)

    async with holding_action(pool, action(run=RUN_C).key):
        settling = asyncio.ensure_future(ledger.settle(original.key, RECEIPT, by="ada"))
        await until_blocked(pool, 1)
        giving_up = asyncio.ensure_future(
            give_up(threads, RUN_A, [Position("1.9"), Position("1.10")], by=RUN_B)
        )
        await until_blocked_or_done(pool, 2, giving_up)

    assert len(await settling) == 4
    assert set(await giving_up) == {"1.9", "1.10"}


async def test_two_attempts_that_repeat_an_unknown_at_once_are_both_answered_unknown(
    ledger: ActionLedger, pool: Pool
) -> None:
    original = await unknown(ledger, action())
    repeated = action(run=RUN_B)

    claims = await in_this_order(
        pool,
        holding_action(pool, original.key),
        ledger.claim(repeated, attempt(0)),
        ledger.claim(repeated, attempt(1)),
    )

    assert [type(claim).__name__ for claim in claims] == ["Parked", "Parked"]
    assert {claim.action.duplicate_of for claim in claims} == {original.key}


async def test_two_attempts_that_send_a_released_business_fact_at_once_send_it_once(
    ledger: ActionLedger, pool: Pool
) -> None:
    first = await dispatched(ledger, action(domain_key=DOMAIN_KEY))
    await ledger.record(first, DECLINED)
    anew = action(run=RUN_B, domain_key=DOMAIN_KEY)

    claims = await in_this_order(
        pool,
        holding(pool, "select from agent_domain_keys for update"),
        ledger.claim(anew, attempt(0)),
        ledger.claim(anew, attempt(1)),
    )

    assert [type(claim).__name__ for claim in claims] == ["Dispatched", "Parked"]


async def test_commits_receives_and_deletions_of_other_conversations_do_not_wait(
    ledger: ActionLedger, threads: ThreadLedger, pool: Pool
) -> None:
    async with holding_thread(pool):
        await threads.commit(turn(0, RUN_D, thread_id=OTHER))
        await threads.receive(OTHER, "r1", '"hello"', agent="support")
        await threads.delete(OTHER)
        await threads.read(RUN_A, THREAD)
        await dispatched(ledger, action())
        await threads.pending_notices(THREAD)
