"""Two runs that charge an order: what the tests of claims begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commitline.identity import ActionKey, RunKey
from commitline.ledger import ActionRequest
from commitline.ledger.pool import Pool
from commitline.tests.builders import action_request
from commitline.tests.integration.database import sql

RUN_A = RunKey("support-4821/e1")
RUN_B = RunKey("support-4821/e2")
DOMAIN_KEY = "order-4821-charge"
CHARGE = '{"order_id":"4821","amount_cents":4900}'
OTHER_CHARGE = '{"order_id":"4821","amount_cents":5900}'
RECEIPT = '{"id":"ch_1", "amount": 4.9e3}'
LOST = "an earlier attempt was lost after it was dispatched"


def action(
    position: str = "0.0",
    *,
    run: RunKey = RUN_A,
    tool: str = "charge_card",
    args: str = CHARGE,
    **given: Any,
) -> ActionRequest:
    return action_request(run, position, tool=tool, args=args, **given)


async def expire_lease(pool: Pool, key: ActionKey) -> None:
    await sql(
        pool,
        "update agent_actions set lease_until = clock_timestamp() - interval '1 second' "
        "where key = %(key)s",
        key=key,
    )


async def row(pool: Pool, key: ActionKey) -> Mapping[str, Any]:
    (found,) = await sql(pool, "select * from agent_actions where key = %(key)s", key=key)
    return found


async def counts(pool: Pool) -> tuple[int, int]:
    """Rows of actions, and of domain keys."""
    (found,) = await sql(
        pool,
        "select (select count(*) from agent_actions) as actions, "
        "(select count(*) from agent_domain_keys) as keys",
    )
    return found["actions"], found["keys"]
