"""A clean environment for servers that a program starts for itself, and one way to stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_FOREIGN: Final = ("TEMPORAL_", "COMMITLINE_", "SHOP_", "SOAK_")


@contextmanager
def clean_environment(**added: str) -> Iterator[None]:
    """Hide the settings of other servers from the processes that are started inside.

    Args:
        added: Variables to set inside.
    """
    before = dict(os.environ)
    for name in before:
        if name.startswith(_FOREIGN):
            del os.environ[name]
    # Temporal's configuration file in the user's home may name another server, too.
    os.environ.update(TEMPORAL_CONFIG_FILE=os.devnull, **added)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Make SIGTERM do what Ctrl-C does, so that every ``with`` block stops its process."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
