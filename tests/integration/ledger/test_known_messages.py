"""The messages that a worker knows already: none is read twice, and none is taken for another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from commitline.ledger import ActionLedger, StoredMessage, ThreadLedger
from commitline.ledger.pool import Pool
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.conversations import RUN_A, RUN_B, THREAD, turn

pytestmark = pytest.mark.usefixtures("conversation")

CHANGE_BEHIND_ITS_BACK = """update agent_messages set message = '"other"'"""
LOSE_THE_LAST_COMMIT = (
    "delete from agent_messages where version = 2",
    "update agent_threads set version = 1 where thread_id = 'support-4821'",
)


@pytest.fixture
def elsewhere(ledger: ActionLedger) -> ThreadLedger:
    """The conversations as another worker has them, which knows nothing."""
    return ledger.threads


async def messages(threads: ThreadLedger) -> Sequence[StoredMessage]:
    return (await threads.read(RUN_A, THREAD)).messages


async def test_what_a_worker_has_committed_it_does_not_read_again(
    threads: ThreadLedger, elsewhere: ThreadLedger, pool: Pool
) -> None:
    assert await messages(threads) == ()
    await threads.commit(turn(0))
    await threads.commit(turn(1, step=1))
    stored = await messages(elsewhere)
    await sql(pool, CHANGE_BEHIND_ITS_BACK)

    assert await messages(threads) == stored, "to the last column"
    assert {one.message for one in await threads.messages(THREAD)} == {'"other"'}


async def test_what_a_worker_has_read_it_does_not_read_again(
    threads: ThreadLedger, elsewhere: ThreadLedger, pool: Pool
) -> None:
    await threads.commit(turn(0))
    told = await messages(elsewhere)
    await sql(pool, CHANGE_BEHIND_ITS_BACK)

    assert await messages(elsewhere) == told


async def test_what_another_worker_has_committed_since_is_read(
    threads: ThreadLedger, elsewhere: ThreadLedger
) -> None:
    await threads.commit(turn(0))
    await elsewhere.commit(turn(1, RUN_B))

    assert [one.run_key for one in await messages(threads)] == [RUN_A, RUN_A, RUN_B, RUN_B]
    assert await messages(threads) == await messages(elsewhere)


async def test_what_a_fork_elsewhere_has_taken_back_is_forgotten(
    threads: ThreadLedger, elsewhere: ThreadLedger
) -> None:
    await threads.commit(turn(0))
    await threads.commit(turn(1, step=1))
    await elsewhere.fork(RUN_A, 1)
    after = await messages(threads)
    await threads.commit(turn(3, step=1, epoch=1))

    assert [(one.version, one.step) for one in after] == [(1, 0), (1, 0)]
    assert [one.version for one in await messages(threads)] == [1, 1, 4, 4]
    assert await messages(threads) == await messages(elsewhere)


async def test_after_a_failover_that_lost_a_commit_its_version_is_another_one(
    threads: ThreadLedger, elsewhere: ThreadLedger, pool: Pool
) -> None:
    await threads.commit(turn(0))
    await threads.commit(turn(1, step=1, text="lost"))
    for statement in LOSE_THE_LAST_COMMIT:
        await sql(pool, statement)
    await elsewhere.commit(turn(1, step=1, text="stands"))

    assert "stands" in (await messages(threads))[-1].message


async def test_a_commit_adds_nothing_to_what_a_failover_has_lost(
    threads: ThreadLedger, elsewhere: ThreadLedger, pool: Pool
) -> None:
    """The worker has read version 2 and requests the model while that is lost and made anew."""
    await threads.commit(turn(0))
    await threads.commit(turn(1, step=1, text="lost"))
    for statement in LOSE_THE_LAST_COMMIT:
        await sql(pool, statement)
    await elsewhere.commit(turn(1, step=1, text="stands"))
    await threads.commit(turn(2, step=2))

    assert await messages(threads) == await messages(elsewhere)
