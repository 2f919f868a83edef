"""Plays a soak: servers, a provider, workers, runs, chaos, calm, and a look at what is left.

Everything belongs to the soak and ends with it: the servers lie in a temporary folder, every
process is started by a ``with`` block. On Ctrl-C the blocks are left as on any other way out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowHistory
from temporalio.common import RawValue

from ...activities.conversation import ToolResult
from ...activities.run_activities import CALL_MODEL, CallModel
from ...activities.wire import unpack
from ...client import AgentClient, RunHandle
from ...config import Settings
from ...devstack import DevStack
from ...errors import CommitlineError
from ...identity import run_key
from ...ledger import ActionLedger, migrate
from ..processes import ProviderProcess
from ..proxy import TcpProxy
from ..surroundings import own_environment, terminating_as_interrupt
from . import provider as faulty_provider
from .app import AGENT, PROVIDER
from .chaos import Chaos, Workers, faults
from .plan import plan_of, prompt_of
from .verdict import Aftermath, RunSeen, Violation

APP: Final = "commitline.testing.soak.app:app"
WORKERS: Final = 3
OPEN_RUNS: Final = 8
"""Runs at a time."""
SHORTEST_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 30.0
"""Of a soak's time, what is left for its end."""
LIMIT_SECONDS: Final = 150.0
"""After that, a run that has not ended never will."""
_FAULTS_OF_PROVIDER: Final = 0.34
_PROVIDER_DELAY_SECONDS: Final = 0.05
_MOST_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class Result:
    """What came of a soak."""

    seed: int
    seconds: float
    """How long it took, all in all."""
    settled_in: float
    """How long after the last fault the last run ended."""
    runs: Counter[str]
    """By state."""
    actions: Counter[tuple[str, str]]
    """By effect and state."""
    faults: Counter[str]
    provider_faults: Counter[str]
    exits: Counter[int]
    """How workers have ended, by exit status."""
    events: Counter[str]
    """What the workers said, by event."""
    violations: Sequence[Violation]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "settled_in": round(self.settled_in, 1),
            "runs": dict(sorted(self.runs.items())),
            "actions": {
                f"{effect} {state}": count
                for (effect, state), count in sorted(self.actions.items())
            },
            "faults": dict(sorted(self.faults.items())),
            "provider_faults": dict(sorted(self.provider_faults.items())),
            "worker_exits": {str(status): count for status, count in sorted(self.exits.items())},
            "events": dict(sorted(self.events.items())),
            "violations": [str(found) for found in self.violations],
        }


