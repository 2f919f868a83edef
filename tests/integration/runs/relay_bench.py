"""What the relay's tests have in common: intents by hand, a look, and rows whose time is up."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client

from commitline.canonical import dumps
from commitline.client import AgentClient
from commitline.identity import ActionKey, RunKey
from commitline.ledger import Action, ActionLedger, Dispatched, Effect, ledger_pool
from commitline.tests.builders import OVER, action_request, attempt, dispatched
from commitline.workflows import Relay

from .bench import Bench, eventually, fresh_id

LONG_AGO = datetime(2026, 3, 1, 12, tzinfo=UTC)


def relaying(bench: Bench, **settings: Any) -> Bench:
    """Return a bench whose workers look every second."""
    changed = bench.settings.model_copy(update={"relay_seconds": 1, **settings})
    return replace(bench, settings=changed)


async def another(bench: Bench) -> Bench:
    """Return the same bench over another connection: a second worker beside the first."""
    return replace(
        bench, temporal=await Client.connect(bench.temporal.service_client.config.target_host)
    )


@asynccontextmanager
async def ledger_of(bench: Bench) -> AsyncIterator[ActionLedger]:
    """Open a ledger beside the workers."""
    async with ledger_pool(bench.settings.database_url, size=4) as pool:
        yield ActionLedger(pool)


async def look(bench: Bench) -> dict[str, int]:
    """Have the relay look once, and say what it found; all runs count as old enough."""
    await bench.sql("update agent_runs set created_at = created_at - interval '10 seconds'")
    found: dict[str, int] = await bench.temporal.execute_workflow(
        Relay.run, id=fresh_id("relay"), task_queue=bench.settings.task_queue
    )
    return found


async def expire(bench: Bench, *keys: ActionKey) -> None:
    """Have no attempt be at work on these rows any more."""
    await bench.sql(
        "update agent_actions set lease_until = now(), sent_until = now()"
        " where key = any(%(keys)s)",
        keys=list(keys),
    )


async def lost(
    ledger: ActionLedger,
    run: RunKey,
    at: str,
    tool: str,
    args: dict[str, Any],
    *,
    effect: Effect = Effect.IDEMPOTENT,
    lease: timedelta = OVER,
) -> Dispatched:
    """Dispatch a call by an attempt that is lost then."""
    request = action_request(run, at, tool=tool, args=dumps(args), effect=effect)
    return await dispatched(ledger, request, attempt(-60, since=datetime.now(UTC), lease=lease))


async def intend(
    bench: Bench,
    ledger: ActionLedger,
    tool: str,
    args: dict[str, Any],
    *,
    effect: Effect = Effect.IDEMPOTENT,
    sent: bool = False,
    run: RunKey | None = None,
) -> ActionKey:
    """Write what the relay is to send; ``sent``: a settling has, and was lost."""
    run = run or RunKey(f"outbox/{uuid.uuid4()}")
    await ledger.runs.open(
        run_key=run, workflow_id="", agent="", input_digest="", attempt_at=LONG_AGO
    )
    claim = await lost(ledger, run, "0.0", tool, args, effect=effect)
    if not sent:
        assert await ledger.hand_back(claim, claim.attempt)
    await bench.sql("update agent_actions set relayed = true where key = %(key)s", key=claim.key)
    await bench.sql(
        "insert into agent_relay (key, why, tool) values (%(key)s, 'send', %(tool)s)",
        key=claim.key,
        tool=tool,
    )
    return claim.key


async def ends(
    ledger: ActionLedger, keys: Sequence[ActionKey], *, seconds: float = 60
) -> list[Action]:
    """Wait until each has an end, or is a person's, and nothing of them is due; return them."""

    async def all_have() -> list[Action] | None:
        rows = [one for key in keys if (one := await ledger.get(key)) is not None]
        due = {one.key for one in await ledger.relay.list() if one.due_at}
        ended = all(one.status == "done" or one.parked for one in rows)
        return rows if ended and not due & set(keys) else None

    found = await eventually(all_have, seconds=seconds)
    assert found is not None
    return found


async def terminate(client: AgentClient, id: str) -> None:
    """Terminate a run in Temporal: no code of ours gets to know."""
    await client.temporal.get_workflow_handle(id).terminate("a test")
