"""What a play on servers of its own needs around it: a clean environment, one way out."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FOREIGN: Final = ("TEMPORAL_", "COMMITLINE_", "SHOP_", "SOAK_")


@contextmanager
def own_environment(**added: str) -> Iterator[None]:
    """Keep the settings of the caller's own servers from the processes that are started here."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(_FOREIGN):
            del os.environ[name]
    # Nor may Temporal's configuration file, in the user's home, name another server.
    os.environ.update(TEMPORAL_CONFIG_FILE=os.devnull, **added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def terminating_as_interrupt() -> Iterator[None]:
    """Make SIGTERM what Ctrl-C is: the way out that stops everything."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
