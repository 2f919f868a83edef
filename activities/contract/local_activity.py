"""What the workflow says to a local activity, and to the one of the server's that goes on with it.

The server knows nothing of a local activity, so it has no time of the server's, and its worker's
clock may be wrong. The workflow's own time is the server's, as of its last task. A local activity
that runs again after its worker died has the same one.

Nor is there a heartbeat, so what an attempt leaves for the next one goes with its failure. To a
workflow it is plain JSON data: it only hands it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from .encoding import pack, unpack

SCHEDULED: Final = "commitline-scheduled"
NOTES: Final = "commitline-notes"

LONGEST_LOCAL: Final = 30.0
"""Seconds that an attempt may take as a local activity. Its workflow task lasts as long."""


def is_short(seconds: float | None) -> bool:
    """Whether an attempt with this deadline may be a local activity; None is no limit."""
    return seconds is not None and seconds <= LONGEST_LOCAL


Notes = dict[str, Any]
"""Of an attempt, as JSON data."""


def schedule_header(seconds: float) -> Payload:
    """Write the header; ``seconds`` are `workflow.time`."""
    return pack(seconds).payload


def read_schedule(headers: Mapping[str, Payload]) -> datetime | None:
    """Return when the workflow scheduled a local activity; None for every other activity."""
    if SCHEDULED not in headers:
        return None
    return datetime.fromtimestamp(unpack(float, RawValue(headers[SCHEDULED])), UTC)


def with_notes(failure: ApplicationError, notes: Notes) -> ApplicationError:
    """Return the failure of a local attempt, with what it leaves."""
    return ApplicationError(
        failure.message,
        *failure.details,
        {NOTES: notes},
        type=failure.type,
        non_retryable=failure.non_retryable,
        next_retry_delay=failure.next_retry_delay,
        category=failure.category,
    )


def notes_of(error: ActivityError) -> Notes:
    """Return what a local attempt has left with its failure."""
    details = error.cause.details if isinstance(error.cause, ApplicationError) else ()
    last = details[-1] if details else None
    return dict(last[NOTES]) if isinstance(last, dict) and NOTES in last else {}


def notes_header(notes: Notes) -> Payload:
    """Write the header of the activity that goes on."""
    return pack(notes).payload


def read_notes(headers: Mapping[str, Payload]) -> Notes:
    """Return what a local attempt has left for this activity."""
    return unpack(dict[str, Any], RawValue(headers[NOTES])) if NOTES in headers else {}
