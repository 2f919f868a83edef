"""Forks workers of frameworks' agents from a process that has imported the frameworks.

To import them takes ten seconds. Each worker is a process of its own, and is killed like any other.

    with Host(["commitline.tests.frameworks.apps.openai_shop", …]) as host:
        workers = host.start(["…apps.openai_shop"], environment={…}, log=log)
        workers.kill()

The process itself: ``python -m commitline.tests.frameworks.host MODULE…``, until its input ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn, Self

_MODULE: Final = "commitline.tests.frameworks.host"
_APPS: Final = tuple(f"commitline.tests.frameworks.{one}" for one in ("apps", "apart", "tools"))


class Host:
    """The process that workers are forked from, one at a time; use it with ``with``.

    Args:
        modules: The apps that it imports.
        python: An interpreter of an environment that has their frameworks.
    """

    def __init__(self, modules: Sequence[str], *, python: str = sys.executable) -> None:
        self._command = [python, "-m", _MODULE, *modules]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert self.said() == "ready", "the process could not import the apps"
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.communicate()

    def start(
        self, modules: Sequence[str], *, environment: Mapping[str, str], log: Path
    ) -> HostedWorkers:
        """Fork a worker for each app; those before must have ended.

        Args:
            modules: The apps. What stands behind an ``@`` tells variants of one module apart.
            environment: Their whole environment.
            log: The file to which they write.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        request = {"modules": list(modules), "environment": dict(environment), "log": str(log)}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return HostedWorkers(self, json.loads(self.said()))

    def said(self) -> str:
        """Read an answer of the process."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class HostedWorkers:
    """Worker processes, which were forked together."""

    def __init__(self, host: Host, pids: Sequence[int]) -> None:
        self._host = host
        self._alive = set(pids)
        self._statuses: list[int] = []
        self._waiting = threading.Lock()

    def wait(self) -> Sequence[int]:
        """Wait until they have ended; return their exit statuses."""
        with self._waiting:
            while self._alive:
                pid, status = json.loads(self._host.said())
                self._alive.remove(pid)
                self._statuses.append(status)
        return self._statuses

    def kill(self) -> None:
        """Send SIGKILL to those that have not ended, and wait for their ends."""
        for pid in list(self._alive):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait()


# --- the process


def _serve(modules: Sequence[str]) -> None:
    for module in modules:
        import_module(module)
    for name in [one for one in sys.modules if one.startswith(_APPS)]:
        del sys.modules[name]  # they read the environment as they load
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        for module in request.pop("modules"):
            pids.append(os.fork())
            if pids[-1] == 0:
                _be_a_worker(module, **request)
        print(json.dumps(pids), flush=True)
        for _ in pids:
            pid, status = os.wait()
            print(json.dumps([pid, os.waitstatus_to_exitcode(status)]), flush=True)


def _be_a_worker(module: str, environment: Mapping[str, str], log: str) -> NoReturn:
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        nothing = os.open(os.devnull, os.O_RDONLY)
        written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for ours, its in ((nothing, 0), (written, 1), (written, 2)):
            os.dup2(ours, its)
        name = os.environ["APP"] = module.rpartition(".")[2]
        app = import_module(module.partition("@")[0]).app()
        from commitline.tests.frameworks.serving import replay, serve

        folder = os.environ.get("REPLAY")
        asyncio.run(replay(app, Path(folder) / name) if folder else serve(app, name))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1:])
