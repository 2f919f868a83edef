"""Two runs that ship an order: what the tests of attempts, stops and late outcomes begin with.

Tests do not wait for time to pass: what has to be over is set back on the row.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from commitline.identity import ActionKey, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    Attempt,
    Dispatched,
    Effect,
    LookUp,
    Outcome,
    Parked,
    Run,
)
from commitline.ledger.pool import Pool
from commitline.tests import builders
from commitline.tests.builders import NOON, action_request, dispatched
from commitline.tests.integration.database import sql

RUN_A = RunKey("support-4821/e1")
RUN_B = RunKey("support-4821/e2")
DOMAIN_KEY = "order-4821-ship"
RECEIPT = Outcome.ok('{"id":"sh_1"}')
DEADLINE = timedelta(minutes=4)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SLACK = timedelta(seconds=20)
"""How long the statements of one test may take."""


def action(
    position: str = "0.0",
    *,
    run: RunKey = RUN_A,
    effect: Effect = Effect.LOOKUP,
    can_look_up: bool = True,
    settles_after: timedelta = MINUTE,
    **given: Any,
) -> ActionRequest:
    return action_request(
        run,
        position,
        effect=effect,
        can_look_up=can_look_up,
        settles_after=settles_after,
        **given,
    )


attempt = partial(builders.attempt, deadline=DEADLINE)


async def stop(ledger: ActionLedger, run: RunKey = RUN_A, reason: str = "ada stopped it") -> Run:
    return await ledger.runs.stop(
        run, workflow_id="support-4821", agent="support", reason=reason, attempt_at=NOON
    )


async def asked(ledger: ActionLedger, request: ActionRequest, by: Attempt) -> LookUp:
    claim = await ledger.claim(request, by)
    assert isinstance(claim, LookUp)
    return claim


async def row(ledger: ActionLedger, key: ActionKey) -> Action:
    """The row as it is stored, whenever it is read."""
    found = await ledger.get(key)
    assert found is not None
    return replace(found, now=NOON)


async def sent_until(ledger: ActionLedger, key: ActionKey) -> datetime:
    found = (await row(ledger, key)).sent_until
    assert found is not None
    return found


async def all_sent(pool: Pool, *, ago: timedelta = HOUR) -> None:
    """Let the time be over until when the attempts so far may send something, and their leases."""
    await sql(
        pool,
        "update agent_actions set sent_until = clock_timestamp() - %(ago)s, "
        "lease_until = clock_timestamp() - %(ago)s",
        ago=ago,
    )


async def age(pool: Pool, by: timedelta) -> None:
    """Let the first dispatch be so long ago."""
    await sql(pool, "update agent_actions set dispatched_at = clock_timestamp() - %(by)s", by=by)


async def run_a(ledger: ActionLedger) -> Run:
    run = await ledger.runs.get(RUN_A)
    assert run is not None
    return run


async def repeated(ledger: ActionLedger, *, domain_key: str | None) -> Dispatched:
    """An action that is unknown, and its repetition: in its own run and, by key, in another."""
    claim = await dispatched(ledger, action(domain_key=domain_key), attempt())
    await ledger.park(claim, "its answer was lost")
    for run in [RUN_A, RUN_B] if domain_key else [RUN_A]:
        repeat = await ledger.claim(action("1.0", run=run, domain_key=domain_key), attempt(1))
        assert isinstance(repeat, Parked)
        assert repeat.action.duplicate_of == claim.key
    return claim
