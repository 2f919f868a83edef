"""The end of a run: what it leaves dispatched becomes unknown, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from commitline.errors import RunNotRunning
from commitline.ledger import ActionLedger, LookUp
from commitline.ledger.pool import Pool
from commitline.tests.builders import NOON, dispatched
from commitline.tests.integration.ledger.shipments import (
    DOMAIN_KEY,
    MINUTE,
    RECEIPT,
    RUN_A,
    RUN_B,
    action,
    all_sent,
    asked,
    attempt,
    row,
)

pytestmark = pytest.mark.usefixtures("two_runs")


async def test_what_a_run_leaves_dispatched_at_its_end_is_unknown_and_can_still_be_told(
    ledger: ActionLedger, pool: Pool
) -> None:
    left = await dispatched(ledger, action("0.0"), attempt())
    await dispatched(ledger, action("0.1"), attempt())
    ask = await asked(ledger, action("0.1"), attempt(1))
    leases = {one.lease_until for one in await ledger.list()}

    await ledger.runs.end(RUN_A, attempt_at=NOON + MINUTE)

    rows = await ledger.list()
    assert {one.state for one in rows} == {"unknown"}
    assert {one.lease_until for one in rows} == leases
    assert rows[0].parked_reason == (
        "the run ended between two tries: the last one may have happened"
    )
    assert await ledger.record(left, RECEIPT) == RECEIPT
    assert await ledger.record(ask.call, RECEIPT) == RECEIPT


async def test_the_end_of_a_run_leaves_everything_else_as_it_is(
    ledger: ActionLedger, pool: Pool
) -> None:
    done = await dispatched(ledger, action("0.0"), attempt())
    await ledger.record(done, RECEIPT)
    intent = attempt()
    await dispatched(ledger, action("0.1"), intent)
    await ledger.hand_back(action("0.1"), intent)
    parked = await dispatched(ledger, action("0.2"), attempt())
    await ledger.park(parked, "its answer was lost")
    await dispatched(ledger, action("0.0", run=RUN_B), attempt())
    before = [replace(one, now=NOON) for one in await ledger.list()]

    await ledger.runs.end(RUN_A, attempt_at=NOON + MINUTE)
    await ledger.runs.end(RUN_A, attempt_at=NOON + MINUTE)

    assert [replace(one, now=NOON) for one in await ledger.list()] == before


async def test_the_end_of_a_run_does_not_take_its_action_from_who_settles_it(
    ledger: ActionLedger, pool: Pool
) -> None:
    wanted = action(run=RUN_B, domain_key=DOMAIN_KEY)
    original = action(domain_key=DOMAIN_KEY)
    await dispatched(ledger, original, attempt())
    await all_sent(pool)
    ask = await asked(ledger, wanted, attempt(1))

    await ledger.runs.end(RUN_A, attempt_at=NOON + MINUTE)
    alive = await row(ledger, original.key)
    await all_sent(pool)
    await ledger.runs.end(RUN_A, attempt_at=NOON + MINUTE)

    assert alive.claim_token == ask.call.token
    assert alive.state == "dispatched"
    assert (await row(ledger, original.key)).state == "unknown"


async def test_the_late_end_of_an_older_execution_leaves_the_calls_of_a_younger_one(
    ledger: ActionLedger,
) -> None:
    claim = await dispatched(ledger, action(), attempt(60))

    await ledger.runs.end(RUN_A, attempt_at=NOON + timedelta(seconds=30))

    assert (await row(ledger, claim.key)).state == "dispatched"
    assert isinstance(await ledger.claim(action(), attempt(61)), LookUp)


async def test_a_first_claim_after_the_end_by_a_clock_that_stepped_back_opens_the_run_once(
    ledger: ActionLedger,
) -> None:
    await ledger.runs.end(RUN_A, attempt_at=NOON + timedelta(seconds=30))
    claim = await dispatched(ledger, action(), attempt(60))
    opened = await ledger.runs.get(RUN_A)
    assert opened is not None

    gone = await ledger.relay.end_lost(
        opened, workflow_status="completed", ended_at=NOON + timedelta(seconds=30)
    )

    assert opened.state == "running"
    assert gone
    assert await ledger.record(claim, RECEIPT) == RECEIPT
    with pytest.raises(RunNotRunning):
        await ledger.claim(action("0.1"), attempt(29))
