"""Ports on the loopback address, kept from one start to the next where possible."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ..errors import ConfigurationError
from ..private_files import write_private

LOOPBACK: Final = "127.0.0.1"
_QUIET: Final = range(15_000, 32_768)
"""Below the ports that systems give to outgoing connections (Linux begins at 32768): such a
connection could take a port between our check and the server's start."""
_TRIES: Final = 100


class PortBook:
    """Remembers in a file which port each server had, so that bookmarks survive a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def choose(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return a free port for each name; 0 means the last one if it is free, else any.

        Raises:
            ConfigurationError: A port that is given by its number is taken.
        """
        last = self._read()
        chosen: dict[str, int] = {}
        with ExitStack() as held:  # hold all until all are chosen, so that no port is chosen twice
            for name, port in wanted.items():
                probe = held.enter_context(socket.socket())
                if not _bind_first(probe, _candidates(port, last.get(name, 0))):
                    raise ConfigurationError(f"port {port} for {name} is in use")
                chosen[name] = probe.getsockname()[1]
        write_private(self._path, json.dumps(chosen))
        return chosen

    def _read(self) -> dict[str, int]:
        try:
            return dict(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}  # without the file only the ports change


def _candidates(wanted: int, last: int) -> Iterator[int]:
    if wanted:
        yield wanted
    else:
        if last:
            yield last
        yield from random.sample(_QUIET, _TRIES)
        yield 0


def _bind_first(probe: socket.socket, candidates: Iterator[int]) -> bool:
    # Connections of the previous server linger in TIME_WAIT; Go's listener reuses too.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for port in candidates:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            continue
        return True
    return False
