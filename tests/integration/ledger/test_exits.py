"""Every row has an exit: it ends, a person may settle it, or somebody brings it to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from commitline import Effect, tool
from commitline.identity import ActionKey
from commitline.ledger import ActionLedger, intend
from commitline.ledger.pool import Pool
from commitline.tests.integration.database import sql

ARGS = {"order_id": "1"}


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge(order_id: str) -> str:
    """Charge an order."""
    raise NotImplementedError


async def intended(url: str, made: Any = charge) -> ActionKey:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        return await intend(conn, made, ARGS)


async def without_exit(ledger: ActionLedger) -> Sequence[ActionKey]:
    return [row.key for row in await ledger.relay.without_exit()]


async def test_a_row_that_nobody_brings_to_its_end_is_found(
    ledger: ActionLedger, ledger_database_url: str, pool: Pool
) -> None:
    key = await intended(ledger_database_url)
    before = await without_exit(ledger)

    await sql(pool, "delete from agent_relay")

    assert (before, await without_exit(ledger)) == ([], [key])
