"""Both servers on one data directory, started and stopped in order."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from ..errors import ConfigurationError
from ..private_files import private_opener
from .ports import LOOPBACK, PortBook
from .postgres import Postgres
from .temporal_server import TemporalServer

DATABASE: Final = "commitline"


class DevStack:
    """An embedded Temporal server and Postgres whose data lies in ``data_dir``.

    One process at a time owns a directory. Everything is kept from one start to the next, also the
    ports if they are still free, unless it is for tests (``persistent``). If the owner is killed,
    Temporal dies with it (on Linux), and Postgres goes on until the next start takes it over.

    Args:
        data_dir: Created when missing.
        temporal_port: 0 picks a free one.
        ui_port: 0 picks a free one, ``None`` leaves the UI out.
        persistent: ``False`` is for tests: it keeps Temporal in memory, and Postgres, which is
            always on disk, does not wait for it; ``stop`` removes its data.
        keywords: Names of search attributes that Temporal has.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        temporal_port: int = 0,
        ui_port: int | None = 0,
        persistent: bool = True,
        keywords: Sequence[str] = (),
    ) -> None:
        self._data_dir = data_dir.resolve()
        self._persistent = persistent
        self._wanted = {"temporal": temporal_port, "metrics": 0}
        if ui_port is not None:
            self._wanted["ui"] = ui_port
        self._ports: dict[str, int] = {}
        self._lock: IO[str] | None = None
        self._postgres = Postgres(self._data_dir, persistent=persistent)
        self._temporal = TemporalServer(self._data_dir, persistent=persistent, keywords=keywords)

    def start(self) -> None:
        """Start both, or neither. A second call does nothing.

        Call it from the main thread: on Linux the Temporal server dies with the thread.

        Raises:
            ConfigurationError: Something is missing, a port or the directory is taken, or a
                server did not come up; the message says which and where its log is.
        """
        if self._lock is not None:
            return
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._data_dir)
        try:
            self.start_postgres()
            self._ports = PortBook(self._data_dir / "ports.json").choose(self._wanted)
            self._temporal.start(
                port=self._ports["temporal"],
                metrics_port=self._ports["metrics"],
                ui_port=self._ports.get("ui"),
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop both and wait until they are gone. A second call does nothing.

        What is not persistent is removed.
        """
        if self._lock is None:
            return
        try:
            self._temporal.stop()
        finally:
            try:
                self._postgres.stop() if self._persistent else self._postgres.remove()
            finally:
                self._lock.close()
                self._lock = None
                self._ports = {}

    def start_postgres(self) -> None:
        """Start Postgres alone, after ``stop_postgres``; nothing if it runs."""
        self._postgres.start()
        self._postgres.ensure_database(DATABASE)

    def stop_postgres(self) -> None:
        """Stop Postgres alone, cutting its connections; committed data is kept."""
        self._postgres.stop()

    def restart_postgres(self) -> None:
        """Stop and start Postgres; ``database_url`` stays the same."""
        self.stop_postgres()
        self.start_postgres()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def temporal_address(self) -> str:
        """Host and port, as ``TEMPORAL_ADDRESS`` and ``Client.connect`` take it."""
        return f"{LOOPBACK}:{self._port('temporal')}"

    @property
    def ui_url(self) -> str:
        """Temporal's web UI; empty without one."""
        return f"http://{LOOPBACK}:{self._port('ui')}" if "ui" in self._wanted else ""

    @property
    def database_url(self) -> str:
        """The database ``commitline``, empty when it is new; not migrated here."""
        return self._postgres.url(DATABASE)

    def url_of(self, database: str) -> str:
        """Return the URL of another database of this Postgres; it is not created."""
        return self._postgres.url(database)

    def _port(self, name: str) -> int:
        if name not in self._ports:
            raise ConfigurationError("the stack is not running: start it first")
        return self._ports[name]


def _lock(data_dir: Path) -> IO[str]:
    """Own the directory until the file is closed; for a killed process the kernel closes it."""
    file = os.fdopen(private_opener(str(data_dir / "lock"), os.O_RDWR | os.O_CREAT), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        file.close()
        raise ConfigurationError(f"another process runs the servers of {data_dir}") from err
    return file
