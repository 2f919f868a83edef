"""What a soak starts: runs, plans and requests of conversations, without end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from commitline.activities.contract.conversation import RunResult
from commitline.client import AgentClient
from commitline.errors import CommitlineError, LedgerUnavailable, NodeTimeout, RunFailed
from commitline.handles.any_run import AnyRun
from commitline.handles.plan import PlanHandle
from commitline.handles.thread import RunHandle
from commitline.identity import thread_workflow
from commitline.tests.soak.app import agent_of, plan_of
from commitline.tests.soak.script import (
    FIRST_SAID,
    Ending,
    plan_script_of,
    prompt_of,
    saying_of,
    script_of,
    thread_of,
)

T = TypeVar("T")

OPEN_RUNS: Final = 4
"""Runs of agents at a time."""
OPEN_PLANS: Final = 3
"""Runs of plans at a time."""
OPEN_REQUESTS: Final = 3
"""Requests of conversations at a time."""
_SEND_AGAIN_SECONDS: Final = 0.2
_NODE_SECONDS: Final = 30.0
_REASON: Final = "the soak's script"


class Load:
    """Starts what the scripts of a seed say, and keeps what the clients got.

    Args:
        seed: The soak's.
        temporal: To terminate runs.
        client: Starts runs and plans, and sends requests.
        other_client: Sends some requests a second time.
    """

    def __init__(
        self, seed: int, *, temporal: Client, client: AgentClient, other_client: AgentClient
    ) -> None:
        self._seed = seed
        self._temporal = temporal
        self._client = client
        self._other_client = other_client
        self.runs: list[asyncio.Future[AnyRun]] = []
        self.plans: list[asyncio.Future[AnyRun]] = []
        self.requests: list[asyncio.Future[Sequence[RunResult | None]]] = []
        """What the senders of each request got."""
        self.talks: Counter[str] = Counter()
        """Of requests: ``sent again``, ``runs lost``, and why answers were lost."""
        self.starts: Counter[str] = Counter()
        """How often a start was repeated, as the ledger had not answered."""
        self.stopped: set[str] = set()
        """The workflow ids of runs that the soak ended, or tried to end."""
        self.to_undo: set[str] = set()
        """The workflow ids of runs whose undo was requested and not refused."""
        self.undos_refused: Counter[str] = Counter()

    @property
    def under_way(self) -> list[asyncio.Future[Any]]:
        """Everything that was started."""
        return [*self.runs, *self.plans, *self.requests]

    @property
    def threads(self) -> list[str]:
        """The conversations, each once."""
        return list(dict.fromkeys(thread_of(number) for number in self.request_numbers()))

    def request_numbers(self) -> Iterator[int]:
        """The numbers of the requests, in their order."""
        yield from range(FIRST_SAID, FIRST_SAID + len(self.requests))

    async def start(self) -> None:
        """Start runs, plans and requests until cancelled; what is open then goes on."""
        await asyncio.gather(
            self._keep_starting(self.runs, OPEN_RUNS, self._run),
            self._keep_starting(self.plans, OPEN_PLANS, self._plan),
            self._keep_starting(self.requests, OPEN_REQUESTS, self._request),
        )

    async def _keep_starting(
        self,
        started: list[asyncio.Future[T]],
        at_a_time: int,
        play: Callable[[int], Coroutine[Any, Any, T]],
    ) -> None:
        """Start one after the other, and never more than so many at a time."""
        places = asyncio.Semaphore(at_a_time)
        while True:
            await places.acquire()
            one = asyncio.ensure_future(play(len(started)))
            one.add_done_callback(lambda _: places.release())
            started.append(one)

    async def _run(self, number: int) -> AnyRun:
        script = script_of(self._seed, number)
        prompt = prompt_of(self._seed, number)
        agent = agent_of(self._seed, number)
        handle = await self._started(lambda: self._client.start(agent, prompt, id=run_id(number)))
        await self._play(handle, script.ending, undone_later=script.undone_later)
        return handle

    async def _plan(self, number: int) -> AnyRun:
        script = plan_script_of(self._seed, number)
        handle = await self._started(
            lambda: self._client.start_plan(
                plan_of(script), id=plan_id(number), node_timeout=_NODE_SECONDS
            )
        )
        await self._play(handle, script.ending, undone_later=script.undone_later)
        return handle

    async def _started(self, start: Callable[[], Awaitable[T]]) -> T:
        """Start a run; once more while the ledger does not answer, which is safe."""
        while True:
            try:
                return await start()
            except LedgerUnavailable:
                self.starts["starts repeated"] += 1
                await asyncio.sleep(_SEND_AGAIN_SECONDS)

    async def _play(
        self, handle: RunHandle | PlanHandle, ending: Ending | None, *, undone_later: bool
    ) -> None:
        """Wait for a run's end, or bring it about, as its script says."""
        try:
            async with asyncio.timeout(None if ending is None else ending.after):
                await failure_of(handle)
        except TimeoutError:
            assert ending is not None, "there is no time-out"
            self.stopped.add(handle.id)
            with suppress(
                CommitlineError, RPCError
            ):  # the ledger is unavailable, or the run has just ended
                await self._end(handle, ending)
            await failure_of(handle)
        if undone_later:
            await self._undo(handle)

    async def _end(self, handle: AnyRun, ending: Ending) -> None:
        if ending.how == "terminate":
            await self._temporal.get_workflow_handle(handle.id).terminate(_REASON)
            return
        undo = ending.how == "stop and undo"
        await handle.stop(reason=_REASON, compensate=undo, wait_seconds=0)

    async def _undo(self, handle: AnyRun) -> None:
        """Undo a run that has ended; the ledger may be unavailable for a while."""
        while True:
            try:
                await handle.undo(reason=_REASON)
            except LedgerUnavailable:
                await asyncio.sleep(_SEND_AGAIN_SECONDS)
                continue
            except CommitlineError as err:
                self.undos_refused[f"refused: {err.code}"] += 1
                return
            self.to_undo.add(handle.id)
            return

    async def _request(self, at: int) -> Sequence[RunResult | None]:
        """Send a request, by one client or by two, and lose the run if its script says so."""
        number = FIRST_SAID + at
        how = saying_of(self._seed, number)
        senders = [self._send(self._client, number, after=0)]
        if how.again_after is not None:
            self.talks["sent again"] += 1
            senders.append(self._send(self._other_client, number, after=how.again_after))
        sending = asyncio.gather(*senders)
        if how.lost_after is not None:
            await asyncio.wait([sending], timeout=how.lost_after)
            if not sending.done():
                await self._lose_run(thread_of(number), terminated=how.terminated)
        return await sending

    async def _send(self, client: AgentClient, number: int, *, after: float) -> RunResult:
        """Send a request until it is answered; it is sent again only when its answer was lost."""
        await asyncio.sleep(after)
        while True:
            try:
                return await client.send(
                    thread_of(number),
                    prompt_of(self._seed, number),
                    agent=agent_of(self._seed, number),
                    request_id=str(number),
                )
            except (RunFailed, NodeTimeout, LedgerUnavailable) as err:
                self.talks[f"answers lost: {type(err).__name__}"] += 1
                await asyncio.sleep(_SEND_AGAIN_SECONDS)

    async def _lose_run(self, thread: str, *, terminated: bool) -> None:
        """End the run under way so that it cannot answer; what it did stays done."""
        self.stopped.add(thread_workflow(thread))
        self.talks["runs lost"] += 1
        with suppress(CommitlineError, RPCError):  # there is no run, or the ledger is unavailable
            if terminated:
                await self._temporal.get_workflow_handle(thread_workflow(thread)).terminate()
            else:
                await self._client.thread(thread).run.stop(reason=_REASON, wait_seconds=0)


def run_id(number: int) -> str:
    """The workflow id of a run."""
    return f"soak-{number}"


def plan_id(number: int) -> str:
    """The workflow id of a plan's run."""
    return f"soak-plan-{number}"


async def failure_of(handle: RunHandle | PlanHandle) -> str:
    """Wait for a run's end; return how it failed, if it did."""
    try:
        await handle.result()
    except CommitlineError as err:
        return str(err)
    return ""
