"""How soon a run goes on after its worker was killed, and how soon a stopped run has ended.

*Recovery*: two worker processes; a run's tool is at work in one of them, which is killed with
SIGKILL at some moment between two heartbeats. Measured is the time until the model is asked
for the run's next turn, because only then is the step that was under way over: its call taken
over and recorded, and the run moved on by a worker that had to rebuild it, if the dead one
had it in its cache. The take-over's call, which comes before that, is told besides.

*Stop*: from the call of `run.stop()` to its return, with an async tool that hangs.

*Local*: the same recovery of a run whose agent and tool are local. The server notices that worker
by the time-out of the workflow task, which is five seconds.

Tool and model write down when they begin, by the monotonic clock, which all processes of a
machine share. Both figures follow the heartbeat: a dead worker is noticed by the one that does
not come, a living one learns of a cancellation from the answer to its next one.

Exits with 1 if a median is beyond its limit.

    python bench/recovery.py [--runs 10] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from commitline import Agent, App, Effect, RunHandle, ScriptedModel, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.bench.harness import bench_stack
from commitline.client import AgentClient
from commitline.config import Settings
from commitline.devstack import DevStack
from commitline.ledger import migrate
from commitline.process import leave
from commitline.testing import call, say
from commitline.testing.processes import WorkerProcess
from commitline.workflows.run_input import TASK_TIMEOUT

HEARTBEAT_SECONDS: Final = Settings().heartbeat_seconds
"""Users have the default."""
RECOVERY_TARGET: Final = HEARTBEAT_SECONDS + 1
STOP_TARGET: Final = HEARTBEAT_SECONDS + 1
LOCAL_TARGET: Final = TASK_TIMEOUT.total_seconds() + 1
LOCAL: Final = "local"
AGENT: Final = "bench"
FOLDER: Final = "BENCH_FOLDER"
"""The environment's variable: where tool and model write down when they begin."""
PATIENCE_SECONDS: Final = 60.0
SEED: Final = 4821


# What the workers run.


def note(run: str, what: str) -> None:
    """Write down that something begins now, in this process."""
    with (Path(os.environ[FOLDER]) / run).open("a") as file:
        file.write(f"{what} {os.getpid()} {time.monotonic()}\n")


@tool(effect=Effect.IDEMPOTENT)
async def charge(ctx: ToolContext, run: str) -> str:
    """Hang, until somebody takes over."""
    return await _charge(ctx, run)


@tool(effect=Effect.IDEMPOTENT, local=True, tool_timeout=30)
async def charge_locally(ctx: ToolContext, run: str) -> str:
    """Do the same."""
    return await _charge(ctx, run)


async def _charge(ctx: ToolContext, run: str) -> str:
    note(run, "call")
    if not ctx.taken_over:
        await asyncio.Event().wait()
    return "charged"


def next_turn(request: ModelRequest) -> Completion:
    """Be asked for the turn after the call."""
    note(request.messages[0].text, "turn")
    return say("done")


def _model(name: str) -> ScriptedModel:
    return ScriptedModel(
        name, [lambda request: call((name, {"run": request.messages[0].text})), next_turn]
    )


INSTRUCTIONS: Final = "Charge, and say when you are done."
app = App(
    [
        Agent(AGENT, _model("charge"), INSTRUCTIONS, [charge]),
        Agent(
            LOCAL,
            _model("charge_locally"),
            INSTRUCTIONS,
            [charge_locally],
            local=True,
            model_timeout=30,
        ),
    ]
)


# What kills and stops them.


@dataclass(frozen=True)
class Noted:
    """Something that tool or model wrote down."""

    what: str
    pid: int
    at: float


