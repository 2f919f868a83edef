"""An activity that an operator resets (`temporal activity reset`) is no new one.

Temporal counts its attempts from one again, so newer code must not take the next one for the first.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import pytest
from pydantic import AfterValidator

from commitline import Effect, Tool, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.ledger import ActionLedger

from .bench import Bench, Ran, fresh_id, one_agent
from .playing import NoAnswerYet, failed_once

CALLED: Counter[str] = Counter()


def refuses(order_id: str) -> str:
    """Refuse what an older validator let through."""
    raise ValueError("no such order any more")


@tool(effect=Effect.IDEMPOTENT, name="charge")
async def charge(ctx: ToolContext, order_id: str) -> str:
    """Charge an order."""
    CALLED[ctx.idempotency_key] += 1
    raise NoAnswerYet("no answer")


@tool(effect=Effect.IDEMPOTENT, name="charge")
async def refusing(ctx: ToolContext, order_id: Annotated[str, AfterValidator(refuses)]) -> str:
    """Charge an order that is still there."""
    CALLED[ctx.idempotency_key] += 1
    return "charged"


@tool(effect=Effect.READ, name="charge")
async def reading(ctx: ToolContext, order_id: str) -> str:
    """Ask what an order costs."""
    CALLED[ctx.idempotency_key] += 1
    return "charged"


async def reset_after(bench: Bench, newer: Tool) -> Ran:
    """Have the effect, deploy, reset the activity at 0.0, and wait for the run's end."""
    script = [call(("charge", {"order_id": "4821"})), say("Done.")]
    async with bench.serving(one_agent([charge], script), cached=0) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await failed_once(run)
    async with bench.serving(one_agent([newer], script)) as client:
        await bench.reset_activity(run.id, "0.0")
        return await bench.outcome(client.run(run.id))


async def test_what_newer_code_refuses_after_the_effect_is_unknown(bench: Bench) -> None:
    ran = await reset_after(bench, refusing)

    (told,) = ran.results
    assert (told.status, [one.state for one in ran.actions]) == ("unknown", ["unknown"])
    assert list(CALLED.values()) == [1]


async def test_what_newer_code_only_reads_is_settled_by_its_row(bench: Bench) -> None:
    ran = await reset_after(bench, reading)

    (told,) = ran.results
    (row,) = ran.actions
    assert (told.status, json.loads(told.content), row.state) == ("ok", "charged", "ok")
    assert {row.idempotency_key: 2} == CALLED, "and both tries under its key"


async def test_what_is_accepted_at_once_costs_no_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    get = ActionLedger.get

    async def counted(self: ActionLedger, key: str) -> object:
        looked.append(key)
        return await get(self, key)  # type: ignore[arg-type]

    monkeypatch.setattr(ActionLedger, "get", counted)

    @tool(effect=Effect.IDEMPOTENT)
    async def pay(order_id: str) -> str:
        return "paid"

    calls = call(("pay", {"order_id": "1"}), ("charge", {"order_id": "1"}))
    ran = await bench.run(one_agent([pay, reading], [calls, say("Done.")]))

    assert [one.status for one in ran.results] == ["ok", "ok"]
    assert looked == []
