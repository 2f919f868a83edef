"""Rows of runs: which runs start calls, who may open one, and the end of one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from commitline.errors import RunInputConflict, RunNotRunning
from commitline.identity import ActionKey, RunKey
from commitline.ledger import ActionLedger, AlreadyDone, Dispatched, Outcome
from commitline.ledger.pool import Pool
from commitline.tests.builders import NOON, attempt, dispatched
from commitline.tests.integration.database import sql
from commitline.tests.integration.ledger.charges import (
    DOMAIN_KEY,
    RECEIPT,
    RUN_A,
    RUN_B,
    action,
    counts,
    expire_lease,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY])
@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
async def test_a_run_that_does_not_run_writes_and_calls_nothing(
    ledger: ActionLedger, pool: Pool, state: str, domain_key: str | None
) -> None:
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s",
        state=state, noon=NOON,
    )  # fmt: skip

    with pytest.raises(RunNotRunning) as refused:
        await ledger.claim(action(domain_key=domain_key), attempt(0))

    assert refused.value.known
    assert state in refused.value.message
    assert await counts(pool) == (0, 0)


@pytest.mark.parametrize("domain_key", [None, DOMAIN_KEY])
async def test_a_run_that_the_ledger_does_not_know_writes_and_calls_nothing(
    ledger: ActionLedger, pool: Pool, domain_key: str | None
) -> None:
    with pytest.raises(RunNotRunning) as refused:
        await ledger.claim(action(run=RunKey("other/e9"), domain_key=domain_key), attempt())

    assert not refused.value.known
    assert await counts(pool) == (0, 0)


@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
@pytest.mark.parametrize("found", ["intent", "dispatched"])
async def test_a_run_that_does_not_run_goes_on_with_nothing_that_it_began(
    ledger: ActionLedger, pool: Pool, state: str, found: str
) -> None:
    by = attempt(-10)
    await ledger.claim(action(), by)
    if found == "intent":
        await ledger.hand_back(action(), by)
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s",
        state=state, noon=NOON,
    )  # fmt: skip
    before = await row(pool, action().key)

    with pytest.raises(RunNotRunning):
        await ledger.claim(action(), attempt(0))

    assert await row(pool, action().key) == before


@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
async def test_a_run_that_does_not_run_neither_settles_nor_duplicates_others_actions(
    ledger: ActionLedger, pool: Pool, state: str
) -> None:
    original = action(run=RUN_B, domain_key=DOMAIN_KEY)
    await ledger.claim(original, attempt())
    await expire_lease(pool, original.key)
    before = await row(pool, original.key)
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s "
        "where run_key = %(run)s", state=state, noon=NOON, run=RUN_A,
    )  # fmt: skip

    with pytest.raises(RunNotRunning):
        await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(0))

    assert await row(pool, original.key) == before
    assert await counts(pool) == (1, 1)


@pytest.mark.parametrize("state", ["stopping", "undoing", "ended"])
async def test_a_run_that_does_not_run_still_records_and_returns_what_it_did(
    ledger: ActionLedger, pool: Pool, state: str
) -> None:
    claim = await dispatched(ledger, action(), attempt())
    await sql(
        pool, "update agent_runs set state = %(state)s, ended_attempt_at = %(noon)s",
        state=state, noon=NOON,
    )  # fmt: skip

    await ledger.record(claim, Outcome.ok(RECEIPT))
    again = await ledger.claim(action(), attempt(0))

    assert isinstance(again, AlreadyDone)
    assert again.action.result == RECEIPT


async def test_a_claim_by_a_later_execution_goes_on_with_an_ended_run(
    ledger: ActionLedger,
) -> None:
    await ledger.runs.end(RUN_A, attempt_at=NOON)

    claim = await ledger.claim(action(domain_key=DOMAIN_KEY), attempt(1))

    assert isinstance(claim, Dispatched)
    run = await ledger.runs.get(RUN_A)
    assert run is not None
    assert run.state == "running"


@pytest.mark.parametrize(("second", "state"), [(0, "ended"), (-1, "ended"), (1, "running")])
async def test_opening_an_ended_run_goes_on_with_it_only_for_a_later_attempt(
    ledger: ActionLedger, second: int, state: str
) -> None:
    await ledger.runs.end(RUN_A, attempt_at=NOON)

    run = await ledger.runs.open(
        run_key=RUN_A,
        workflow_id="support-4821",
        agent="support",
        input_digest="input",
        attempt_at=NOON + timedelta(seconds=second),
    )

    assert run.state == state
    assert run.opened_attempt_at == NOON


@pytest.mark.parametrize("state", ["stopping", "undoing"])
async def test_opening_a_run_that_is_being_stopped_does_not_set_it_going_again(
    ledger: ActionLedger, pool: Pool, state: str
) -> None:
    await sql(pool, "update agent_runs set state = %(state)s", state=state)

    run = await ledger.runs.open(
        run_key=RUN_A,
        workflow_id="support-4821",
        agent="support",
        input_digest="input",
        attempt_at=NOON + timedelta(hours=1),
    )

    assert run.state == state


async def test_ending_a_run_again_keeps_the_latest_end(ledger: ActionLedger) -> None:
    await ledger.runs.end(RUN_A, attempt_at=NOON + timedelta(seconds=5))

    run = await ledger.runs.end(RUN_A, attempt_at=NOON)

    assert run.ended_attempt_at == NOON + timedelta(seconds=5)
    with pytest.raises(RunNotRunning):
        await ledger.claim(action(), attempt(3))


async def test_ending_a_run_that_the_ledger_does_not_know_is_refused(
    ledger: ActionLedger,
) -> None:
    with pytest.raises(RunNotRunning) as refused:
        await ledger.runs.end(RunKey("other/e9"), attempt_at=NOON)

    assert not refused.value.known


async def test_a_run_has_one_input(ledger: ActionLedger) -> None:
    with pytest.raises(RunInputConflict):
        await ledger.runs.open(
            run_key=RUN_A,
            workflow_id="support-4821",
            agent="support",
            input_digest="another",
            attempt_at=NOON,
        )

    run = await ledger.runs.get(RUN_A)
    assert run is not None
    assert run.input_digest == "input"


async def test_actions_and_runs_are_listed(ledger: ActionLedger) -> None:
    parked = await dispatched(ledger, action("0.0"), attempt())
    await ledger.claim(action("0.1"), attempt())
    await ledger.claim(action("0.0", run=RUN_B), attempt())
    await ledger.park(parked, "the provider hung up")

    of_run = await ledger.list(RUN_A)
    unknown = await ledger.list(only_parked=True)
    everything = await ledger.list(limit=2)
    runs = await ledger.runs.list(workflow_id="support-4821")

    assert [(found.position, found.state) for found in of_run] == [
        ("0.0", "unknown"),
        ("0.1", "dispatched"),
    ]
    assert [found.key for found in unknown] == [parked.key]
    assert len(everything) == 2
    assert {run.run_key for run in runs} == {RUN_A, RUN_B}
    assert await ledger.runs.list(workflow_id="another") == []
    assert await ledger.get(ActionKey("nobody:0.0")) is None
