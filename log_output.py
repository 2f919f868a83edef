"""What a worker's process writes to stderr: every event a line, whoever it comes from.

On a terminal an event is a line for a person, anywhere else a JSON object: our own events, what
libraries and the SDK's core log by `logging`, warnings, and exceptions that nobody has caught.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable
from datetime import date, timedelta
from enum import Enum
from pathlib import PurePath
from traceback import format_exception
from typing import Any, Final
from uuid import UUID

import structlog
import temporalio.activity
import temporalio.workflow
from structlog.stdlib import ProcessorFormatter
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, ExcInfo, Processor

from .logs import Log
from .redaction import redact
from .shown import block, one_line

log = Log()

_LONGEST: Final = 10_000
"""Characters of one text on a terminal."""
_ABOUT_CALLS: Final = ("temporal_activity", "temporal_workflow")
"""What the SDK says of the activity or the workflow that logs."""


def configure_logging(*, level: int = logging.INFO) -> None:
    """Send all that this process logs to stderr. Call it once, when the process begins.

    Of what is logged by `logging`, warnings and errors are written. An application that configures
    `logging` itself decides about those.

    Args:
        level: Of our own events, the lowest that is written.
    """
    for_people = sys.stderr.isatty()
    ours: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with_trace,
    ]
    rendered = _for_people() if for_people else _for_programs()
    structlog.configure(
        processors=[*ours, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # One write a line, so that no other thread's line comes between.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = _Handler(sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[*ours, structlog.stdlib.add_logger_name, _of_record],
            processors=[ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # The SDK would append to each message what is in fields of its own.
    temporalio.activity.logger.activity_info_on_message = False
    temporalio.workflow.logger.workflow_info_on_message = False


def log_uncaught() -> None:
    """Log what Python writes as plain text: warnings, and exceptions that nobody has caught.

    It changes hooks of the whole process, so it is for a process of ours.
    """
    logging.captureWarnings(True)

    def at_the_end(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        log.error("process.failed", exc_info=(kind, error, trace))

    def in_thread(given: threading.ExceptHookArgs) -> None:
        thread = None if given.thread is None else given.thread.name
        log.error("thread.failed", thread=thread, exc_info=given.exc_value)

    def where_none_can_be_raised(given: Any) -> None:
        log.error("error.ignored", where=given.err_msg, exc_info=given.exc_value)

    sys.excepthook, threading.excepthook = at_the_end, in_thread
    sys.unraisablehook = where_none_can_be_raised


class _Handler(logging.StreamHandler[Any]):
    """Writes records; one that cannot be formatted is an event, too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """See base class, which writes a traceback as plain text."""
        error = sys.exc_info()[1]
        text = redact(str(record.msg))[:_LONGEST]
        log.error("log.unwritable", logger=record.name, text=text, error=type(error).__name__)


def _for_programs() -> list[Processor]:
    # Without the local variables: arguments of tools, addresses with passwords.
    frames = ExceptionDictTransformer(show_locals=False)
    return [
        structlog.processors.ExceptionRenderer(lambda exc_info: _without_secrets(frames(exc_info))),
        structlog.processors.JSONRenderer(default=_plain),
    ]


def _for_people() -> list[Processor]:
    return [
        structlog.processors.ExceptionRenderer(_traceback_text),
        _on_one_line,
        structlog.dev.ConsoleRenderer(),
    ]


def _traceback_text(exc_info: ExcInfo) -> str:
    return block(redact("".join(format_exception(*exc_info))), limit=_LONGEST)


def _without_secrets(found: Any) -> Any:
    """Redact the texts of exceptions: of a provider's error, say, which repeats the key."""
    if isinstance(found, str):
        return redact(found)
    if isinstance(found, list):
        return [_without_secrets(one) for one in found]
    if isinstance(found, dict):
        return {name: _without_secrets(value) for name, value in found.items()}
    return found


def _plain(value: object) -> Any:
    """Return the JSON of a value that JSON has no type for."""
    plain: Any
    match value:
        case date():  # a datetime is one
            plain = value.isoformat()
        case timedelta():
            plain = value.total_seconds()
        case Enum():
            plain = value.value
        case UUID() | PurePath():
            plain = str(value)
        case BaseException():
            plain = redact(f"{type(value).__name__}: {value}")
        case Iterable():
            plain = list(value)
        case _:
            plain = redact(repr(value))
    return plain


def _with_trace(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Name the span in which an event happens, where the application traces with OpenTelemetry."""
    if (traces := sys.modules.get("opentelemetry.trace")) is not None:
        span = traces.get_current_span().get_span_context()
        if span.is_valid:
            event["trace_id"] = traces.format_trace_id(span.trace_id)
            event["span_id"] = traces.format_span_id(span.span_id)
    return event


def _of_record(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Take from a record of `logging` what it has in fields; redact its text."""
    record = event["_record"]
    event["event"] = redact(event["event"])
    for name in _ABOUT_CALLS:
        if name in record.__dict__:
            event[name] = record.__dict__[name]
    if (core := getattr(record, "temporal_log", None)) is not None:
        event["fields"] = core.fields
    return event


def _on_one_line(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Make names and messages from outside safe for a terminal; JSON escapes them by itself."""
    return {
        name: one_line(value, limit=_LONGEST)
        if isinstance(value, str) and name != "exception"
        else value
        for name, value in event.items()
    }
