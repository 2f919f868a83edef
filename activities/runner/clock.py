"""The time of an attempt: a clock for deadlines, and how much of them is left.

The clock goes on while the machine sleeps, or the process is frozen. `time.monotonic` stands
still then on Linux, and a call would be made long after its time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from temporalio import activity

from ..contract.deadlines import CallLimits

_HAS_BOOTTIME: Final = hasattr(time, "CLOCK_BOOTTIME")


def now() -> float:
    """Return seconds since some time in the past: only differences mean something."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOTTIME else time.monotonic()


def time_left(limits: CallLimits) -> CallLimits:
    """Return what is left of a call's deadlines as the running attempt begins.

    The server's clock says how long the call has waited: a worker's wrong clock does not matter.
    """
    if limits.node_seconds is None:
        return limits
    info = activity.info()
    waited = (info.started_time - info.scheduled_time).total_seconds()
    return replace(limits, node_seconds=max(limits.node_seconds - waited, 0.0))
