"""Two runs that charge an order: what the tests of claims begin with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from commitline.canonical import digest, parse
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import ActionLedger, ActionRequest, Attempt, Dispatched, Effect, Outcome
from commitline.ledger.pool import Pool
from commitline.tests.integration.database import sql

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUN_A = RunKey("support-4821/e1")
RUN_B = RunKey("support-4821/e2")
DOMAIN_KEY = "order-4821-charge"
CHARGE = '{"order_id":"4821","amount_cents":4900}'
OTHER_CHARGE = '{"order_id":"4821","amount_cents":5900}'
RECEIPT = '{"id":"ch_1", "amount": 4.9e3}'
DECLINED = Outcome.error(kind="ToolRefused", message="card declined", effect_possible=False)
LOST = "an earlier attempt was lost after it was dispatched"


def action(
    position: str = "0.0",
    *,
    run: RunKey = RUN_A,
    tool: str = "charge_card",
    args: str = CHARGE,
    effect: Effect = Effect.IDEMPOTENT,
    domain_key: str | None = None,
    key_ttl: timedelta | None = None,
) -> ActionRequest:
    return ActionRequest(
        run_key=run,
        position=Position(position),
        tool=tool,
        args=args,
        effect=effect,
        requested_digest=digest(parse(args)),
        effective_digest=digest(parse(args)),
        domain_key=domain_key,
        key_ttl=key_ttl,
    )


def attempt(second: int = 0, *, lease: timedelta = timedelta(minutes=5)) -> Attempt:
    """An attempt that began so many seconds after noon, by the engine's clock."""
    return Attempt(started_at=NOON + timedelta(seconds=second), token=uuid4(), lease=lease)


async def dispatched(ledger: ActionLedger, request: ActionRequest, by: Attempt) -> Dispatched:
    claim = await ledger.claim(request, by)
    assert isinstance(claim, Dispatched)
    return claim


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
