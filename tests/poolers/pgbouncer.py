"""A real PgBouncer in transaction mode, before a Postgres of the tests.

It has fewer connections to Postgres than its clients have to it, and gives each transaction the one
that was idle longest, so that a client meets another session at almost every statement.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

BINARY: Final = os.environ.get("PGBOUNCER", "pgbouncer")
SESSIONS: Final = 3
"""Connections to Postgres; the pools of the tests have more."""
KEEPS_STATEMENTS: Final = (1, 22)
"""The first version whose prepared statements psycopg can use."""
_PORT: Final = 6432  # of a socket in a folder of its own


def version() -> tuple[int, int]:
    """Return the version of the PgBouncer that is used."""
    said = subprocess.run([BINARY, "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said.stdout)
    assert found is not None, said
    return int(found[1]), int(found[2])


@contextmanager
def pgbouncer(database_url: str) -> Iterator[str]:
    """Run a PgBouncer while the body runs; yield the URL of the same database through it.

    Args:
        database_url: Of a Postgres that listens on a Unix socket.
    """
    info = conninfo_to_dict(database_url)
    # PgBouncer does not run as root, and the socket may be entered by its owner alone.
    owner = Path(str(info["host"])).stat()
    folder = Path(tempfile.mkdtemp(prefix="commitline-pgbouncer-"))
    try:
        ini = folder / "pgbouncer.ini"
        ini.write_text(_ini(info, folder))
        for path in (folder, ini):
            os.chown(path, owner.st_uid, owner.st_gid)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [BINARY, ini], stdout=log, stderr=log, user=owner.st_uid, group=owner.st_gid
            )
        try:
            url = make_conninfo(database_url, host=str(folder), port=_PORT)
            _wait_for(process, url, folder / "log")
            yield url
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder)


def _ini(info: Mapping[str, Any], folder: Path) -> str:
    lines = {
        "unix_socket_dir": folder,
        "listen_port": _PORT,
        "auth_type": "any",
        "admin_users": info["user"],
        "pool_mode": "transaction",
        "default_pool_size": SESSIONS,
        "min_pool_size": SESSIONS,
        "server_round_robin": 1,
        **({"max_prepared_statements": 200} if version() >= KEEPS_STATEMENTS else {}),
    }
    server = f"host={info['host']} port={info['port']} user={info['user']}"
    return "\n".join(
        ["[databases]", f"* = {server}", "[pgbouncer]", *(f"{k} = {v}" for k, v in lines.items())]
    )


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
