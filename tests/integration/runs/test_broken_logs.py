"""A log, or a metric, that breaks: what it would tell of goes on as if it were written."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import pytest
import structlog

from commitline import Effect, tool
from commitline.activities.guard.worker_metrics import WorkerMetrics
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.testing.processes import Process, ProviderProcess, WorkerProcess

from .bench import Bench, fresh_id, one_agent
from .playing import SOON

CALLED: Counter[str] = Counter()
ACT = call(("act", {}))


class Broken:
    """Metrics of which each report raises."""

    def begin(self, **given: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return breaks


def breaks(*given: Any) -> NoReturn:
    raise BrokenPipeError(32, "Broken pipe")


@pytest.fixture(params=["log", "metrics"])
def _broken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have each event, or each count, of the workers here raise."""
    kept = structlog.get_config()
    if request.param == "log":
        structlog.configure(processors=[breaks])
    else:
        monkeypatch.setattr(WorkerMetrics, "of", lambda *_: Broken())
    yield
    structlog.configure(**kept)


@pytest.mark.usefixtures("_broken")
async def test_an_outcome_and_a_failed_try_are_recorded_although_nobody_can_be_told(
    bench: Bench,
) -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def act() -> str:
        CALLED["act"] += 1
        if CALLED["act"] == 1:
            raise ConnectionResetError("cut")
        return "acted"

    @tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.2)
    async def hang() -> None:
        CALLED["hang"] += 1
        await asyncio.sleep(60)

    async with asyncio.timeout(SOON):
        ran = await bench.run(
            one_agent([act, hang], [call(("act", {}), ("hang", {})), say("Done.")])
        )

    assert CALLED == {"act": 2, "hang": 1}
    assert {a.tool: (a.state, a.failures) for a in ran.actions} == {
        "act": ("ok", 1),
        "hang": ("unknown", 1),
    }


class Unheard(WorkerProcess):
    """A worker whose stderr has lost its reader."""

    def _start(self, log: IO[bytes]) -> Process:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=log,
                stderr=writer,
                start_new_session=True,
            )
        finally:
            os.close(writer)


async def test_a_worker_whose_stderr_has_lost_its_reader_works_and_ends_as_any_other(
    bench: Bench, provider: ProviderProcess, tmp_path: Path
) -> None:
    client = AgentClient(bench.temporal, bench.settings)
    environment = {
        "TEMPORAL_ADDRESS": bench.temporal.service_client.config.target_host,
        "COMMITLINE_DATABASE_URL": bench.settings.database_url,
        "COMMITLINE_TASK_QUEUE": bench.settings.task_queue,
        "COMMITLINE_RELAY_SECONDS": "0",
    }

    run = await client.start("support", "Charge order 4821.", id=fresh_id())
    app = "commitline.examples.shop.app:app"
    with Unheard(app, environment=environment, log=tmp_path / "log") as worker:
        async with asyncio.timeout(SOON):
            await run.result()
        status = await asyncio.to_thread(worker.terminate)
    await client.close()

    assert status == 0
    assert provider.effects("charge:4821") == 1
