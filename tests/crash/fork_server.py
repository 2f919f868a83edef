"""Forks workers from a process that has imported everything, which saves a second for each.

Each worker is still a process of its own, with its own session, environment, folder and log, and
tests kill, freeze and stop it like any other. `test_worker_process` starts workers by the command.

    with ForkServer(folder) as fork_server:
        with fork_server.worker("shop.app:app", environment={…}, log=log, cwd=folder) as worker:
            ...

The process itself: ``python -m commitline.tests.crash.fork_server SOCKET``, until its input ends.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn, Self

from commitline.process import leave
from commitline.testing.processes import Process, WorkerProcess

_MODULE: Final = "commitline.tests.crash.fork_server"
_READY: Final = b"ready\n"


class ForkServer:
    """The process that workers are forked from; use it with ``with``.

    Args:
        folder: The folder of its socket; its path must be short.
    """

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "fork"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, self._socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == _READY
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def worker(
        self,
        app: str,
        *,
        environment: Mapping[str, str],
        log: Path,
        crash_at: str | None = None,
        cwd: Path,
    ) -> WorkerProcess:
        """Return a worker, to be started by ``with``, as `WorkerProcess` does."""
        return _ForkedWorker(
            self._socket, app, environment=environment, log=log, crash_at=crash_at, cwd=cwd
        )


class _ForkedWorker(WorkerProcess):
    def __init__(self, fork_server: Path, app: str, **given: Any) -> None:
        super().__init__(app, **given)
        self._fork_server = fork_server

    def _start(self, log: IO[bytes]) -> Process:
        return _Forked(
            self._fork_server,
            {
                "arguments": self._command[2:],  # Python and its -m left out
                "environment": self._environment,
                "log": str(self.log),
                "cwd": str(self._cwd),
            },
        )

    def kill(self) -> None:
        super().kill()
        assert isinstance(self.process, _Forked)
        self.process.close()


class _Forked:
    """A worker that was forked elsewhere: what of `subprocess.Popen` the tests use."""

    def __init__(self, fork_server: Path, request: Mapping[str, Any]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(fork_server))
        self._connection.sendall(json.dumps(request).encode())
        self._connection.shutdown(socket.SHUT_WR)
        self._reading = threading.Lock()
        self._answers = self._connection.makefile("rb")
        self._status: int | None = None
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self._answers.close()
        self._connection.close()

    def _ended(self, seconds: float | None) -> int | None:
        if self._status is None and select.select([self._connection], [], [], seconds)[0]:
            with self._reading:
                if self._status is None:
                    self._status = int(self._answers.readline())
        return self._status


# --- the process


def _serve(path: str) -> NoReturn:
    """Fork a keeper for each connection until the input ends, as it does when its owner dies."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for keepers
    gc.freeze()
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    while True:
        asked, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in asked:
            leave(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> NoReturn:
    """Fork the requested worker; send its process id, and in the end its exit status."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with connection.makefile("rb") as lines:
            request = json.load(lines)
        pid = os.fork()
        if pid == 0:
            connection.close()
            _be_a_worker(request)
        connection.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)


def _be_a_worker(request: Mapping[str, Any]) -> NoReturn:
    """Become what ``python -m commitline.worker …`` is in that folder and environment."""
    try:
        os.setsid()
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for ours, its in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(ours, its)
        module, *arguments = request["arguments"]
        assert module == worker.__name__
        sys.argv = [module, *arguments]
        worker.main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


if __name__ == "__main__":
    # What workers and their apps import. Not the apps: they read the environment as they load.
    import pytest  # noqa: F401

    import commitline.examples.shop.payments
    import commitline.tests.crash.stage  # noqa: F401
    from commitline import worker

    _serve(sys.argv[1])
