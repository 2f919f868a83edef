"""Workers and a provider in processes of their own, so that a test can kill them.

with ProviderProcess() as provider, WorkerProcess("shop:app", ...) as worker:
    ...  # start a run
    worker.kill()
    assert provider.effects("charge:4821") == 1
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from ..crash import VARIABLE


class ProviderProcess:
    """A provider that counts, in a process of its own; start it with ``with``.

    Args:
        module: The module to run. It prints its address first, as `commitline.testing.provider`
            does.
    """

    def __init__(self, module: str = "commitline.testing.provider") -> None:
        self._module = module
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def effects(self, subject: str) -> int:
        """How often something has happened: ``charge:4821``, ``mail:4821``."""
        return int(self.stats()["effects"].get(subject, 0))

    def requests(self, kind: str) -> int:
        """How many requests of a kind arrived: ``charge``, ``mail``, ``order``."""
        return int(self.stats()["requests"].get(kind, 0))

    def sent(self, kind: str) -> list[tuple[str | None, str]]:
        """Return key and body of every request of a kind, in order of arrival."""
        return [(s["key"], s["body"]) for s in self.stats()["sent"] if s["kind"] == kind]

    def stats(self) -> dict[str, Any]:
        """Return all counters."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=30) as answer:  # noqa: S310
            return dict(json.load(answer))

    def behave(self, **behaviour: Any) -> None:
        """Set how it behaves: ``delay_seconds``, ``drop_replies``, ``decline`` and others.

        Everything that is not named goes back to its default.
        """
        request = urllib.request.Request(  # noqa: S310
            f"{self.url}/behaviour", json.dumps(behaviour).encode()
        )
        urllib.request.urlopen(request, timeout=30).close()  # noqa: S310


class Process(Protocol):
    """The process of a worker, as `WorkerProcess` uses it; `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit status."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send it a signal, unless it has ended."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


class WorkerProcess:
    """A worker in a process of its own, which can kill itself at a crash point.

    Args:
        app: ``module:attribute``.
        environment: Variables to add to those of this process: addresses, settings.
        log: The file to which its output is appended.
        crash_at: The crash point at which it kills itself, ``point`` or ``point@tool``; see
            `commitline.crash`.
        cwd: The folder in which it runs; ``app`` can be imported from there.
        module: The module to run. It takes the app as its argument, as `commitline.worker` does.
    """

    def __init__(
        self,
        app: str,
        *,
        environment: Mapping[str, str],
        log: Path,
        crash_at: str | None = None,
        cwd: Path | None = None,
        module: str = "commitline.worker",
    ) -> None:
        self._command = [sys.executable, "-m", module, app]
        self._environment = {**os.environ, **environment}
        self._environment.pop(VARIABLE, None)
        if crash_at is not None:
            self._environment[VARIABLE] = crash_at
        self._cwd = cwd
        self.log = log
        self.process: Process | None = None

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self.process = self._start(log)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _start(self, log: IO[bytes]) -> Process:
        return subprocess.Popen(
            self._command,
            env=self._environment,
            cwd=self._cwd,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def wait_until_killed(self, seconds: float = 60) -> float:
        """Wait until it has killed itself; return when, by the monotonic clock.

        Raises:
            AssertionError: It ended in another way; the message has the end of its log.
        """
        assert self.process is not None
        status = self.process.wait(seconds)
        at = time.monotonic()
        if status != -signal.SIGKILL:
            raise AssertionError(f"the worker ended with {status}:\n{self._tail()}")
        return at

    def terminate(self, seconds: float = 60) -> int:
        """Send SIGTERM, wait, and return the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended, and wait for its end."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
