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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError

from commitline.activities.contract.conversation import RunResult
from commitline.activities.contract.wire import from_text
from commitline.client import AgentClient
from commitline.config import Settings
from commitline.devstack import DevStack
from commitline.errors import CommitlineError, LedgerUnavailable, RunFailed, ThreadNotFound
from commitline.handles.plan import PlanHandle
from commitline.handles.run import AnyRun
from commitline.handles.thread import RunHandle
from commitline.identity import run_key, thread_workflow
from commitline.ledger import ActionLedger, Run, StoredMessage, migrate
from commitline.testing.processes import ProviderProcess
from commitline.testing.proxy import TcpProxy
from commitline.testing.surroundings import own_environment, terminating_as_interrupt
from commitline.tests.soak import provider as faulty_provider
from commitline.tests.soak.app import AGENT, PROVIDER, plan_of
from commitline.tests.soak.chaos import Chaos, Workers, faults
from commitline.tests.soak.counted import Counted, Violation
from commitline.tests.soak.outbox import Outbox
from commitline.tests.soak.people import People
from commitline.tests.soak.promises import RunUndo, waiting_for_nobody
from commitline.tests.soak.script import (
    FIRST_SAID,
    Ending,
    plan_script_of,
    prompt_of,
    saying_of,
    script_of,
    thread_of,
)
from commitline.tests.soak.verdict import Aftermath, RunSeen, TalkSeen

APP: Final = "commitline.tests.soak.app:app"
WORKERS: Final = 3
OPEN_RUNS: Final = 4
"""Runs of agents at a time."""
OPEN_PLANS: Final = 3
"""Runs of plans at a time."""
OPEN_REQUESTS: Final = 3
"""Requests of conversations at a time."""
OPEN_TRANSACTIONS: Final = 2
"""Of an application with an outbox, at a time."""
RELAY_SECONDS: Final = 2
SHORTEST_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 38.0
"""Of a soak's time, what is left for its end: what a run that is gone left has a lease of 33 s."""
LIMIT_SECONDS: Final = 150.0
"""After that, a run that has not ended never will."""
_FAULTS_OF_PROVIDER: Final = 0.34
_PROVIDER_DELAY_SECONDS: Final = 0.05
_MOST_ROWS: Final = 1_000_000
_SEND_AGAIN_SECONDS: Final = 0.2
_NODE_SECONDS: Final = 30.0
_PAST_PIVOT: Final = "Nothing was undone by itself"
"""How a plan says that it failed past its pivot."""
_LOOK_SECONDS: Final = 0.5
_ROUNDS: Final = 50
"""Of people who settle what holds up others, until nothing does."""


