"""When a local activity was scheduled: a header, made in the workflow, read by the guard.

The server knows nothing of a local activity, so it has no time of the server's, and its worker's
clock may be wrong. The workflow's own time is the server's, as of its last task. A local activity
that runs again after its worker died has the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from .encoding import pack, unpack

SCHEDULED: Final = "commitline-scheduled"


def schedule_header(seconds: float) -> Payload:
    """Write the header; ``seconds`` are `workflow.time`."""
    return pack(seconds).payload


def read_schedule(headers: Mapping[str, Payload]) -> datetime | None:
    """Return when the workflow scheduled a local activity; None for every other activity."""
    if SCHEDULED not in headers:
        return None
    return datetime.fromtimestamp(unpack(float, RawValue(headers[SCHEDULED])), UTC)
