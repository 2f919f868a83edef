"""Plays a soak: servers, a provider, workers, load and faults, calm, and the verdict.

Everything that the soak starts ends with it: the servers lie in a temporary folder, and a ``with``
block starts every process. Ctrl-C leaves these blocks as every other way out does.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from commitline.client import AgentClient
from commitline.config import Settings
from commitline.devstack import DevStack
from commitline.errors import CommitlineError, LedgerUnavailable
from commitline.ledger import ActionLedger, migrate
from commitline.testing.environment import clean_environment, sigterm_as_interrupt
from commitline.testing.processes import ProviderProcess
from commitline.testing.proxy import TcpProxy
from commitline.tests.soak import provider as faulty_provider
from commitline.tests.soak.app import PROVIDER
from commitline.tests.soak.chaos import Chaos, Workers, faults
from commitline.tests.soak.counted import Counted
from commitline.tests.soak.load import Load
from commitline.tests.soak.outbox import Outbox
from commitline.tests.soak.people import People
from commitline.tests.soak.promises import due_for_relay
from commitline.tests.soak.result import CannotLook, Result, events_of
from commitline.tests.soak.survey import Survey
from commitline.tests.soak.unforeseen import Unforeseen
from commitline.tests.soak.verdict import Aftermath

APP: Final = "commitline.tests.soak.app:app"
WORKERS: Final = 3
OPEN_TRANSACTIONS: Final = 2
"""Transactions of an application with an outbox, at a time."""
RELAY_SECONDS: Final = 2
SHORTEST_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 38.0
"""How much of a soak's time is left for its end: the lease of a run that is gone takes 33 s."""
LIMIT_SECONDS: Final = 150.0
"""A run that has not ended after that never will."""
_FAULTS_OF_PROVIDER: Final = 0.34
_PROVIDER_DELAY_SECONDS: Final = 0.05
_MOST_ROWS: Final = 1_000_000
_LOOK_SECONDS: Final = 0.5
_ROUNDS: Final = 50
"""How often people settle what holds up others, at most."""


