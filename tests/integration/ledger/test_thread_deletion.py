"""Deleting a conversation: what it removes, what stays, and who waits for whom."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from commitline.errors import ThreadDeleted
from commitline.identity import ActionKey, RunKey
from commitline.ledger import ActionLedger, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, NOON, dispatched, parked
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.conversations import (
    DOMAIN_KEY,
    OTHER,
    RECEIPT,
    RUN_A,
    RUN_B,
    RUN_D,
    THREAD,
    action,
    everything,
    holding_thread,
    in_this_order,
    row,
    run_of,
    texts,
    turn,
)

pytestmark = pytest.mark.usefixtures("conversation")

HERE: Final = Path(__file__).parents[3]


async def written(ledger: ActionLedger, threads: ThreadLedger) -> None:
    """A conversation with everything in it."""
    await parked(ledger, action())
    await threads.receive(THREAD, "r1", '"where is it?"', agent=None)
    await threads.receive(THREAD, "r2", '"and now?"', agent=None)
    await threads.commit(replace(turn(0, replies_to="r1", reply='"there"'), state='{"a":1}'))
    await threads.commit(turn(1, step=1))
    await ledger.put_value(ActionKey("large"), THREAD, '"large"')


async def test_the_statement_of_the_page_deletes_old_completions_of_runs_that_are_over(
    ledger: ActionLedger, pool: Pool
) -> None:
    page = (HERE / "docs" / "integrations.md").read_text(encoding="utf-8")
    statement: Any = page.partition("```sql\n")[2].partition("```")[0]
    await ledger.runs.end(RUN_B, attempt_at=NOON)
    await ledger.put_value(ActionKey("conversation"), THREAD, '"large"')
    for run in (RUN_A, RUN_B, RunKey("theirs/1")):
        for at in ("old", "new"):
            await ledger.keep_completion(ActionKey(f"{run} {at}"), run, '"said"')
    await sql(
        pool,
        "update agent_values set created_at = now() - interval '91 days'"
        " where key not like %(new)s",
        new="% new",
    )

    await sql(pool, statement)

    left = {one["key"] for one in await sql(pool, "select key from agent_values")}
    assert left == {
        "conversation",
        f"{RUN_A} old",
        *(f"{run} new" for run in (RUN_A, RUN_B, "theirs/1")),
    }


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
    unknown = await parked(ledger, action("0.2", args='{"order_id":"3"}'))
    declined = await dispatched(ledger, action("0.3", domain_key=DOMAIN_KEY))
    before = await everything(pool, "agent_actions")

    await threads.delete(THREAD)

    assert await everything(pool, "agent_actions") == before
    assert await ledger.record(late, RECEIPT) == RECEIPT
    assert await ledger.record(declined, DECLINED) == DECLINED
    assert [one.state for one in await ledger.settle(unknown.key, RECEIPT, by="ada")] == ["ok"]
    assert (await row(ledger, action("0.1", args='{"order_id":"2"}'))).state == "ok"