def run_soak(
    *, seconds: float, seed: int, told: Callable[[str], None], keep_logs: Path | None = None
) -> Result:
    """Play a soak; return what came of it. Call it from the main thread.

    Args:
        seconds: How long it takes, the calm at its end included; at least a minute.
        seed: Decides plans, faults and the provider's behaviour.
        told: Called with what is going on, for people.
        keep_logs: Where the workers' logs are copied to.

    Raises:
        ConfigurationError: The servers' packages are missing, or they did not come up.
    """
    # The pool here sees Postgres restart, too, and need not say so.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="commitline-soak-"))
    try:
        with (
            own_environment(**{faulty_provider.SEED: str(seed)}),
            terminating_as_interrupt(),
            DevStack(folder, ui_port=None, persistent=False) as stack,
            TcpProxy.before(stack.database_url) as proxy,
            ProviderProcess(faulty_provider.__name__) as provider,
        ):
            told("the servers are up")
            began = time.monotonic()
            settings = Settings(database_url=stack.database_url, task_queue="soak")
            asyncio.run(migrate(settings.database_url))
            environment = {
                "TEMPORAL_ADDRESS": stack.temporal_address,
                "COMMITLINE_DATABASE_URL": proxy.url(settings.database_url),
                "COMMITLINE_TASK_QUEUE": settings.task_queue,
                "COMMITLINE_HEARTBEAT_SECONDS": "1",
                "COMMITLINE_STATEMENT_SECONDS": "2",
                "COMMITLINE_GRACE_SECONDS": "2",
                PROVIDER: provider.url,
            }
            with Workers(APP, count=WORKERS, environment=environment, folder=folder) as workers:
                soak = _Soak(
                    seed,
                    stack=stack,
                    settings=settings,
                    chaos=Chaos(stack, proxy, workers),
                    workers=workers,
                    provider=provider,
                    told=told,
                )
                result = asyncio.run(soak.play(began=began, seconds=seconds))
            if keep_logs is not None:
                _keep(workers.logs, keep_logs)
            return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Soak:
    """A soak under way."""

    def __init__(
        self,
        seed: int,
        *,
        stack: DevStack,
        settings: Settings,
        chaos: Chaos,
        workers: Workers,
        provider: ProviderProcess,
        told: Callable[[str], None],
    ) -> None:
        self._seed = seed
        self._stack = stack
        self._settings = settings
        self._chaos = chaos
        self._workers = workers
        self._provider = provider
        self._told = told
        self._runs: list[asyncio.Future[RunHandle]] = []
        self._stopped: set[str] = set()

    async def play(self, *, began: float, seconds: float) -> Result:
        self._temporal = await Client.connect(self._stack.temporal_address)
        async with AgentClient(self._temporal, self._settings) as client:
            keeping = asyncio.ensure_future(self._workers.keep())
            try:
                await self._rage(client, until=began + seconds - SETTLE_SECONDS)
                calm = time.monotonic()
                self._told(f"calm; {len(self._runs)} runs were started")
                await self._settle()
                settled_in = time.monotonic() - calm
                aftermath, faults_of_provider = await self._look_around(client)
            finally:
                keeping.cancel()
        return Result(
            seed=self._seed,
            seconds=time.monotonic() - began,
            settled_in=settled_in,
            runs=Counter(run.state for run in aftermath.runs),
            actions=Counter((str(one.effect), one.state) for one in aftermath.actions),
            faults=self._chaos.injected,
            provider_faults=faults_of_provider,
            exits=self._workers.exits,
            events=_events(self._workers.logs),
            violations=aftermath.violations(),
        )

    async def _rage(self, client: AgentClient, *, until: float) -> None:
        """Start runs and inject faults until this time; the runs that are open then go on."""
        self._provider.behave(faults=_FAULTS_OF_PROVIDER, delay_seconds=_PROVIDER_DELAY_SECONDS)
        starting = asyncio.ensure_future(self._start_runs(client))
        try:
            await self._chaos.rage(faults(self._seed, workers=WORKERS), until=until)
        finally:
            self._chaos.mend()
            starting.cancel()
            self._provider.behave()

    async def _start_runs(self, client: AgentClient) -> None:
        """Start runs without end, so many at a time."""
        places = asyncio.Semaphore(OPEN_RUNS)
        while True:
            await places.acquire()
            run = asyncio.ensure_future(self._run(client, len(self._runs)))
            run.add_done_callback(lambda _: places.release())
            self._runs.append(run)

    async def _run(self, client: AgentClient, number: int) -> RunHandle:
        """Start a run, stop it if its plan says so, and wait for its end."""
        handle = await client.start(AGENT, prompt_of(self._seed, number), id=_run_id(number))
        try:
            async with asyncio.timeout(plan_of(self._seed, number).stop_after):
                await _failure_of(handle)
        except TimeoutError:
            self._stopped.add(handle.id)
            with suppress(CommitlineError):  # the ledger is away: it may not have been stopped
                await handle.stop(reason="the soak's plan", wait_seconds=0)
            await _failure_of(handle)
        return handle

    async def _settle(self) -> None:
        """Wait until every run has ended, or never will."""
        _, pending = await asyncio.wait(self._runs, timeout=LIMIT_SECONDS)
        for run in pending:
            run.cancel()
        for ended in await asyncio.gather(*self._runs, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        await asyncio.sleep(2 * faulty_provider.LATE_SECONDS)

    async def _look_around(self, client: AgentClient) -> tuple[Aftermath, Counter[str]]:
        ledger = await client.ledger()
        runs = []
        for number in range(len(self._runs)):
            runs.append(await self._see(client.run(_run_id(number)), ledger))
        stats = await asyncio.to_thread(self._provider.stats)
        actions = await ledger.list(limit=_MOST_ROWS)
        return Aftermath(runs, actions, stats["sent"]), Counter(stats["faults"])

    async def _see(self, handle: RunHandle, ledger: ActionLedger) -> RunSeen:
        described = await handle.describe()
        first = described.raw_description.workflow_execution_info.first_run_id
        key = run_key(handle.id, first or described.run_id)
        state = "unknown" if described.status is None else described.status.name.lower()
        found = await ledger.get_run(key)
        return RunSeen(
            id=handle.id,
            run_key=key,
            state=state,
            failure=await _failure_of(handle) if state == "failed" else "",
            ledger_state="none" if found is None else found.state,
            stopped=handle.id in self._stopped,
            told=_told(await self._temporal.get_workflow_handle(handle.id).fetch_history()),
        )


async def _failure_of(handle: RunHandle) -> str:
    """Wait for a run's end; return how it failed, if it did."""
    try:
        await handle.result()
    except CommitlineError as err:
        return str(err)
    return ""


def _told(history: WorkflowHistory) -> Sequence[ToolResult]:
    """Return what the model was shown last of the calls that it had made."""
    asked = [
        event.activity_task_scheduled_event_attributes.input.payloads[0]
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == CALL_MODEL
    ]
    messages = unpack(CallModel, RawValue(asked[-1])).messages if asked else []
    return [result for message in messages for result in message.results]


def _events(logs: Sequence[Path]) -> Counter[str]:
    """Count what the workers said, by event; what is no event of ours by its first word."""
    events: Counter[str] = Counter()
    for line in (line for log in logs for line in log.read_text(errors="replace").splitlines()):
        try:
            events[str(json.loads(line)["event"])] += 1
        except (ValueError, KeyError, TypeError):
            if line.startswith("Traceback"):
                events["(a traceback)"] += 1
    return events


def _keep(logs: Sequence[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in logs:
        shutil.copy(log, folder)


def _run_id(number: int) -> str:
    return f"soak-{number}"
