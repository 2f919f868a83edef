"""Plays scenarios: servers, a provider, a worker to kill, another to finish, a count.

Everything belongs to the demo and ends with it: the stack lies in a temporary folder, every
process is started by a ``with`` block. On Ctrl-C the blocks are left as on any other way out.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from ...client import AgentClient
from ...config import Settings
from ...devstack import DevStack
from ...ledger import Action, migrate
from ..processes import ProviderProcess, WorkerProcess
from ..proxy import TcpProxy
from ..surroundings import own_environment, terminating_as_interrupt
from .baseline import PLAIN_AGENT
from .scenarios import (
    HANG_SECONDS,
    OUTAGE_SECONDS,
    SCENARIOS,
    TOOL_TIMEOUT,
    Scenario,
    World,
    faults,
)
from .timeline import Entry, Timeline, effects

APP: Final = "commitline.examples.shop.app:app"
AGENT: Final = "support"
PROMPT: Final = "Please charge order 4821 and mail me the receipt."

AT_A_TIME: Final = 2
LIMIT_SECONDS: Final = 60.0
"""For each half of a scenario: until the kill, and from there to the end of the run."""
_POLL_SECONDS: Final = 0.03


@dataclass(frozen=True)
class Result:
    """What came of one scenario."""

    scenario: Scenario
    world: World
    recovery_seconds: float | None
    """From the kill, or the charge, to the end of the run; None if it did not end."""
    faults: Sequence[str]
    timeline: Sequence[Entry] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "scenario": self.scenario.name,
            "guarded": self.scenario.guarded,
            "charges": self.world.charges,
            "requests": len(self.world.charge_requests),
            "mails": self.world.mails,
            "rows": dict(sorted(Counter(action.state for action in self.world.actions).items())),
            "run": self.world.run,
            "recovery_seconds": self.recovery_seconds,
        }


def run_demo(
    names: Sequence[str] = (),
    *,
    started: Callable[[], None] = lambda: None,
    finished: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Play the scenarios of these names, or all; return the results in the order of `SCENARIOS`.

    Call it from the main thread.

    Args:
        names: Of scenarios; empty means all.
        started: Called when the servers are up.
        finished: Called with each result as soon as it is there.

    Raises:
        ConfigurationError: The servers' packages are missing, or they did not come up.
    """
    chosen = [found for found in SCENARIOS if not names or found.name in names]
    folder = Path(tempfile.mkdtemp(prefix="commitline-demo-"))
    try:
        with (
            own_environment(),
            terminating_as_interrupt(),
            DevStack(folder, ui_port=None, persistent=False) as stack,
        ):
            started()
            return asyncio.run(_play_all(chosen, stack, folder, finished))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _play_all(
    chosen: Sequence[Scenario],
    stack: DevStack,
    folder: Path,
    finished: Callable[[Result], None],
) -> list[Result]:
    temporal = await Client.connect(stack.temporal_address)
    stages = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int, scenario: Scenario) -> Result:
        async with stages:
            own = Path(tempfile.mkdtemp(prefix=f"scenario-{number}-", dir=folder))
            result = await play(scenario, temporal, stack, own)
            finished(result)
            return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*numbered)) for numbered in enumerate(chosen)]
    return [task.result() for task in tasks]


async def play(scenario: Scenario, temporal: Client, stack: DevStack, folder: Path) -> Result:
    """Play one scenario on a running stack.

    Args:
        scenario: Where the first worker dies.
        temporal: Connected to the stack's server.
        stack: Gives the scenario a database of its own.
        folder: For logs; exists.
    """
    settings = Settings(
        database_url=await _new_database(stack, folder.name),
        task_queue=folder.name,
    )
    async with _provider() as provider, AgentClient(temporal, settings) as client:
        environment = {
            "TEMPORAL_ADDRESS": stack.temporal_address,
            "COMMITLINE_DATABASE_URL": settings.database_url,
            "COMMITLINE_TASK_QUEUE": settings.task_queue,
            "COMMITLINE_HEARTBEAT_SECONDS": "1",
            "SHOP_PROVIDER_URL": provider.url,
        }
        under_way = _Play(
            scenario,
            client=client,
            provider=provider,
            environment=environment,
            folder=folder,
        )
        return await under_way.play()


