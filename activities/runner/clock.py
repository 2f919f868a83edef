"""The time of an attempt: a clock for deadlines, and how much of them is left.

The clock goes on while the machine sleeps, or the process is frozen. `time.monotonic` stands
still then on Linux, and a call would be made long after its time.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from typing import Final

from temporalio import activity

from ..contract.deadlines import CallLimits
from .attempt_notes import AttemptNotes

scheduled_by_workflow: ContextVar[datetime | None] = ContextVar(
    "commitline_scheduled", default=None
)
"""When the workflow scheduled the running activity, if that is a local one."""

_HAS_BOOTTIME: Final = hasattr(time, "CLOCK_BOOTTIME")


def now() -> float:
    """Return seconds since some time in the past: only differences mean something."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOTTIME else time.monotonic()


def began_at() -> datetime:
    """Return when the running attempt began, by the server's clock.

    Of a local activity that is when the workflow scheduled it: another attempt at it may have
    begun at the same time.
    """
    return scheduled_by_workflow.get() or activity.info().started_time


def time_left(limits: CallLimits) -> CallLimits:
    """Return what is left of a call's deadlines as the running attempt begins.

    The node's time begins when the call may start: the attempts that waited for the ledger used
    up nothing of it. The server's clock counts it: a worker's wrong clock does not matter.
    """
    if limits.node_seconds is None:
        return limits
    info = activity.info()
    began = AttemptNotes.read().clock_from or info.scheduled_time.timestamp()
    spent = info.started_time.timestamp() - began
    return replace(limits, node_seconds=max(limits.node_seconds - max(spent, 0.0), 0.0))
