"""`commitline dev`: the servers of one machine, in the foreground, until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..config import ADDRESSES_FILE, DATA_DIR, DevAddresses
from ..errors import ConfigurationError
from ..ledger import migrate
from ..private_files import private_folder
from . import DevStack

TEMPORAL_PORT: Final = 7233
UI_PORT: Final = 8233


def run_dev_servers(
    folder: Path,
    *,
    keywords: Sequence[str],
    doing: Callable[[str], None],
    ready: Callable[[DevAddresses], None],
) -> None:
    """Start the servers, leave their addresses for the other commands, wait, stop them.

    Call it from the main thread. The data lies in ``.commitline`` in ``folder`` and stays.

    Args:
        folder: Where the other commands find the servers, from here and from folders below.
        keywords: Search attributes that Temporal gets.
        doing: Called with what happens now, in words.
        ready: Called with the addresses when everything is up.

    Raises:
        ConfigurationError: The servers of this folder run already, or something is missing.
    """
    with _stop_signal() as stop:
        doing("Starting Postgres and Temporal")
        private_folder(folder / DATA_DIR)
        stack = _start(folder, keywords)
        try:
            doing("Migrating the database")
            asyncio.run(migrate(stack.database_url))
            addresses = DevAddresses(
                temporal_address=stack.temporal_address,
                ui_url=stack.ui_url,
                database_url=stack.database_url,
                pid=os.getpid(),
            )
            addresses.write(folder / DATA_DIR)
            ready(addresses)
            stop.wait()
        finally:
            doing("Stopping Temporal and Postgres")
            (folder / DATA_DIR / ADDRESSES_FILE).unlink(missing_ok=True)
            stack.stop()


def _start(folder: Path, keywords: Sequence[str]) -> DevStack:
    stack = DevStack(
        folder / DATA_DIR,
        temporal_port=_if_free(TEMPORAL_PORT),
        ui_port=_if_free(UI_PORT),
        keywords=keywords,
    )
    try:
        stack.start()
    except ConfigurationError as err:
        running = DevAddresses.find(folder)
        if running is None:
            raise
        raise ConfigurationError(
            f"{err.message}: `commitline dev` (pid {running.pid}), with Temporal at "
            f"{running.temporal_address} and its UI at {running.ui_url}"
        ) from err
    return stack


def _if_free(port: int) -> int:
    """Return the port; or 0 if it is taken, for the port of last time or any other."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event, so that neither interrupts a start or a stop."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