@dataclass(frozen=True)
class Result:
    """What came of a soak."""

    seed: int
    seconds: float
    """How long it took, all in all."""
    settled_in: float
    """How long after the last fault the last run ended."""
    runs: Counter[str]
    """By state, those of conversations included."""
    talks: Counter[str]
    """What was said: ``requests``, ``sent again``, ``runs lost``, and why senders sent again."""
    plans: Counter[str]
    """By state."""
    undos: Counter[str]
    """Runs by what their undo report says, and ``actions undone``."""
    people: Counter[str]
    """What they did."""
    outbox: Counter[str]
    """What became of transactions with an intent."""
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
            "talks": dict(sorted(self.talks.items())),
            "plans": dict(sorted(self.plans.items())),
            "undos": dict(sorted(self.undos.items())),
            "people": dict(sorted(self.people.items())),
            "outbox": dict(sorted(self.outbox.items())),
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
                "COMMITLINE_BUILD_ID": "soak",
                "COMMITLINE_STATEMENT_SECONDS": "2",
                "COMMITLINE_GRACE_SECONDS": "2",
                "COMMITLINE_RELAY_SECONDS": str(RELAY_SECONDS),
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
                    outbox=Outbox(
                        seed,
                        url=proxy.url(settings.database_url),
                        direct_url=settings.database_url,
                    ),
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
        outbox: Outbox,
        told: Callable[[str], None],
    ) -> None:
        self._seed = seed
        self._stack = stack
        self._settings = settings
        self._chaos = chaos
        self._workers = workers
        self._provider = provider
        self._outbox = outbox
        self._told = told
        self._runs: list[asyncio.Future[AnyRun]] = []
        self._plans: list[asyncio.Future[AnyRun]] = []
        self._said: list[asyncio.Future[Sequence[RunResult | None]]] = []
        """What the senders of each request got."""
        self._talks: Counter[str] = Counter()
        self._stopped: set[str] = set()
        """Workflow ids, as below."""
        self._to_undo: set[str] = set()
        """Those of which an undo was asked for, and nobody said no."""
        self._raised: list[Violation] = []
        """What clients were told that they are not to be."""
        self._undos_refused: Counter[str] = Counter()

    async def play(self, *, began: float, seconds: float) -> Result:
        self._temporal = await Client.connect(self._stack.temporal_address)
        async with (
            AgentClient(self._temporal, self._settings) as client,
            AgentClient(self._temporal, self._settings) as self._other_client,
        ):
            await self._outbox.create()
            self._people = People(client)
            helping = [
                asyncio.ensure_future(self._workers.keep()),
                asyncio.ensure_future(self._people.decide()),
            ]
            try:
                await self._rage(client, until=began + seconds - SETTLE_SECONDS)
                calm = time.monotonic()
                self._told(
                    f"calm; {len(self._runs)} runs were started, {len(self._plans)} plans, "
                    f"{len(self._said)} requests sent"
                )
                await self._settle(client)
                settled_in = time.monotonic() - calm
                aftermath, faults_of_provider = await self._look_around(client)
            finally:
                for one in helping:
                    one.cancel()
        return Result(
            seed=self._seed,
            seconds=time.monotonic() - began,
            settled_in=settled_in,
            runs=Counter(run.state for run in aftermath.runs),
            talks=self._talks + Counter(requests=len(self._said)),
            plans=Counter(run.state for run in aftermath.runs if run.may_fail),
            undos=Counter(one.state for one in aftermath.undos)
            + Counter({"actions undone": sum(bool(one.undone_by) for one in aftermath.actions)})
            + self._undos_refused,
            people=self._people.told,
            outbox=self._outbox.told,
            actions=Counter((str(one.effect), one.state) for one in aftermath.actions),
            faults=self._chaos.injected,
            provider_faults=faults_of_provider,
            exits=self._workers.exits,
            events=_events(self._workers.logs),
            violations=[*self._raised, *aftermath.violations()],
        )

    async def _rage(self, client: AgentClient, *, until: float) -> None:
        """Start runs and inject faults until this time; the runs that are open then go on."""
        self._provider.behave(faults=_FAULTS_OF_PROVIDER, delay_seconds=_PROVIDER_DELAY_SECONDS)
        starting = asyncio.gather(
            self._start(self._runs, OPEN_RUNS, partial(self._run, client)),
            self._start(self._plans, OPEN_PLANS, partial(self._plan, client)),
            self._say_things(client),
            *(self._outbox.go_on() for _ in range(OPEN_TRANSACTIONS)),
        )
        try:
            await self._chaos.rage(faults(self._seed, workers=WORKERS), until=until)
        finally:
            self._chaos.mend()
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            self._provider.behave()

    async def _start(
        self,
        started: list[asyncio.Future[AnyRun]],
        at_a_time: int,
        play: Callable[[int], Coroutine[Any, Any, AnyRun]],
    ) -> None:
        """Start runs without end, so many at a time."""
        places = asyncio.Semaphore(at_a_time)
        while True:
            await places.acquire()
            run = asyncio.ensure_future(play(len(started)))
            run.add_done_callback(lambda _: places.release())
            started.append(run)

    async def _run(self, client: AgentClient, number: int) -> AnyRun:
        script = script_of(self._seed, number)
        handle = await client.start(AGENT, prompt_of(self._seed, number), id=_run_id(number))
        await self._play(handle, script.ending, undone_later=script.undone_later)
        return handle

    async def _plan(self, client: AgentClient, number: int) -> AnyRun:
        script = plan_script_of(self._seed, number)
        handle = await client.start_plan(
            plan_of(script), id=_plan_id(number), node_timeout=_NODE_SECONDS
        )
        await self._play(handle, script.ending, undone_later=script.undone_later)
        return handle

    async def _play(
        self, handle: RunHandle | PlanHandle, ending: Ending | None, *, undone_later: bool
    ) -> None:
        """Wait for a run's end, or bring it about, as its script says."""
        try:
            async with asyncio.timeout(None if ending is None else ending.after):
                await _failure_of(handle)
        except TimeoutError:
            assert ending is not None, "there is no time-out"
            self._stopped.add(handle.id)
            with suppress(CommitlineError, RPCError):  # the ledger is away, or it has just ended
                await self._end(handle, ending)
            await _failure_of(handle)
        if undone_later:
            await self._undo(handle)

    async def _end(self, handle: AnyRun, ending: Ending) -> None:
        if ending.how == "terminate":
            await self._temporal.get_workflow_handle(handle.id).terminate("the soak's script")
            return
        undo = ending.how == "stop and undo"
        await handle.stop(reason="the soak's script", compensate=undo, wait_seconds=0)

    async def _undo(self, handle: AnyRun) -> None:
        """Have a run undone that has ended; the ledger may be away for a while."""
        while True:
            try:
                await handle.undo(reason="the soak's script")
            except LedgerUnavailable:
                await asyncio.sleep(_SEND_AGAIN_SECONDS)
                continue
            except CommitlineError as err:
                self._undos_refused[f"refused: {err.code}"] += 1
                return
            self._to_undo.add(handle.id)
            return

    async def _say_things(self, client: AgentClient) -> None:
        """Send requests to conversations without end, so many at a time."""
        places = asyncio.Semaphore(OPEN_REQUESTS)
        while True:
            await places.acquire()
            said = asyncio.ensure_future(self._say(client, FIRST_SAID + len(self._said)))
            said.add_done_callback(lambda _: places.release())
            self._said.append(said)

    async def _say(self, client: AgentClient, number: int) -> Sequence[RunResult | None]:
        """Send a request, by one client or by two, and lose the run if its script says so."""
        how = saying_of(self._seed, number)
        senders = [self._send(client, number, after=0)]
        if how.again_after is not None:
            self._talks["sent again"] += 1
            senders.append(self._send(self._other_client, number, after=how.again_after))
        sending = asyncio.gather(*senders)
        if how.lost_after is not None:
            await asyncio.wait([sending], timeout=how.lost_after)
            if not sending.done():
                await self._lose_run(client, thread_of(number), terminated=how.terminated)
        return await sending

    async def _send(self, client: AgentClient, number: int, *, after: float) -> RunResult:
        """Send a request until it is answered; only an answer that was lost is asked for again."""
        await asyncio.sleep(after)
        while True:
            try:
                return await client.send(
                    thread_of(number),
                    prompt_of(self._seed, number),
                    agent=AGENT,
                    request_id=str(number),
                )
            except (RunFailed, LedgerUnavailable) as err:
                self._talks[f"answers lost: {type(err).__name__}"] += 1
                await asyncio.sleep(_SEND_AGAIN_SECONDS)

    async def _lose_run(self, client: AgentClient, thread: str, *, terminated: bool) -> None:
        """End the run under way so that it cannot answer; what it did stands."""
        self._stopped.add(thread_workflow(thread))
        self._talks["runs lost"] += 1
        with suppress(CommitlineError, RPCError):  # there is none, or the ledger is away
            if terminated:
                await self._temporal.get_workflow_handle(thread_workflow(thread)).terminate()
            else:
                await client.thread(thread).run.stop(reason="the soak's script", wait_seconds=0)

    async def _settle(self, client: AgentClient) -> None:
        """Wait until every run has ended, and every request is answered, or never will be."""
        under_way: list[asyncio.Future[Any]] = [*self._runs, *self._plans, *self._said]
        _, pending = await asyncio.wait(under_way, timeout=LIMIT_SECONDS)
        for one in pending:
            one.cancel()
        for ended in await asyncio.gather(*under_way, return_exceptions=True):
            if isinstance(ended, CommitlineError):
                self._raised.append(Violation("a client", "", f"was told {ended}"))
            elif isinstance(ended, Exception):
                raise ended
        for thread in self._threads():
            with suppress(CommitlineError, TimeoutError):
                async with asyncio.timeout(LIMIT_SECONDS):
                    await client.thread(thread).run.result()
        ledger = await client.ledger()
        for _ in range(_ROUNDS):
            await self._wait_for_quiet(ledger)
            await asyncio.sleep(2 * faulty_provider.LATE_SECONDS)
            if not await self._people.settle(ledger, Counted(await self._sent())):
                break

    async def _wait_for_quiet(self, ledger: ActionLedger) -> None:
        """Wait until nobody is at work, and nothing is due; what never is, the verdict finds."""
        until = time.monotonic() + LIMIT_SECONDS
        while await _is_busy(ledger) and time.monotonic() < until:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(_LOOK_SECONDS)

    async def _sent(self) -> Sequence[Mapping[str, Any]]:
        stats = await asyncio.to_thread(self._provider.stats)
        return list(stats["sent"])

    def _threads(self) -> list[str]:
        return list(dict.fromkeys(thread_of(FIRST_SAID + at) for at in range(len(self._said))))

    async def _look_around(self, client: AgentClient) -> tuple[Aftermath, Counter[str]]:
        ledger = await client.ledger()
        runs = []
        for number in range(len(self._runs)):
            runs.append(await self._see(client.run(_run_id(number)), ledger))
        for number in range(len(self._plans)):
            runs.append(await self._see(client.plan(_plan_id(number)), ledger))
        talks = []
        for thread in self._threads():
            talks.append(await self._see_talk(thread, ledger))
            for run in await ledger.list_runs(workflow_id=thread_workflow(thread)):
                runs.append(await self._see_talking(run))
        stats = await asyncio.to_thread(self._provider.stats)
        actions = await ledger.list(limit=_MOST_ROWS)
        return (
            Aftermath(
                runs,
                actions,
                stats["sent"],
                talks,
                undos=[await self._see_undo(run, ledger) for run in runs],
                approvals=await ledger.approvals.list(only_waiting=False, limit=_MOST_ROWS),
                intents=await self._outbox.intents(),
                queue=await ledger.relay.list(limit=_MOST_ROWS),
            ),
            Counter(stats["faults"]),
        )

    async def _see_undo(self, seen: RunSeen, ledger: ActionLedger) -> RunUndo:
        run = await ledger.get_run(seen.run_key)
        report = await ledger.undo.report(seen.run_key)
        # A stop that came as the run completed undoes nothing; its caller is told "completed".
        asked = run is not None and run.compensate and seen.state != "completed"
        failed = seen.state == "failed" and not seen.stopped and _PAST_PIVOT not in seen.failure
        return RunUndo(
            seen.run_key,
            report.state,
            wanted=asked or failed or seen.id in self._to_undo,
            gone=run is None or (run.gone_as is not None and seen.id not in self._to_undo),
        )

    async def _see(self, handle: RunHandle | PlanHandle, ledger: ActionLedger) -> RunSeen:
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
            stored=await _stored(ledger, key),
            may_fail=isinstance(handle, PlanHandle),
        )

    async def _see_talking(self, run: Run) -> RunSeen:
        """See a run of a conversation: one of several of its workflow id."""
        execution = run.run_key.rpartition("/")[2]
        handle = self._temporal.get_workflow_handle(run.workflow_id, run_id=execution)
        described = await handle.describe()
        state = "unknown" if described.status is None else described.status.name.lower()
        failure = ""
        if state == "failed":
            try:
                await handle.result()
            except WorkflowFailureError as err:
                failure = str(err.cause)
        return RunSeen(
            id=run.run_key,
            run_key=run.run_key,
            state=state,
            failure=failure,
            ledger_state=run.state,
            stopped=run.workflow_id in self._stopped,
            stored=(),
        )

    async def _see_talk(self, thread: str, ledger: ActionLedger) -> TalkSeen:
        found = await ledger.threads.get(thread)
        replies: dict[str, Sequence[RunResult | None]] = {}
        kept: dict[str, RunResult | None] = {}
        for at, said in enumerate(self._said):
            number = FIRST_SAID + at
            if thread_of(number) != thread:
                continue
            replies[str(number)] = _replies_of(said)
            request = await ledger.threads.request(thread, str(number))
            reply = None if request is None else request.reply
            kept[str(number)] = None if reply is None else from_text(RunResult, reply)
        return TalkSeen(
            id=f"thread {thread}",
            version=0 if found is None else found.version,
            stored=await _stored(ledger, thread),
            replies=replies,
            kept=kept,
        )


def _replies_of(said: asyncio.Future[Sequence[RunResult | None]]) -> Sequence[RunResult | None]:
    lost = said.cancelled() or said.exception() is not None
    return [None] if lost else said.result()


async def _is_busy(ledger: ActionLedger) -> bool:
    """Whether somebody is at work, or has to be: a run, a call, the relay."""
    runs = await ledger.list_runs(limit=_MOST_ROWS)
    if any(run.state != "ended" and not run.run_key.startswith("outbox/") for run in runs):
        return True
    if waiting_for_nobody(await ledger.relay.list(limit=_MOST_ROWS)):
        return True
    actions = await ledger.list(limit=_MOST_ROWS)
    return any(action.state == "dispatched" for action in actions)


async def _failure_of(handle: RunHandle | PlanHandle) -> str:
    """Wait for a run's end; return how it failed, if it did."""
    try:
        await handle.result()
    except CommitlineError as err:
        return str(err)
    return ""


async def _stored(ledger: ActionLedger, thread: str) -> Sequence[StoredMessage]:
    """Return a conversation; empty if it never began."""
    try:
        return await ledger.threads.messages(thread)
    except ThreadNotFound:
        return ()


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


def _plan_id(number: int) -> str:
    return f"soak-plan-{number}"