class _Play:
    """One scenario under way."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        client: AgentClient,
        provider: ProviderProcess,
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        self._scenario = scenario
        self._client = client
        self._provider = provider
        self._environment = environment
        self._folder = folder
        self._timeline = Timeline(provider)

    async def play(self) -> Result:
        handle = await self._start()
        self._timeline.add("demo", f"started the run {handle.id}")
        ended = asyncio.ensure_future(_end(handle))
        try:
            if self._scenario.mishap == "kill":
                took = await self._until_ended(ended, await self._until_killed())
            else:
                took = await self._through(ended)
            problems: list[str] = []
        except (AssertionError, TimeoutError) as err:
            took, problems = None, [str(err)]
        finally:
            ended.cancel()
        return await self._count(handle, took, problems)

    async def _start(self) -> WorkflowHandle[Any, Any]:
        run_id = f"support-{self._folder.name}"
        if self._scenario.guarded:
            limits = {"charge_card": TOOL_TIMEOUT} if self._scenario.mishap == "hang" else {}
            await self._client.start(AGENT, PROMPT, id=run_id, tool_timeouts=limits)
            return self._client.temporal.get_workflow_handle(run_id)
        return await self._client.temporal.start_workflow(
            PLAIN_AGENT, PROMPT, id=run_id, task_queue=self._environment["COMMITLINE_TASK_QUEUE"]
        )

    async def _until_killed(self) -> float:
        """Run worker 1 until it has killed itself; return the monotonic time of that."""
        with self._worker("worker 1", crash_at=self._scenario.crash_at) as worker:
            process = worker.process
            assert process is not None
            await self._watch(lambda: process.poll() is not None, "the worker was not killed")
            killed_at = worker.wait_until_killed()
            self._timeline.add("worker 1", f"KILLED (SIGKILL) at {self._scenario.crash_at}")
        self._timeline.look()
        await self._look_at_ledger("worker 1", at_the_kill=True)
        return killed_at

    async def _until_ended(self, ended: asyncio.Future[None], killed_at: float) -> float:
        """Run worker 2 until the run has ended; return the seconds since the kill."""
        with self._worker("worker 2"):
            await self._watch(ended.done, "the run did not end")
            took = time.monotonic() - killed_at
            self._timeline.add("demo", f"the run has ended, {took:.1f} s after the kill")
            self._timeline.look()
            await self._look_at_ledger("worker 2")
        return round(took, 2)

    async def _through(self, ended: asyncio.Future[None]) -> float:
        """Run one worker through a mishap that kills nobody; return seconds since the charge."""
        hangs = self._scenario.mishap == "hang"
        self._provider.behave(delay_seconds=HANG_SECONDS if hangs else 1.0)
        database = self._environment["COMMITLINE_DATABASE_URL"]
        with (
            TcpProxy.before(database) as proxy,
            self._worker("worker 1", database=proxy.url(database)),
        ):
            await self._watch(lambda: self._provider.effects("charge:4821") > 0, "no charge")
            charged_at = time.monotonic()
            if not hangs:
                await self._take_the_ledger_away(proxy)
            await self._watch(ended.done, "the run did not end")
            took = time.monotonic() - charged_at
            self._timeline.add("demo", f"the run has ended, {took:.1f} s after the charge")
            self._timeline.look()
            await self._look_at_ledger("worker 1")
        return round(took, 2)

    async def _take_the_ledger_away(self, proxy: TcpProxy) -> None:
        await self._look_at_ledger("worker 1")
        proxy.cut()
        self._timeline.add("demo", "GONE is the database, for the worker")
        back_at = time.monotonic() + OUTAGE_SECONDS
        await self._watch(lambda: time.monotonic() > back_at, "time stood still")
        proxy.restore()
        self._timeline.add("demo", "the database is back")

    def _worker(
        self, name: str, *, crash_at: str | None = None, database: str = ""
    ) -> WorkerProcess:
        log = self._folder / f"{name.replace(' ', '-')}.log"
        module = "commitline.worker"
        if not self._scenario.guarded:
            module = "commitline.testing.demo.baseline"
        self._timeline.follow(name, log)
        self._timeline.add("demo", f"started {name}")
        environment = dict(self._environment)
        if database:
            environment["COMMITLINE_DATABASE_URL"] = database
            environment["COMMITLINE_STATEMENT_SECONDS"] = "2"
        return WorkerProcess(
            APP,
            environment=environment,
            log=log,
            crash_at=crash_at,
            cwd=self._folder,
            module=module,
        )

    async def _watch(self, happened: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not happened():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{otherwise} within {LIMIT_SECONDS:g} s")
            self._timeline.look()
            await asyncio.sleep(_POLL_SECONDS)

    async def _actions(self) -> Sequence[Action]:
        return await (await self._client.ledger()).list()

    async def _look_at_ledger(self, worker: str, *, at_the_kill: bool = False) -> None:
        if not self._scenario.guarded:
            return
        actions = await self._actions()
        self._timeline.look_at_rows(actions, worker=worker)
        if at_the_kill:
            held = "; ".join(f"{one.tool} {_held(one)}" for one in actions)
            self._timeline.add("ledger", f"holds now: {held or 'no action yet'}")

    async def _count(
        self, handle: WorkflowHandle[Any, Any], took: float | None, problems: Sequence[str]
    ) -> Result:
        status = (await handle.describe()).status
        stats = self._provider.stats()
        world = World(
            charges=effects(stats, "charge"),
            mails=effects(stats, "mail"),
            charge_requests=self._provider.sent("charge"),
            actions=await self._actions(),
            run="unknown" if status is None else status.name.lower(),
        )
        return Result(
            scenario=self._scenario,
            world=world,
            recovery_seconds=took,
            faults=[*problems, *faults(self._scenario, world)],
            timeline=self._timeline.entries,
        )


def _held(action: Action) -> str:
    return "dispatched, no outcome" if action.state == "dispatched" else action.state


async def _end(handle: WorkflowHandle[Any, Any]) -> None:
    with suppress(WorkflowFailureError):  # an end too; which one is counted
        await handle.result()


@asynccontextmanager
async def _provider() -> AsyncIterator[ProviderProcess]:
    """Start it in a thread: it takes a while, and other scenarios are being watched."""
    with ExitStack() as stack:
        entering = asyncio.ensure_future(asyncio.to_thread(stack.enter_context, ProviderProcess()))
        try:
            yield await asyncio.shield(entering)
        finally:
            await asyncio.wait({entering})  # else a process that starts now would be left


async def _new_database(stack: DevStack, name: str) -> str:
    async with await psycopg.AsyncConnection.connect(
        stack.database_url, autocommit=True
    ) as connection:
        await connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    url = stack.url_of(name)
    await migrate(url)
    return url
