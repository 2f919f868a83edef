"""`commitline relay`, `relay run` and `actions reopen`, as a person or a script meets them."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest
from temporalio.client import Client

from commitline import App, Effect, tool
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
    queue = settings.task_queue
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

            async def looked() -> bool:
                last = await ledger.relay.sweeps.last(namespace="default", task_queue=queue)
                return last is not None

            await eventually(looked)
            shown, as_json, wrong, run = await asyncio.gather(
                at.commitline("relay"),
                at.commitline("relay", "--json"),
                at.commitline("actions", "reopen", unserved),
                at.commitline("relay", "run", "--json"),
            )
            started = json.loads(run.stdout)["workflow_id"]
            found = await temporal_client.get_workflow_handle(started).result()
            reopened = await at.commitline("actions", "reopen", kept, "--json")
            await ends(ledger, [kept])
            again = await at.commitline("actions", "reopen", kept)

    assert (missing.returncode, "No relay" in missing.stderr) == (0, True)
    assert refused.returncode != 0
    assert "COMMITLINE_RELAY_SECONDS" in " ".join(refused.stderr.split())
    assert shown.returncode == 0, shown.stderr
    assert f"The relay is the workers of {queue}; they looked last" in shown.stderr
    for told in ("mail", "charge", "waits for a person", "nobody takes it"):
        assert told in shown.stdout, told
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    told = json.loads(as_json.stdout)
    assert (told["task_queue"], told["state"]) == (queue, "on")
    assert [
        (one["key"], one["why"], one["due_at"] is None, one["overdue"]) for one in told["waiting"]
    ] == [(unserved, "send", False, True), (kept, "send", True, False)]
    assert told["gone"] == []
    assert wrong.returncode != 0
    assert "CL219" in wrong.stderr
    assert set(found) == {"started", "gone"}
    assert json.loads(reopened.stdout)["key"] == kept
    assert (again.returncode != 0, "is settled" in " ".join(again.stderr.split())) == (True, True)