class Bench:
    """Two workers, of which one is killed time after time."""

    def __init__(self, client: AgentClient, environment: dict[str, str], folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._random = Random(SEED)
        self._workers = [
            WorkerProcess(
                "recovery:app",
                environment=environment,
                log=folder / f"worker-{number}.log",
                cwd=Path(__file__).parent,
            )
            for number in (1, 2)
        ]

    async def measure(self, *, runs: int, progress: Console) -> dict[str, Any]:
        """Measure and return the result as JSON data."""
        with ExitStack() as stack:
            for worker in self._workers:
                stack.enter_context(worker)
            await asyncio.gather(*(self._started(worker, times=1) for worker in self._workers))
            recoveries = [await self._recover(number) for number in range(runs + 1)]
            local = [await self._recover(number, agent=LOCAL) for number in range(runs + 1)]
            progress.print(f"  {2 * runs} workers killed")
            stops = [await self._stop(number) for number in range(runs + 1)]
            progress.print(f"  {runs} runs stopped")
        # The first of each warms up, and is not counted.
        return result_of(runs, recoveries[1:], local[1:], stops[1:])

    async def _recover(self, number: int, *, agent: str = AGENT) -> tuple[float, float]:
        """Kill the worker at work; return the seconds to the take-over's call and next turn."""
        run, name = await self._run_at_work(f"{agent}-recovery-{number}", agent)
        (victim,) = [w for w in self._workers if _pid(w) == self._noted(name)[0].pid]
        started = victim.log.read_bytes().count(b"worker.started")
        killed_at = time.monotonic()
        victim.kill()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await run.result()
        _, taken_over, turn = self._noted(name)
        victim.__enter__()
        await self._started(victim, times=started + 1)
        return taken_over.at - killed_at, turn.at - killed_at

    async def _stop(self, number: int) -> float:
        """Stop a run whose tool hangs; return the seconds that it takes."""
        run, _ = await self._run_at_work(f"stop-{number}", AGENT)
        began = time.monotonic()
        status = await run.stop(reason="measured")
        taken = time.monotonic() - began
        assert status.state == "canceled", status
        return taken

    async def _run_at_work(self, name: str, agent: str) -> tuple[RunHandle, str]:
        """Start a run and return some time after its tool has begun, never at the same beat."""
        run = await self._client.start(agent, name, id=name)
        await _until(lambda: bool(self._noted(name)))
        await asyncio.sleep(HEARTBEAT_SECONDS * (1 + self._random.random()))
        return run, name

    async def _started(self, worker: WorkerProcess, *, times: int) -> None:
        await _until(lambda: worker.log.read_bytes().count(b"worker.started") >= times)

    def _noted(self, name: str) -> list[Noted]:
        file = self._folder / name
        lines = file.read_text().splitlines() if file.exists() else []
        words = [line.split() for line in lines]
        return [Noted(what, int(pid), float(at)) for what, pid, at in words]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - another process brings it about
            await asyncio.sleep(0.02)


def _pid(worker: WorkerProcess) -> int:
    assert worker.process is not None
    return worker.process.pid


def result_of(
    runs: int,
    recoveries: list[tuple[float, float]],
    local: list[tuple[float, float]],
    stops: list[float],
) -> dict[str, Any]:
    """Return what was measured, as JSON data."""
    taken_over = [first for first, _ in recoveries]
    turns = [second for _, second in recoveries]
    locally = [second for _, second in local]
    recovery, stop = median(turns), median(stops)
    return {
        "recovery_seconds": round(recovery, 3),
        "recovery_beyond_heartbeat": round(recovery - HEARTBEAT_SECONDS, 3),
        "local_recovery_seconds": round(median(locally), 3),
        "takeover_seconds": round(median(taken_over), 3),
        "stop_seconds": round(stop, 3),
        "heartbeat_seconds": HEARTBEAT_SECONDS,
        "recovery_target": RECOVERY_TARGET,
        "local_target": LOCAL_TARGET,
        "stop_target": STOP_TARGET,
        "runs": runs,
        "all": {
            "recovery": [round(taken, 3) for taken in turns],
            "local": [round(taken, 3) for taken in locally],
            "takeover": [round(taken, 3) for taken in taken_over],
            "stop": [round(taken, 3) for taken in stops],
        },
    }


def table_of(result: dict[str, Any]) -> Table:
    """Return the result for people."""
    table = Table(title=f"{result['runs']} of each, heartbeat {HEARTBEAT_SECONDS:g} s")
    table.add_column("from")
    table.add_column("to")
    for heading in ("median s", "fastest", "slowest", "at most"):
        table.add_column(heading, justify="right")
    for name, key, begin, end, target in (
        ("takeover", "takeover_seconds", "the kill", "the call is taken over", ""),
        ("recovery", "recovery_seconds", "the kill", "the next turn", f"{RECOVERY_TARGET:g}"),
        ("local", "local_recovery_seconds", "the kill", "the same, local", f"{LOCAL_TARGET:g}"),
        ("stop", "stop_seconds", "stop()", "its return", f"{STOP_TARGET:g}"),
    ):
        found = result["all"][name]
        figures = (f"{taken:.2f}" for taken in (result[key], min(found), max(found)))
        table.add_row(begin, end, *figures, target)
    return table


async def measure(stack: DevStack, folder: Path, *, runs: int, progress: Console) -> dict[str, Any]:
    """Measure against running servers."""
    settings = Settings(database_url=stack.database_url, task_queue="bench-recovery")
    await migrate(settings.database_url)
    environment = {
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "COMMITLINE_DATABASE_URL": settings.database_url,
        "COMMITLINE_TASK_QUEUE": settings.task_queue,
        "COMMITLINE_HEARTBEAT_SECONDS": f"{HEARTBEAT_SECONDS:g}",
        FOLDER: str(folder),
    }
    temporal = await Client.connect(stack.temporal_address)
    async with AgentClient(temporal, settings) as client:
        return await Bench(client, environment, folder).measure(runs=runs, progress=progress)


def main() -> None:
    """Start the servers, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description="How soon a run goes on, and how soon it stops.")
    parser.add_argument("--runs", type=int, default=10, help="kills, and stops")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.runs < 1:
        parser.error("--runs: at least 1")
    progress = Console(stderr=True, highlight=False)
    with bench_stack(progress) as stack, tempfile.TemporaryDirectory() as folder:
        progress.print(f"Killing {given.runs} workers and stopping {given.runs} runs")
        result = asyncio.run(measure(stack, Path(folder), runs=given.runs, progress=progress))
    (progress if given.json else Console(highlight=False)).print(table_of(result))
    if given.json:
        print(json.dumps(result))
    leave(int(missed(result)))


def missed(result: dict[str, Any]) -> bool:
    """Whether a figure is beyond its limit."""
    return bool(
        result["recovery_seconds"] > RECOVERY_TARGET
        or result["local_recovery_seconds"] > LOCAL_TARGET
        or result["stop_seconds"] > STOP_TARGET
    )


if __name__ == "__main__":
    main()
