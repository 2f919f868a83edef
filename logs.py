"""Logs: events with names, for a person or a program, which never break what they tell of.

A library does not configure logging; `commitline worker` and the other commands do. On a
terminal the events are coloured lines, anywhere else JSON, one object a line, on stderr.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import structlog

from .shown import one_line


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


def configure_logging(*, level: int = logging.INFO) -> None:
    """Send structlog's events, and what libraries log by `logging`, to stderr."""
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )
    renderers: list[structlog.typing.Processor] = (
        [_on_one_line, structlog.dev.ConsoleRenderer()]
        if sys.stderr.isatty()
        else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without the local variables: arguments of tools, addresses with passwords.
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
            ),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def core_logger() -> logging.Logger:
    """Return the logger of the SDK's core, which forwards to it what it would print by itself."""
    return logging.getLogger("temporalio.core")


def _on_one_line(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Make names and messages from outside safe for a terminal; JSON escapes them by itself."""
    return {
        name: one_line(value, limit=10_000) if isinstance(value, str) else value
        for name, value in event.items()
    }