def run_soak(
    *, seconds: float, seed: int, progress: Callable[[str], None], keep_logs: Path | None = None
) -> Result:
    """Play a soak; return what came of it. Call it from the main thread.

    Args:
        seconds: How long it takes, the calm at its end included; at least a minute.
        seed: Decides scripts, faults and the provider's behaviour.
        progress: Called with a line for people whenever a part of the soak begins.
        keep_logs: The folder to which the workers' logs are copied.

    Raises:
        ConfigurationError: The servers' packages are missing, or they did not come up.
        CannotLook: What it left could not be read; with what was counted until then.
    """
    # The pool in this process sees Postgres restart, too, and would warn of it.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="commitline-soak-"))
    try:
        with (
            clean_environment(**{faulty_provider.SEED: str(seed)}),
            sigterm_as_interrupt(),
            DevStack(folder, ui_port=None, persistent=False) as stack,
            TcpProxy.before(stack.database_url) as proxy,
            ProviderProcess(faulty_provider.__name__) as provider,
        ):
            progress("the servers are up")
            began = time.monotonic()
            settings = Settings(database_url=stack.database_url, task_queue="soak")
            asyncio.run(migrate(settings.database_url))
            through_proxy = proxy.url(settings.database_url)
            environment = _environment_of_workers(stack, settings, through_proxy, provider)
            with Workers(APP, count=WORKERS, environment=environment, folder=folder) as workers:
                unforeseen = Unforeseen()
                soak = _Soak(
                    seed,
                    stack=stack,
                    settings=settings,
                    chaos=Chaos(stack, proxy, workers),
                    workers=workers,
                    provider=provider,
                    outbox=Outbox(
                        seed,
                        url=through_proxy,
                        direct_url=settings.database_url,
                        unforeseen=unforeseen,
                    ),
                    unforeseen=unforeseen,
                    progress=progress,
                )
                try:
                    return asyncio.run(soak.play(began=began, seconds=seconds))
                finally:
                    if keep_logs is not None:
                        _keep(workers.logs, keep_logs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment_of_workers(
    stack: DevStack, settings: Settings, database_url: str, provider: ProviderProcess
) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "COMMITLINE_DATABASE_URL": database_url,
        "COMMITLINE_TASK_QUEUE": settings.task_queue,
        "COMMITLINE_HEARTBEAT_SECONDS": "1",
        "COMMITLINE_BUILD_ID": "soak",
        "COMMITLINE_STATEMENT_SECONDS": "2",
        "COMMITLINE_GRACE_SECONDS": "2",
        "COMMITLINE_RELAY_SECONDS": str(RELAY_SECONDS),
        PROVIDER: provider.url,
    }


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
        unforeseen: Unforeseen,
        progress: Callable[[str], None],
    ) -> None:
        self._seed = seed
        self._stack = stack
        self._settings = settings
        self._chaos = chaos
        self._workers = workers
        self._provider = provider
        self._outbox = outbox
        self._unforeseen = unforeseen
        self._progress = progress
        self._settled_in = 0.0
        """Errors that clients got and must not get."""

    async def play(self, *, began: float, seconds: float) -> Result:
        """Play it to its end; return what came of it."""
        temporal = await Client.connect(self._stack.temporal_address)
        async with (
            AgentClient(temporal, self._settings) as client,
            AgentClient(temporal, self._settings) as other_client,
        ):
            await self._outbox.create()
            load = Load(self._seed, temporal=temporal, client=client, other_client=other_client)
            people = People(client, self._unforeseen)
            helping = {
                "workers": asyncio.ensure_future(self._workers.keep()),
                "people": asyncio.ensure_future(people.decide()),
            }
            try:
                await self._play(load, client, people, until=began + seconds - SETTLE_SECONDS)
            finally:
                for who, one in helping.items():
                    await self._end(who, one)
            return await self._judge(load, temporal, client, people, began=began)

    async def _play(self, load: Load, client: AgentClient, people: People, *, until: float) -> None:
        """Rage, then settle; whatever somebody meets is noted, and the soak goes on."""
        with self._unforeseen.noted("the soak"):
            await self._rage(load, until=until)
        calm = time.monotonic()
        self._progress(
            f"calm; {len(load.runs)} runs were started, {len(load.plans)} plans, "
            f"{len(load.requests)} requests sent"
        )
        with self._unforeseen.noted("the soak"):
            await self._settle(load, client, people)
        self._settled_in = time.monotonic() - calm

    async def _end(self, who: str, one: asyncio.Future[Any]) -> None:
        """End who helps without end; one that has ended by itself met something."""
        one.cancel()
        await asyncio.wait([one])
        error = None if one.cancelled() else one.exception()
        if error is not None:
            self._unforeseen.note(who, error)

    async def _judge(
        self, load: Load, temporal: Client, client: AgentClient, people: People, *, began: float
    ) -> Result:
        """Survey what is left; return the verdict.

        Raises:
            CannotLook: It could not be read.
        """
        aftermath, sent = Aftermath([], [], []), None
        problem: Exception | None = None
        try:
            sent = await self._stats()
            ledger = await client.ledger()
            survey = Survey(load, temporal=temporal, client=client, ledger=ledger)
            aftermath = await survey.aftermath(sent=sent["sent"], outbox=self._outbox)
        except Exception as err:  # whatever it is, what was counted is told
            problem = err
        actions = aftermath.actions
        events, other_lines = events_of(self._workers.logs)
        result = Result(
            seed=self._seed,
            seconds=time.monotonic() - began,
            settled_in=self._settled_in,
            runs=Counter(run.state for run in aftermath.runs) + load.starts,
            talks=load.talks + Counter(requests=len(load.requests)),
            plans=Counter(run.state for run in aftermath.runs if run.may_fail),
            undos=Counter(one.state for one in aftermath.undos)
            + Counter({"actions undone": sum(bool(one.undone_by) for one in actions)})
            + load.undos_refused,
            people=people.counts,
            outbox=self._outbox.counts,
            actions=Counter((str(one.effect), one.state) for one in actions),
            local=Counter(one.state for one in actions if one.unordered),
            faults=self._chaos.injected,
            provider_faults=Counter({} if sent is None else sent["faults"]),
            exits=self._workers.exits,
            events=events,
            violations=[*self._unforeseen.violations, *aftermath.violations(), *other_lines],
        )
        if problem is not None:
            raise CannotLook(result, problem) from problem
        return result

    async def _rage(self, load: Load, *, until: float) -> None:
        """Start runs and inject faults until this time; the runs that are open then go on."""
        self._provider.behave(faults=_FAULTS_OF_PROVIDER, delay_seconds=_PROVIDER_DELAY_SECONDS)
        starting = asyncio.ensure_future(load.start())
        transacting = [
            asyncio.ensure_future(self._outbox.go_on()) for _ in range(OPEN_TRANSACTIONS)
        ]
        try:
            await self._chaos.rage(faults(self._seed, workers=WORKERS), until=until)
        finally:
            self._chaos.mend()
            self._outbox.stop()
            starting.cancel()
            await self._end("load", starting)
            await asyncio.gather(*transacting)
            self._provider.behave()

    async def _settle(self, load: Load, client: AgentClient, people: People) -> None:
        """Wait until every run has ended, and every request is answered, or never will be."""
        under_way = load.under_way
        if under_way:
            _, pending = await asyncio.wait(under_way, timeout=LIMIT_SECONDS)
            for one in pending:
                one.cancel()
        for ended in await asyncio.gather(*under_way, return_exceptions=True):
            if isinstance(ended, Exception):
                self._unforeseen.note("a client", ended)
        for thread in load.threads:
            with suppress(CommitlineError, TimeoutError):
                async with asyncio.timeout(LIMIT_SECONDS):
                    await client.thread(thread).run.result()
        ledger = await client.ledger()
        for _ in range(_ROUNDS):
            await _wait_for_quiet(ledger)
            await asyncio.sleep(2 * faulty_provider.LATE_SECONDS)
            if not await people.settle(ledger, Counted((await self._stats())["sent"])):
                break

    async def _stats(self) -> dict[str, Any]:
        return await asyncio.to_thread(self._provider.stats)


async def _wait_for_quiet(ledger: ActionLedger) -> None:
    """Wait until nothing is at work or due; the verdict finds what never becomes quiet."""
    until = time.monotonic() + LIMIT_SECONDS
    while await _is_busy(ledger) and time.monotonic() < until:  # noqa: ASYNC110 - only a look tells
        await asyncio.sleep(_LOOK_SECONDS)


async def _is_busy(ledger: ActionLedger) -> bool:
    """Whether a run or a call is under way, or the relay has something to do."""
    try:
        return await _has_work(ledger)
    except LedgerUnavailable:
        return True


async def _has_work(ledger: ActionLedger) -> bool:
    runs = await ledger.runs.list(limit=_MOST_ROWS)
    if any(run.state != "ended" and not run.run_key.startswith("outbox/") for run in runs):
        return True
    if due_for_relay(await ledger.relay.list(limit=_MOST_ROWS)):
        return True
    actions = await ledger.list(limit=_MOST_ROWS)
    return any(action.state == "dispatched" for action in actions)


def _keep(logs: Sequence[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for log in logs:
        shutil.copy(log, folder)
