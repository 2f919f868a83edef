"""Named points at which a process kills itself, so that crashes can be arranged.

``COMMITLINE_CRASH_AT=after_claim`` makes a worker send itself SIGKILL the first time it
passes that point; ``after_claim@charge_card`` only when the point is passed for that tool.
SIGKILL, not an exception: no ``finally`` runs, no buffer is flushed, nothing is reported.
Without the variable a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from typing import Final, Literal, get_args

VARIABLE: Final = "COMMITLINE_CRASH_AT"

CrashPoint = Literal[
    "before_claim",  # the call is known, nothing is written
    "after_claim",  # F1: the intent is committed, the tool is not called
    "after_effect",  # F2: the outside world has changed, the tool has not returned
    "before_record",  # F3: the tool has returned, the outcome is not committed
    "after_record",  # F4: the outcome is committed, Temporal does not know it
    "after_completion",  # the model has answered, nothing is recorded
    "completion_recorded",  # the completion is committed, Temporal does not know it
]
CRASH_POINTS: Final[tuple[CrashPoint, ...]] = get_args(CrashPoint)


def crash_point(name: CrashPoint, *, tool: str = "") -> None:
    """Die here if ``COMMITLINE_CRASH_AT`` names this point (and this tool, if it names one)."""
    wanted = os.environ.get(VARIABLE)
    if wanted and wanted in (name, f"{name}@{tool}"):
        os.kill(os.getpid(), signal.SIGKILL)
