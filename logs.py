"""Logs: events with names, for a person or a program, which never break what they tell of.

A library does not configure logging; `commitline worker` does, see `log_output`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import structlog


class Log:
    """Our logger: no call of it raises.

    Whoever writes the events may fail: a stderr that nobody reads any more, a processor or a
    handler of the application. An event is lost then, and nothing else: a call whose tool has
    ended is recorded all the same.

    Args:
        bound: Values that are part of every event.
    """

    def __init__(self, bound: Mapping[str, Any] | None = None) -> None:
        self._bound = dict(bound or {})
        self._events = structlog.get_logger("commitline")

    def bind(self, **values: Any) -> Log:
        """Return a logger with more values in every event."""
        return Log({**self._bound, **values})

    def info(self, event: str, **values: Any) -> None:
        """Log what happens by design."""
        self._write("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        """Log what somebody may have to look at."""
        self._write("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        """Log what somebody has to look at."""
        self._write("error", event, values)

    def _write(self, level: str, event: str, values: Mapping[str, Any]) -> None:
        with suppress(Exception):  # there is nobody to tell
            getattr(self._events, level)(event, **{**self._bound, **values})


@contextmanager
def logged_with(**values: Any) -> Iterator[None]:
    """Have every event say these values while the body runs, also those of libraries and tools."""
    with structlog.contextvars.bound_contextvars(**values):
        yield


def core_logger() -> logging.Logger:
    """Return the logger of the SDK's core, which forwards to it what it would print by itself."""
    return logging.getLogger("temporalio.core")
