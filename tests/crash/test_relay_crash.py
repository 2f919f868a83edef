"""A worker that is killed in the middle of what the relay calls: another one goes on with it."""

from __future__ import annotations

import asyncio
from typing import Any

from commitline import Agent, App, Effect, ScriptedModel, ToolContext, tool
from commitline.activities.model.scripted_model import say
from commitline.examples.shop import payments
from commitline.tests.crash.stage import Scene
from commitline.tests.integration.runs.bench import Bench
from commitline.tests.integration.runs.relay_bench import ends, intend, ledger_of

APP = "commitline.tests.crash.test_relay_crash:app"
RELAY = {"COMMITLINE_RELAY_SECONDS": "1"}


@tool(effect=Effect.IDEMPOTENT)
async def charge(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    body = {"order_id": order_id, "amount_cents": amount_cents, "reference": order_id}
    return await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)


app = App([Agent("support", ScriptedModel("scripted", [say("Done.")]), "Serve.", tools=[charge])])


async def test_what_a_killed_settling_had_sent_counts_once(scene: Scene) -> None:
    bench = Bench(scene.temporal, scene.settings)
    async with ledger_of(bench) as ledger:
        wanted = {"order_id": "4821", "amount_cents": 4900}
        key = await intend(bench, ledger, "charge", wanted)

        with scene.worker(APP, crash_at="before_record@charge", **RELAY) as killed:
            await asyncio.to_thread(killed.wait_until_killed)
        between = await ledger.get(key)
        sent_by_then = scene.provider.requests("charge")
        with scene.worker(APP, **RELAY):
            (row,) = await ends(ledger, [key])
    stats = await asyncio.to_thread(scene.provider.stats)

    assert between is not None
    assert (between.state, sent_by_then) == ("dispatched", 1)
    assert row.state == "ok"
    assert stats["effects"]["charge:4821"] == 1
    assert [one["key"] for one in stats["sent"]] == [row.idempotency_key] * 2
