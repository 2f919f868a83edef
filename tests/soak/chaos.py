"""What a soak does to its workers and to their way to Postgres, at random, from one seed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from commitline.devstack import DevStack
from commitline.testing.processes import WorkerProcess
from commitline.testing.proxy import TcpProxy

_WEIGHTS: Final = {
    "kill a worker": 5,
    "freeze a worker": 3,
    "stop a worker": 2,
    "restart Postgres": 1,
    "cut the ledger off": 1,
    "freeze the ledger": 1,
    "freeze its answers": 1,
    "lose its answers": 2,
    "drop its connections": 2,
    "delay the ledger": 2,
}
_PAUSE_SECONDS: Final = 3.0
"""Between two faults, at most."""
_FAULT_SECONDS: Final = 5.0
"""How long one lasts, at most. No longer than a lookup waits in all, from the claim: a process
frozen for longer, just before it sends, sends after "never happened" counts."""
_DELAY_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 0.2
_RESTART_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    after: float
    """Seconds since the one before."""
    kind: str
    worker: int
    seconds: float


def faults(seed: int, *, workers: int) -> Iterator[Fault]:
    """Yield the faults of a soak, without end."""
    random = Random(f"{seed}:chaos")
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    while True:
        yield Fault(
            after=random.uniform(0, _PAUSE_SECONDS),
            kind=random.choices(kinds, weights)[0],
            worker=random.randrange(workers),
            seconds=random.uniform(0.5, _FAULT_SECONDS),
        )


class Workers:
    """Worker processes that are started again whenever they have ended; use it with ``with``."""

    def __init__(self, app: str, *, count: int, environment: Mapping[str, str], folder: Path):
        self.logs = [folder / f"worker-{number}.log" for number in range(1, count + 1)]
        self.exits: Counter[int] = Counter()
        """How often a worker has ended, by exit status."""
        self._workers = [
            WorkerProcess(app, environment=environment, log=log, cwd=folder) for log in self.logs
        ]

    def __enter__(self) -> Workers:
        for worker in self._workers:
            worker.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            if worker.process is not None:
                worker.kill()

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a worker; nothing if it is not there."""
        process = self._workers[number].process
        if process is not None and process.poll() is None:
            os.kill(process.pid, what)

    def thaw(self) -> None:
        """Let all workers go on."""
        for number in range(len(self._workers)):
            self.signal(number, signal.SIGCONT)

    async def keep(self) -> None:
        """Start again, after a while, whichever has ended; until cancelled."""
        ended: dict[int, float] = {}
        now = asyncio.get_running_loop().time
        while True:
            for number, worker in enumerate(self._workers):
                status = worker.process.poll() if worker.process is not None else None
                if status is None:
                    continue
                if number not in ended:
                    self.exits[status] += 1
                    ended[number] = now()
                elif now() - ended[number] > _RESTART_SECONDS:
                    del ended[number]
                    worker.__enter__()
            await asyncio.sleep(_LOOK_SECONDS)


class Chaos:
    """Injects faults, one after the other, each for as long as it says."""

    def __init__(self, stack: DevStack, proxy: TcpProxy, workers: Workers) -> None:
        self.injected: Counter[str] = Counter()
        self._stack = stack
        self._proxy = proxy
        self._workers = workers
        self._restarting = asyncio.Lock()

    async def rage(self, coming: Iterator[Fault], *, until: float) -> None:
        """Inject faults until this time of the loop's clock; then mend everything."""
        now = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as under_way:
            for fault in coming:
                await asyncio.sleep(fault.after)
                if now() + fault.seconds > until:
                    break
                self.injected[fault.kind] += 1
                under_way.create_task(self._inject(fault))
        self.mend()

    def mend(self) -> None:
        """End every fault: workers go on, and the way to Postgres is free."""
        self._proxy.restore()
        self._proxy.thaw()
        self._proxy.delay(0)
        self._workers.thaw()

    async def _inject(self, fault: Fault) -> None:
        match fault.kind:
            case "kill a worker":
                self._workers.signal(fault.worker, signal.SIGKILL)
            case "stop a worker":
                self._workers.signal(fault.worker, signal.SIGTERM)
            case "freeze a worker":
                self._workers.signal(fault.worker, signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                self._workers.signal(fault.worker, signal.SIGCONT)
            case "restart Postgres":
                async with self._restarting:
                    await asyncio.to_thread(self._stack.restart_postgres)
            case _:
                await self._disturb_the_ledger(fault)

    async def _disturb_the_ledger(self, fault: Fault) -> None:
        proxy = self._proxy
        match fault.kind:
            case "cut the ledger off":
                proxy.cut()
            case "freeze the ledger":
                proxy.freeze()
            case "freeze its answers" | "lose its answers":
                proxy.freeze_answers()
            case "drop its connections":
                return proxy.drop()
            case "delay the ledger":
                proxy.delay(_DELAY_SECONDS)
        await asyncio.sleep(fault.seconds)
        if fault.kind == "lose its answers":
            proxy.drop()
        proxy.restore()
        proxy.thaw()
        proxy.delay(0)
        return None
