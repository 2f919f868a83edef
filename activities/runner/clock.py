"""The clock of deadlines: one that goes on while the machine sleeps, or a process is frozen.

`time.monotonic` stands still then on Linux, and a call would be made long after its time.
"""

from __future__ import annotations

import time
from typing import Final

_HAS_BOOTTIME: Final = hasattr(time, "CLOCK_BOOTTIME")


def now() -> float:
    """Return seconds since some time in the past: only differences mean something."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _HAS_BOOTTIME else time.monotonic()
