"""`commitline relay`, `relay run` and `actions reopen`, as a person or a script meets them."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest
from temporalio.client import Client

from commitline import App, Effect, tool
from commitline.activities.runs.relay_triggers import schedule_id
from commitline.config import Settings

from .runs.bench import Bench, eventually
from .runs.relay_bench import ends, intend, ledger_of
from .test_cli_threads import shop


@tool(effect=Effect.IDEMPOTENT)
async def charge(order: str) -> str:
    """Charge an order."""
    return f"charged {order}"


APP = App(tools=[charge])


@pytest.fixture
def settings(database_url: str) -> Settings:
    return Settings(
        database_url=database_url,
        task_queue=f"relay-{uuid.uuid4()}",
        grace_seconds=5,
        relay_seconds=3600,
        relay_tries=1,
    )


async def test_the_relay_is_shown_told_to_look_and_told_to_try_again(
    temporal_client: Client, settings: Settings
) -> None:
    bench = Bench(temporal_client, settings)
    away = settings.model_copy(update={"relay_seconds": 0})
    async with ledger_of(bench) as ledger:
        unserved = await intend(bench, ledger, "mail", {"order": "1"})
        await bench.sql("update agent_relay set due_at = now() - interval '1 hour'")
        kept = await intend(bench, ledger, "charge", {"order": "4821"})
        await ledger.park_unsent(kept, "not sent: the till is shut")
        await ledger.relay.dequeue_if_settled(kept)
        async with shop(temporal_client, away, APP) as at:
            missing, refused = await asyncio.gather(
                at.commitline("relay"), at.commitline("relay", "run")
            )
        async with shop(temporal_client, settings, APP) as at:
            handle = temporal_client.get_schedule_handle(schedule_id(settings.task_queue))
            try:
                shown, as_json, wrong, run = await asyncio.gather(
                    at.commitline("relay"),
                    at.commitline("relay", "--json"),
                    at.commitline("actions", "reopen", unserved),
                    at.commitline("relay", "run", "--json"),
                )

                async def looked() -> bool:
                    return (await handle.describe()).info.num_actions == 1

                await eventually(looked)
                reopened = await at.commitline("actions", "reopen", kept, "--json")
                await ends(ledger, [kept])
                again = await at.commitline("actions", "reopen", kept)
                await handle.pause()
                paused = await at.commitline("relay")
            finally:
                await handle.delete()

    assert (missing.returncode, "No relay: a worker makes its schedule" in missing.stderr) == (
        0,
        True,
    )
    assert refused.returncode != 0
    assert "COMMITLINE_RELAY_SECONDS" in " ".join(refused.stderr.split())
    assert shown.returncode == 0, shown.stderr
    for told in ("mail", "charge", "waits for a person", "nobody takes it"):
        assert told in shown.stdout, told
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    told = json.loads(as_json.stdout)
    assert (told["schedule"], told["state"]) == (schedule_id(settings.task_queue), "on")
    assert [
        (one["key"], one["why"], one["due_at"] is None, one["overdue"]) for one in told["waiting"]
    ] == [(unserved, "send", False, True), (kept, "send", True, False)]
    assert told["gone"] == []
    assert wrong.returncode != 0
    assert "CL219" in wrong.stderr
    assert json.loads(run.stdout) == {"schedule": told["schedule"]}
    assert json.loads(reopened.stdout)["key"] == kept
    assert (again.returncode != 0, "is settled" in " ".join(again.stderr.split())) == (True, True)
    assert "paused" in paused.stderr
