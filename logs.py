"""Logs of a process that Commitline runs: events with names, for a person or a program.

A library does not configure logging; `commitline worker` and the other commands do. On a
terminal the events are coloured lines, anywhere else JSON, one object a line, on stderr.
"""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logging(*, level: int = logging.INFO) -> None:
    """Send structlog's events, and what libraries log by `logging`, to stderr."""
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(message)s"
    )
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
