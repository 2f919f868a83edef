"""Every row has an exit: it ends, a person may settle it, or somebody brings it to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest_asyncio

from commitline import Effect, Tool, tool
from commitline.identity import ActionKey, RunKey
from commitline.ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    Outcome,
    Parked,
    intend,
)
from commitline.ledger.pool import Pool
from commitline.tests.builders import (
    OVER,
    action_request,
    after_noon,
    attempt,
    dispatched,
    open_run,
    relay_request,
)
from commitline.tests.integration.database import sql

RUN_A = RunKey("support-4821/e1")
RUN_B = RunKey("support-4822/e1")
ARGS = {"order_id": "1"}
RECEIPT = Outcome.ok('"ch_1"')


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge(order_id: str) -> str:
    """Charge an order."""
    raise NotImplementedError


@tool(effect=Effect.IDEMPOTENT, undoes="order-{order_id}-charge", idempotency_key="re-{order_id}")
async def take_back(order_id: str) -> None:
    """Take a charge back."""


@pytest_asyncio.fixture(autouse=True)
async def _runs(ledger: ActionLedger) -> None:
    for run in (RUN_A, RUN_B):
        await open_run(ledger, run, spec="{}")


def request(position: str = "0.0", *, run: RunKey = RUN_A, **given: Any) -> ActionRequest:
    """The same charge as `intended` has the outbox make."""
    return action_request(
        run,
        position,
        tool="charge",
        args=charge.effective(ARGS),
        domain_key="order-1-charge",
        **given,
    )


async def intended(url: str, made: Tool = charge) -> ActionKey:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        return await intend(conn, made, ARGS)


async def stop(ledger: ActionLedger, run: RunKey) -> None:
    """Stop a run; its workflow ends."""
    at = after_noon(600)
    await ledger.runs.stop(run, workflow_id="w", agent="support", reason="ada", attempt_at=at)
    await ledger.runs.end(run, attempt_at=at)


async def the(ledger: ActionLedger, key: ActionKey) -> Action:
    found = await ledger.get(key)
    assert found is not None
    return found


async def queued(ledger: ActionLedger, key: ActionKey) -> str | None:
    """What the relay has to do about an action."""
    found = await ledger.relay.entry(key)
    return None if found is None else found[0].why


async def without_exit(ledger: ActionLedger) -> Sequence[ActionKey]:
    return [row.key for row in await ledger.relay.without_exit()]


async def test_a_row_that_nobody_brings_to_its_end_is_found(
    ledger: ActionLedger, ledger_database_url: str, pool: Pool
) -> None:
    key = await intended(ledger_database_url)
    before = await without_exit(ledger)

    await sql(pool, "delete from agent_relay")

    assert (before, await without_exit(ledger)) == ([], [key])


# --- an intent that ends --------------------------------------------------------------------


async def test_what_repeats_an_intent_is_settled_when_that_is_called_off(
    ledger: ActionLedger,
) -> None:
    first = request(detached=True)
    await ledger.claim(first, attempt(1))
    await ledger.park_unsent(first.key, "not sent: declined three times")
    repeat = await ledger.claim(request(run=RUN_B), attempt(2))
    assert isinstance(repeat, Parked)
    await ledger.relay.reopen(first.key)
    await stop(ledger, RUN_A)

    await ledger.relay.call_off(first.key, "its run was stopped")

    settled = await the(ledger, repeat.action.key)
    assert settled.recorded == (await the(ledger, first.key)).recorded
    assert (settled.state, settled.effect_possible) == ("error", False)
    assert settled.settled_at is not None  # its conversation gets a notice
    assert await without_exit(ledger) == []


# --- an undo that comes before what it undoes ----------------------------------------------------


async def undone_by_the_outbox(ledger: ActionLedger, url: str) -> ActionKey:
    """Have the charge taken back, successfully, by the outbox."""
    refund = await the(ledger, await intended(url, take_back))
    assert refund.undoes is not None
    await ledger.record(await dispatched(ledger, relay_request(refund), attempt(9)), RECEIPT)
    return refund.key


async def test_what_was_undone_while_it_was_unknown_is_looked_up_and_never_sent_again(
    ledger: ActionLedger, ledger_database_url: str
) -> None:
    claim = await dispatched(ledger, request(), attempt(1, lease=OVER))
    run = await ledger.runs.get(RUN_A)
    assert run is not None
    await ledger.relay.end_lost(run, workflow_status="terminated", ended_at=after_noon(2))

    refund = await undone_by_the_outbox(ledger, ledger_database_url)
    by_the_relay = relay_request(await the(ledger, claim.key))
    queued_before = await queued(ledger, claim.key)
    taken = await ledger.claim(by_the_relay, attempt(10))

    assert queued_before == "lookup"
    assert isinstance(taken, Parked), "sent again, it would happen after its refund"
    assert refund in (taken.action.parked_reason or "")
