"""Stopped runs: nothing starts afterwards, and what was at work is still recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from commitline.errors import RunInputConflict, RunNotRunning
from commitline.identity import RunKey
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Dispatched,
    Effect,
    Parked,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import DECLINED, NOON, dispatched, open_run
from commitline.tests.integration.database import sql, until_blocked
from commitline.tests.integration.ledger.shipments import (
    DOMAIN_KEY,
    HOUR,
    RECEIPT,
    RUN_A,
    RUN_B,
    action,
    all_sent,
    asked,
    attempt,
    run_a,
    stop,
)

pytestmark = pytest.mark.usefixtures("two_runs")


async def test_a_stop_is_committed_with_its_time_and_its_reason(ledger: ActionLedger) -> None:
    stopped = await stop(ledger)

    assert (stopped.state, stopped.stop_reason) == ("stopping", "ada stopped it")
    assert stopped.stopped_at is not None
    assert replace(await run_a(ledger), now=stopped.now) == stopped
    other = await ledger.runs.get(RUN_B)
    assert other is not None
    assert (other.state, other.stopped_at) == ("running", None)


async def test_the_first_reason_of_a_stop_stands(ledger: ActionLedger) -> None:
    first = await stop(ledger)

    second = await stop(ledger, reason="and bob did")

    assert replace(second, now=first.now) == first


Prepared = tuple[ActionRequest, Attempt]


async def prepared(ledger: ActionLedger, pool: Pool, found: str) -> Prepared:
    """Bring an action into a state; return what is claimed, and by which attempt."""
    by, later = attempt(), attempt(1)
    request = action(effect=Effect.IDEMPOTENT)
    if "domain key" in found:
        request = replace(request, domain_key=DOMAIN_KEY)
    if "ask" in found:
        request = action()
    match found:
        case "an intent that was handed back":
            await dispatched(ledger, request, by)
            await ledger.hand_back(request, by)
        case "its own claim":
            await dispatched(ledger, request, by)
            return request, by
        case "an earlier attempt's claim" | "a claim to ask about":
            await dispatched(ledger, request, by)
        case "its own claim to ask about":
            await dispatched(ledger, request, by)
            await asked(ledger, request, later)
        case "what is in progress":
            request = replace(request, effect=Effect.AT_MOST_ONCE)
            await ledger.fail_try(await dispatched(ledger, request, by), in_progress=True)
        case "a domain key of a dead attempt":
            await dispatched(ledger, replace(request, run_key=RUN_B), by)
            await all_sent(pool)
        case "a domain key of what is done":
            claim = await dispatched(ledger, replace(request, run_key=RUN_B), by)
            await ledger.record(claim, RECEIPT)
    return request, later


@pytest.mark.parametrize("how", ["stopped", "stopped, then ended"])
@pytest.mark.parametrize(
    "found",
    [
        "nothing",
        "nothing, with a domain key",
        "an intent that was handed back",
        "its own claim",
        "an earlier attempt's claim",
        "a claim to ask about",
        "its own claim to ask about",
        "what is in progress",
        "a domain key of a dead attempt",
        "a domain key of what is done",
    ],
)
async def test_a_stopped_run_starts_nothing(
    ledger: ActionLedger, pool: Pool, found: str, how: str
) -> None:
    request, by = await prepared(ledger, pool, found)
    await stop(ledger)
    if "ended" in how:  # not by `end_run`, which leaves nothing dispatched
        await sql(
            pool, "update agent_runs set state = 'ended', ended_attempt_at = %(before)s "
            "where run_key = %(run)s", before=NOON - HOUR, run=RUN_A,
        )  # fmt: skip
    before = [replace(one, now=NOON) for one in await ledger.list()]

    with pytest.raises(RunNotRunning, match="was stopped: ada stopped it"):
        await ledger.claim(request, by)

    assert [replace(one, now=NOON) for one in await ledger.list()] == before
    assert (await run_a(ledger)).state == ("ended" if "ended" in how else "stopping")


async def test_a_stopped_run_still_gets_what_it_did_and_what_is_unknown(
    ledger: ActionLedger,
) -> None:
    done, lost = action("0.0"), action("0.1", effect=Effect.AT_MOST_ONCE, can_look_up=False)
    await ledger.record(await dispatched(ledger, done, attempt()), RECEIPT)
    await dispatched(ledger, lost, attempt())
    await stop(ledger)

    replayed = await ledger.claim(done, attempt(1))
    unknown = await ledger.claim(lost, attempt(1))

    assert isinstance(replayed, AlreadyDone)
    assert replayed.action.recorded == RECEIPT
    assert isinstance(unknown, Parked)


async def test_what_was_at_work_when_its_run_was_stopped_is_still_recorded(
    ledger: ActionLedger,
) -> None:
    ok = await dispatched(ledger, action("0.0"), attempt())
    released = await dispatched(ledger, action("0.1", domain_key=DOMAIN_KEY), attempt())
    failed = await dispatched(ledger, action("0.2"), attempt())
    parked = await dispatched(ledger, action("0.3"), attempt())
    handed_back = attempt()
    await dispatched(ledger, action("0.4"), handed_back)
    await stop(ledger)

    assert await ledger.record(ok, RECEIPT) == RECEIPT
    assert await ledger.record(released, DECLINED) == DECLINED
    assert await ledger.fail_try(failed) == 1
    assert (await ledger.park(parked, "lost")).state == "unknown"
    assert await ledger.record(parked, RECEIPT) == RECEIPT
    assert await ledger.hand_back(action("0.4"), handed_back)
    free = await ledger.claim(action(run=RUN_B, domain_key=DOMAIN_KEY), attempt(1))
    assert isinstance(free, Dispatched)


async def test_a_run_that_was_stopped_before_it_opened_never_opens(ledger: ActionLedger) -> None:
    early = RunKey("support-4821/e9")
    stopped = await stop(ledger, early)

    opened = await open_run(ledger, early, 60)

    assert (stopped.state, stopped.opened_attempt_at) == ("stopping", NOON)
    assert (stopped.workflow_id, stopped.agent) == ("support-4821", "support")
    assert (opened.state, opened.stop_reason) == ("stopping", "ada stopped it")
    assert opened.input_digest == "input"
    with pytest.raises(RunNotRunning, match="was stopped"):
        await ledger.claim(action(run=early), attempt(61))
    with pytest.raises(RunInputConflict):
        await ledger.runs.open(
            run_key=early, workflow_id="w", agent="a", input_digest="other", attempt_at=NOON
        )


@pytest.mark.parametrize("first", ["stopped", "ended"])
async def test_a_stopped_run_that_has_ended_is_opened_by_no_reset_and_no_retry(
    ledger: ActionLedger, first: str
) -> None:
    if first == "stopped":
        await stop(ledger)
        ended = await ledger.runs.end(RUN_A, attempt_at=NOON)
    else:
        await ledger.runs.end(RUN_A, attempt_at=NOON)
        ended = await stop(ledger)

    opened = await open_run(ledger, RUN_A, 60)
    with pytest.raises(RunNotRunning, match="was stopped: ada stopped it"):
        await ledger.claim(action(), attempt(60))
    with pytest.raises(RunNotRunning, match="was stopped: ada stopped it"):
        await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(60))

    assert (ended.state, ended.stop_reason) == ("ended", "ada stopped it")
    assert opened.state == "ended"
    assert await ledger.list() == []


async def test_an_ended_run_that_is_stopped_as_a_younger_execution_claims_is_not_opened(
    ledger: ActionLedger, pool: Pool
) -> None:
    await ledger.runs.end(RUN_A, attempt_at=NOON)
    async with pool.connection() as connection, connection.transaction():
        # Lets a claim see that the run has ended, and not open it.
        await connection.execute("select from agent_runs for share")
        claiming = asyncio.create_task(ledger.claim(action(), attempt(60)))
        await until_blocked(pool, 1)
        await connection.execute(
            "update agent_runs set stopped_at = clock_timestamp(), stop_reason = 'ada stopped it'"
        )

    with pytest.raises(RunNotRunning, match="was stopped: ada stopped it"):
        await claiming

    assert (await run_a(ledger)).state == "ended"
    assert await ledger.list() == []


async def test_a_run_that_ended_without_a_stop_is_opened_again_and_can_be_stopped_then(
    ledger: ActionLedger,
) -> None:
    await ledger.runs.end(RUN_A, attempt_at=NOON)
    opened = await open_run(ledger, RUN_A, 1)

    stopped = await stop(ledger)

    assert (opened.state, stopped.state) == ("running", "stopping")


async def test_a_run_that_is_being_undone_goes_on_being_undone(
    ledger: ActionLedger, pool: Pool
) -> None:
    await sql(pool, "update agent_runs set state = 'undoing' where run_key = %(run)s", run=RUN_A)

    stopped = await stop(ledger)

    assert (stopped.state, stopped.stop_reason) == ("undoing", "ada stopped it")


async def test_ending_a_run_that_was_stopped_keeps_why(ledger: ActionLedger) -> None:
    stopped = await stop(ledger)

    ended = await ledger.runs.end(RUN_A, attempt_at=NOON)

    assert (ended.state, ended.ended_attempt_at) == ("ended", NOON)
    assert (ended.stopped_at, ended.stop_reason) == (stopped.stopped_at, "ada stopped it")
