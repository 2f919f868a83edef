"""A worker process says whether it lives and whether it is ready, as an orchestrator asks it."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from commitline.testing.processes import WorkerProcess
from commitline.testing.proxy import TcpProxy
from commitline.tests.crash.probe import Asked, Probe, free_port
from commitline.tests.crash.stage import Scene, until

APP = "services:till"


@asynccontextmanager
async def serving(scene: Scene, **environment: str) -> AsyncIterator[tuple[WorkerProcess, Probe]]:
    """Run a worker of the scene, and be able to ask it; it is ready."""
    port = free_port(scene.log.parent)
    address = f"127.0.0.1:{port}"
    with scene.worker(APP, COMMITLINE_HEALTH_ADDRESS=address, **environment) as worker:
        probe = Probe(port)
        await probe.becomes(ready=True)
        yield worker, probe


async def test_a_worker_is_ready_while_its_ledger_and_its_temporal_answer(scene: Scene) -> None:
    url, target = scene.settings.database_url, scene.environment["TEMPORAL_ADDRESS"]
    host, _, port = target.rpartition(":")
    with TcpProxy.before(url) as postgres, TcpProxy((host, int(port))) as temporal:
        ways = {
            "COMMITLINE_DATABASE_URL": postgres.url(url),
            "TEMPORAL_ADDRESS": f"127.0.0.1:{temporal.port}",
        }
        async with serving(scene, **ways) as (_, probe):
            postgres.cut()
            without_postgres = await probe.becomes(ready=False)
            live = await probe.get("/live")
            postgres.restore()
            await probe.becomes(ready=True)
            temporal.cut()
            without_temporal = await probe.becomes(ready=False)
            temporal.restore()
            await probe.becomes(ready=True)

    assert without_postgres == ["ledger: LedgerUnavailable [CL206]"]
    assert live == Asked(200, {"live": True})
    assert without_temporal[0].startswith("polls: ")
    told = [json.loads(line) for line in scene.log.read_text().splitlines()]
    changes = [one["event"] for one in told if one["event"] in ("worker.ready", "worker.not_ready")]
    since = changes[changes.index("worker.ready") :]
    assert since == ["worker.ready", *["worker.not_ready", "worker.ready"] * 2]


async def test_a_worker_is_not_ready_for_a_schema_that_does_not_fit(scene: Scene) -> None:
    async with (
        serving(scene) as (_, probe),
        await psycopg.AsyncConnection.connect(scene.settings.database_url) as owner,
    ):
        await owner.execute("delete from agent_schema_migrations")
        await owner.commit()
        reasons = await probe.becomes(ready=False)

    assert reasons == ["ledger: SchemaMismatch [CL207]"]


async def test_a_worker_that_stands_still_does_not_say_that_it_lives(scene: Scene) -> None:
    async with serving(scene) as (worker, probe):
        assert worker.process is not None
        os.kill(worker.process.pid, signal.SIGSTOP)
        frozen = await probe.get("/live", seconds=1)
        os.kill(worker.process.pid, signal.SIGCONT)
        await probe.becomes(ready=True)

    assert frozen is None


async def test_a_worker_that_finishes_what_it_has_begun_lives_and_is_not_ready(
    scene: Scene,
) -> None:
    async def charged() -> bool:
        return await asyncio.to_thread(scene.provider.effects, "charge:4821") == 1

    scene.hold.touch()
    await scene.start()
    async with serving(scene) as (worker, probe):
        await until(charged)
        assert worker.process is not None
        worker.process.terminate()
        reasons = await probe.becomes(ready=False)
        live = await probe.get("/live")
        unknown = await probe.get("/metrics")
        scene.hold.unlink()
        status = await asyncio.to_thread(worker.process.wait, 60)

    assert "worker: finishes what it has begun" in reasons[0]
    assert live == Asked(200, {"live": True})
    assert unknown is not None
    assert unknown.status == 404
    assert status == 0
