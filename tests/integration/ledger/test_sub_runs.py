"""Whose a sub-agent's run is: given away in order, fenced, and stopped with what lies above it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from commitline.errors import Fenced, RunInputConflict, RunNotRunning, SubAgentClosed
from commitline.identity import Position, RunKey, sub_run_key
from commitline.ledger import ActionLedger, Run, SubRunLedger, ledger_pool
from commitline.ledger.pool import Connection, Pool
from commitline.tests.builders import (
    NOON,
    action_request,
    after_noon,
    attempt,
    dispatched,
    open_run,
)
from commitline.tests.integration.database import until_blocked, with_default_isolation

TOP = RunKey("support/e1")
MIDDLE = sub_run_key(TOP, Position("0.0"))
LOW = sub_run_key(MIDDLE, Position("1.0"))


@pytest_asyncio.fixture(autouse=True)
async def top(ledger: ActionLedger) -> None:
    await open_run(ledger, TOP)


@pytest.fixture
def sub_runs(ledger: ActionLedger) -> SubRunLedger:
    return ledger.sub_runs


async def give(
    sub_runs: SubRunLedger,
    run: RunKey = MIDDLE,
    to: str = "support/0.0/a",
    *,
    by: str = "support",
    second: int = 1,
    ended: str | None = None,
    digest: str = "input",
) -> str | None:
    return await sub_runs.assign(
        run,
        workflow_id=to,
        by=by,
        agent="clerk",
        input_digest=digest,
        attempt_at=after_noon(second),
        ended=ended,
    )


async def claim(ledger: ActionLedger, run: RunKey, owner: str, *, second: int = 2) -> None:
    await dispatched(ledger, action_request(run, f"{second}.0", owner=owner), attempt(second))


async def run_of(ledger: ActionLedger, key: RunKey) -> Run:
    found = await ledger.runs.get(key)
    assert found is not None
    return found


async def test_a_new_one_is_its_workflows_alone(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    assert await give(sub_runs) is None
    assert await give(sub_runs) is None

    await claim(ledger, MIDDLE, "support/0.0/a")
    with pytest.raises(Fenced):
        await claim(ledger, MIDDLE, "support/0.0/b", second=3)
    found = await run_of(ledger, MIDDLE)
    assert (found.parent_key, found.owner, found.state) == (TOP, "support/0.0/a", "running")


async def test_a_later_call_fences_the_one_before_and_all_below_until_that_has_ended(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    await give(sub_runs)
    await give(sub_runs, LOW, "support/0.0/a/1.0/x", by="support/0.0/a")

    former = await give(sub_runs, to="support/0.0/b", second=5)
    again = await give(sub_runs, to="support/0.0/b", second=6)  # its answer was lost

    assert former == again == "support/0.0/a"
    for run, owner in ((MIDDLE, "support/0.0/a"), (LOW, "support/0.0/a/1.0/x")):
        with pytest.raises(Fenced):
            await claim(ledger, run, owner)
    with pytest.raises(Fenced):
        await claim(ledger, MIDDLE, "support/0.0/b")
    with pytest.raises(Fenced, match="no workflow"):
        await give(sub_runs, LOW, "support/0.0/a/1.0/x", by="support/0.0/a", second=7)
    with pytest.raises(RunNotRunning, match="carried out by no workflow"):
        await open_again(ledger, LOW, "support/0.0/a/1.0/x")

    assert await give(sub_runs, to="support/0.0/b", second=8, ended=former) is None
    await claim(ledger, MIDDLE, "support/0.0/b", second=9)
    with pytest.raises(Fenced):  # from an execution of the parent before its reset
        await give(sub_runs, to="support/0.0/a", second=5)


async def open_again(ledger: ActionLedger, run: RunKey, workflow_id: str) -> Run:
    return await ledger.runs.open(
        run_key=run,
        workflow_id=workflow_id,
        agent="clerk",
        input_digest="",
        attempt_at=after_noon(20),
    )


async def test_a_relay_that_saw_the_workflow_before_gone_does_not_end_the_next_one(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    await give(sub_runs)
    seen = await run_of(ledger, MIDDLE)
    former = await give(sub_runs, to="support/0.0/b", second=5)
    await give(sub_runs, to="support/0.0/b", second=5, ended=former)

    ended = await ledger.relay.end_lost(seen, workflow_status="canceled", ended_at=after_noon(4))

    assert not ended
    await claim(ledger, MIDDLE, "support/0.0/b", second=6)
    newer = await run_of(ledger, MIDDLE)
    assert await ledger.relay.end_lost(newer, workflow_status="terminated", ended_at=after_noon(7))


async def test_only_who_owns_it_ends_it_and_a_later_call_goes_on_with_it(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    await give(sub_runs)
    await give(sub_runs, to="support/0.0/b", second=5)
    await give(sub_runs, to="support/0.0/b", second=5, ended="support/0.0/a")

    untouched = await ledger.runs.end(MIDDLE, attempt_at=after_noon(9), owner="support/0.0/a")
    ended = await ledger.runs.end(MIDDLE, attempt_at=after_noon(9), owner="support/0.0/b")

    assert (untouched.state, ended.state) == ("running", "ended")
    with pytest.raises(RunNotRunning):  # by itself it does not go on, however late it asks
        await claim(ledger, MIDDLE, "support/0.0/b", second=10)
    await give(sub_runs, to="support/0.0/c", second=11)
    await give(sub_runs, to="support/0.0/c", second=11, ended="support/0.0/b")
    await claim(ledger, MIDDLE, "support/0.0/c", second=12)


async def test_one_that_failed_is_closed_with_all_below_it(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    await give(sub_runs)
    await give(sub_runs, LOW, "support/0.0/a/1.0/x", by="support/0.0/a")
    await claim(ledger, LOW, "support/0.0/a/1.0/x")

    closed = await sub_runs.close(MIDDLE, reason="no model", attempt_at=after_noon(9))
    again = await sub_runs.close(MIDDLE, reason="gave none", attempt_at=after_noon(12))

    assert closed.reason == again.reason == "no model"
    assert [one.run_key for one in closed.actions] == [LOW]
    assert [(one.run_key, one.state) for one in await sub_runs.below(TOP)] == [
        (MIDDLE, "ended"),
        (LOW, "ended"),
    ]
    (action,) = await sub_runs.actions(TOP)
    assert (action.run_key, action.state) == (LOW, "unknown")
    with pytest.raises(RunNotRunning):
        await claim(ledger, LOW, "support/0.0/a/1.0/x", second=10)
    with pytest.raises(RunNotRunning):
        await open_again(ledger, LOW, "support/0.0/a/1.0/x")
    with pytest.raises(SubAgentClosed, match="no model"):
        await give(sub_runs, to="support/0.0/b", second=13)


async def test_one_whose_caller_is_stopping_is_not_told_of(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    await give(sub_runs)
    await stop(ledger, TOP)

    with pytest.raises(RunNotRunning) as refused:
        await sub_runs.close(MIDDLE, reason="it was stopped", attempt_at=after_noon(9))
    assert refused.value.stopping


async def test_what_is_begun_otherwise_than_before_is_refused(sub_runs: SubRunLedger) -> None:
    await give(sub_runs)

    with pytest.raises(RunInputConflict):
        await give(sub_runs, digest="other")


async def test_a_parent_that_ended_goes_on_with_a_call_that_began_later_and_no_other(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    await ledger.runs.end(TOP, attempt_at=after_noon(5))

    with pytest.raises(RunNotRunning):
        await give(sub_runs, second=4)
    assert await give(sub_runs, second=6) is None
    assert (await run_of(ledger, TOP)).state == "running"


async def stop(ledger: ActionLedger, run: RunKey) -> Run:
    return await ledger.runs.stop(
        run, workflow_id="support", agent="", reason="enough", attempt_at=NOON
    )


async def test_a_stop_is_one_of_all_below_and_of_nothing_above(
    ledger: ActionLedger, sub_runs: SubRunLedger
) -> None:
    await give(sub_runs)
    await give(sub_runs, LOW, "support/0.0/a/1.0/x", by="support/0.0/a")

    await stop(ledger, MIDDLE)

    assert (await run_of(ledger, TOP)).state == "running"
    assert (await run_of(ledger, MIDDLE)).state == "stopping"
    assert (await run_of(ledger, LOW)).stop_reason == "enough"
    with pytest.raises(RunNotRunning) as refused:
        await claim(ledger, LOW, "support/0.0/a/1.0/x")
    assert refused.value.stopping
    with pytest.raises(SubAgentClosed, match="enough"):
        await give(sub_runs, second=9)


@asynccontextmanager
async def open_transaction(pool: Pool) -> AsyncIterator[Connection]:
    async with pool.connection() as connection, connection.transaction():
        yield connection


@pytest.mark.parametrize("default", ["read committed", "repeatable read", "serializable"])
async def test_a_stop_finds_what_is_being_begun_far_below_at_the_same_moment(
    ledger: ActionLedger, sub_runs: SubRunLedger, pool: Pool, ledger_database_url: str, default: str
) -> None:
    """Whatever isolation level the database, or the role, has by default."""
    await give(sub_runs)
    parameters: dict[str, Any] = {"low": LOW, "middle": MIDDLE, "top": TOP}
    url = with_default_isolation(ledger_database_url, default)
    async with ledger_pool(url) as stops, open_transaction(pool) as connection:
        # What `give` does, uncommitted.
        await connection.execute(
            "select from agent_runs where run_key in (%(top)s, %(middle)s) for share", parameters
        )
        await connection.execute(
            "insert into agent_runs (run_key, workflow_id, agent, input_digest,"
            " opened_attempt_at, parent_key, owner)"
            " values (%(low)s, 'x', 'clerk', '', now(), %(middle)s, 'x')",
            parameters,
        )
        stopping = asyncio.create_task(stop(ActionLedger(stops), TOP))
        await until_blocked(pool)
        await connection.execute("commit")
        await stopping

    assert (await run_of(ledger, LOW)).state == "stopping"
    with pytest.raises(RunNotRunning):
        await claim(ledger, LOW, "x")


async def test_what_is_begun_far_below_while_a_stop_commits_is_refused(
    ledger: ActionLedger, sub_runs: SubRunLedger, pool: Pool
) -> None:
    await give(sub_runs)
    async with open_transaction(pool) as connection:
        # The first half of a stop.
        await connection.execute(
            "update agent_runs set state = 'stopping', stopped_at = now(), stop_reason = 'x'"
            " where run_key = %(top)s",
            {"top": TOP},
        )
        begun = asyncio.create_task(
            give(sub_runs, LOW, "support/0.0/a/1.0/x", by="support/0.0/a", second=3)
        )
        await until_blocked(pool)

    with pytest.raises(RunNotRunning):
        await begun
    assert await ledger.runs.get(LOW) is None
