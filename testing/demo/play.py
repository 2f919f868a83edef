"""Plays one scenario: starts its run, kills workers, starts others, and counts."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle

from ...client import AgentClient
from ...errors import CommitlineError
from ...examples.shop.orders import fulfil
from ...handles.any_run import AnyRun
from ...ledger import Action, Approval
from ..processes import ProviderProcess, WorkerProcess
from ..proxy import TcpProxy
from .baseline import PLAIN_AGENT
from .frameworks.shop import WORKFLOW
from .scenarios import HANG_SECONDS, OUTAGE_SECONDS, TOOL_TIMEOUT, WAIT_SECONDS, Scenario
from .timeline import Entry, Timeline, effects
from .verdicts import UNDONE, Sent, World, faults

APP: Final = "commitline.examples.shop.app:app"
ORDERS: Final = "commitline.examples.shop.orders:app"
AGENT: Final = "support"
PROMPT: Final = "Please charge order 4821 and mail me the receipt."
REFUNDS: Final = "refunds"
COMPLAINT: Final = "Order 4821 never arrived. Please refund it."

LIMIT_SECONDS: Final = 60.0
"""For each part of a scenario: until a kill, and from there to the end of the run."""
_POLL_SECONDS: Final = 0.03


@dataclass(frozen=True)
class Result:
    """What came of one scenario."""

    scenario: Scenario
    world: World
    recovery_seconds: float | None
    """From the last kill, the charge or the approval to the end of the run; None if the run did not
    end."""
    faults: Sequence[str]
    timeline: Sequence[Entry] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        counted = {
            "scenario": self.scenario.name,
            "guarded": self.scenario.guarded,
            "charges": self.world.charges,
            "requests": len(self.world.charge_requests),
            "mails": self.world.mails,
            "rows": dict(sorted(Counter(action.state for action in self.world.actions).items())),
            "run": self.world.run,
            "recovery_seconds": self.recovery_seconds,
        }
        if self.scenario.framework:
            counted |= {"framework": self.scenario.framework, "read": dict(self.world.read)}
        return counted if self.scenario.pays else counted | self._in_order()

    def _in_order(self) -> dict[str, Any]:
        took = self.world.effects
        more: dict[str, Any] = {
            "sent": dict(Counter(one.kind for one in self.world.sent)),
            "order": list(took),
        }
        if self.scenario.mishap == "approval":
            return more | {"approval": self.world.approval, "early": self.world.early}
        return more | {
            "done": [kind for kind in took if kind not in UNDONE],
            "undone": [kind for kind in took if kind in UNDONE],
            "undo": self.world.undo,
        }


class Play:
    """One scenario under way.

    Args:
        scenario: What goes wrong, and when.
        client: A client of the scenario's database and task queue.
        provider: A provider that only this run calls.
        environment: Environment variables of its workers.
        folder: An existing folder for its logs.
        doing: Told what is about to happen, since a scenario takes a while.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        client: AgentClient,
        provider: ProviderProcess,
        environment: Mapping[str, str],
        folder: Path,
        doing: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._client = client
        self._provider = provider
        self._environment = environment
        self._folder = folder
        self._doing = doing
        self._timeline = Timeline(provider)
        self._waiting: Sequence[Approval] = ()
        self._decided_at: float | None = None
        """By the wall clock, like the times of the provider."""

    async def play(self) -> Result:
        """Play it to its end; return what was counted."""
        handle = await self._start()
        self._timeline.add("demo", f"started the run {handle.id}")
        ended = asyncio.ensure_future(_end(handle))
        try:
            took: float | None = await self._go_through(handle.id, ended)
            problems: list[str] = []
        except (AssertionError, TimeoutError, CommitlineError) as err:
            took, problems = None, [str(err)]
        finally:
            ended.cancel()
        return await self._count(handle, took, problems)

    async def _start(self) -> WorkflowHandle[Any, Any]:
        run_id = f"support-{self._folder.name}"
        mishap = self._scenario.mishap
        if self._scenario.framework or not self._scenario.guarded:
            workflow = WORKFLOW if self._scenario.framework else PLAIN_AGENT
            queue = self._environment["COMMITLINE_TASK_QUEUE"]
            return await self._client.temporal.start_workflow(
                workflow, PROMPT, id=run_id, task_queue=queue, result_type=str
            )
        if mishap == "undo":
            self._provider.behave(refuses=["handover"])
            # An example imports `commitline` as users do: another package to a type checker.
            plan: Any = fulfil("4821", 4900)
            await self._client.start_plan(plan, id=run_id)
        elif mishap == "approval":
            await self._client.start(REFUNDS, COMPLAINT, id=run_id)
        else:
            limits = {"charge_card": TOOL_TIMEOUT} if mishap == "hang" else {}
            await self._client.start(AGENT, PROMPT, id=run_id, tool_timeouts=limits)
        return self._client.temporal.get_workflow_handle(run_id)

    async def _go_through(self, run_id: str, ended: asyncio.Future[None]) -> float:
        """Do what the scenario says; return its `Result.recovery_seconds`."""
        if self._scenario.mishap in ("hang", "outage"):
            return await self._through_a_mishap(ended)
        if self._scenario.mishap == "approval":
            return await self._through_an_approval(self._client.run(run_id), ended)
        killed_at = await self._until_killed("worker 1", self._scenario.crash_at)
        last = "worker 2"
        if self._scenario.then_at:
            killed_at, last = await self._until_killed(last, self._scenario.then_at), "worker 3"
        return await self._until_ended(last, ended, killed_at)

    async def _until_killed(self, name: str, crash_at: str) -> float:
        """Run a worker until it has killed itself; return when, by the monotonic clock."""
        with self._worker(name, crash_at=crash_at) as worker:
            process = worker.process
            assert process is not None
            await self._watch(lambda: process.poll() is not None, f"{name} was not killed")
            killed_at = worker.wait_until_killed()
            self._timeline.add(name, f"KILLED (SIGKILL) at {crash_at}")
        self._timeline.look()
        await self._look_at_ledger(name, at_the_kill=True)
        return killed_at

    async def _until_ended(self, name: str, ended: asyncio.Future[None], killed_at: float) -> float:
        """Run a worker until the run has ended; return the seconds since the kill."""
        with self._worker(name):
            return await self._end_of_run(name, ended, since=killed_at, what="the kill")

    async def _end_of_run(
        self, name: str, ended: asyncio.Future[None], *, since: float, what: str
    ) -> float:
        await self._watch(ended.done, "the run did not end")
        took = time.monotonic() - since
        self._timeline.add("demo", f"the run has ended, {took:.1f} s after {what}")
        self._timeline.look()
        await self._look_at_ledger(name)
        return round(took, 2)

    async def _through_a_mishap(self, ended: asyncio.Future[None]) -> float:
        """Run one worker through a hang or an outage; return the seconds since the charge."""
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
                await self._cut_off_the_ledger(proxy)
            return await self._end_of_run("worker 1", ended, since=charged_at, what="the charge")

    async def _cut_off_the_ledger(self, proxy: TcpProxy) -> None:
        await self._look_at_ledger("worker 1")
        proxy.cut()
        self._timeline.add("demo", "GONE is the database, for the worker")
        await self._let_pass(OUTAGE_SECONDS)
        proxy.restore()
        self._timeline.add("demo", "the database is back")

    async def _through_an_approval(self, run: AnyRun, ended: asyncio.Future[None]) -> float:
        """Kill the worker while a call waits, approve it; return the seconds since then."""
        with self._worker("worker 1") as worker:
            await self._watch(self._waits_or_is_sent, "no call waited for a person")
            # A call that does not wait for its approval would be sent now.
            await self._let_pass(WAIT_SECONDS)
            worker.kill()
            worker.wait_until_killed()
            waits = "".join(f" while {one.tool} waits for a person" for one in self._waiting)
            self._timeline.add("worker 1", f"KILLED (SIGKILL){waits}")
        self._timeline.look()
        await self._look_at_ledger("worker 1", at_the_kill=True)
        await self._let_pass(WAIT_SECONDS)
        self._timeline.add("demo", f"no worker was alive for {WAIT_SECONDS:g} s")
        with self._worker("worker 2"):
            await self._watch(lambda: _is_answered(run), "worker 2 did not take the run up")
            await self._let_pass(WAIT_SECONDS)
            reached = len(self._provider.stats()["sent"])
            self._timeline.add("worker 2", f"has the run; requests at the provider: {reached}")
            approved_at = time.monotonic()
            for one in self._waiting:
                self._timeline.add("ada", f"approves {one.tool}({one.args})")
                self._decided_at = time.time()
                await run.decide(one.position, approve=True, by="ada")
            what = "the approval" if self._waiting else "that"
            return await self._end_of_run("worker 2", ended, since=approved_at, what=what)

    async def _waits_or_is_sent(self) -> bool:
        self._waiting = await (await self._client.ledger()).approvals.list()
        return bool(self._waiting or self._provider.stats()["sent"])

    def _worker(
        self, name: str, *, crash_at: str | None = None, database: str = ""
    ) -> WorkerProcess:
        log = self._folder / f"{name.replace(' ', '-')}.log"
        self._doing(f"{self._scenario.name}: {name}")
        self._timeline.follow(name, log)
        self._timeline.add("demo", f"started {name}")
        environment = dict(self._environment)
        if database:
            environment["COMMITLINE_DATABASE_URL"] = database
            environment["COMMITLINE_STATEMENT_SECONDS"] = "2"
        app, module = _app_and_module(self._scenario)
        return WorkerProcess(
            app,
            environment=environment,
            log=log,
            crash_at=crash_at,
            cwd=self._folder,
            module=module,
        )

    async def _watch(self, happened: Callable[[], bool | Awaitable[bool]], otherwise: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            now = happened()
            if await now if inspect.isawaitable(now) else now:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{otherwise} within {LIMIT_SECONDS:g} s")
            self._timeline.look()
            await asyncio.sleep(_POLL_SECONDS)

    async def _let_pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        await self._watch(lambda: time.monotonic() > until, "time stood still")

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
            read=await self._read(handle) if status == WorkflowExecutionStatus.COMPLETED else {},
            sent=[
                Sent(one["kind"], one["key"], one["body"], one["effect"]) for one in stats["sent"]
            ],
            undo=await self._undo(handle.id),
            approval=await self._approval(),
            early=sum(
                self._decided_at is None or one["at"] < self._decided_at for one in stats["sent"]
            ),
        )
        return Result(
            scenario=self._scenario,
            world=world,
            recovery_seconds=took,
            faults=[*problems, *faults(self._scenario, world)],
            timeline=self._timeline.entries,
        )

    async def _read(self, handle: WorkflowHandle[Any, Any]) -> Mapping[str, str]:
        if not self._scenario.framework:
            return {}
        return dict(json.loads(await handle.result()))

    async def _undo(self, run_id: str) -> str:
        if self._scenario.mishap != "undo":
            return ""
        return (await self._client.plan(run_id).undo_report()).state

    async def _approval(self) -> str:
        asked = await (await self._client.ledger()).approvals.list(only_waiting=False)
        return ", ".join(one.state for one in asked)


def _app_and_module(scenario: Scenario) -> tuple[str, str]:
    """Return what a worker serves, and the module that serves it."""
    if scenario.framework:
        return scenario.name, "commitline.testing.demo.frameworks.worker"
    module = "commitline.worker" if scenario.guarded else "commitline.testing.demo.baseline"
    return (APP if scenario.pays else ORDERS), module


async def _is_answered(run: AnyRun) -> bool:
    """Whether a worker has read the run's history, and so answers a query."""
    return (await run.status()).progress is not None


def _held(action: Action) -> str:
    return "dispatched, no outcome" if action.state == "dispatched" else action.state


async def _end(handle: WorkflowHandle[Any, Any]) -> None:
    with suppress(WorkflowFailureError):  # that is an end, too; its kind is counted
        await handle.result()
