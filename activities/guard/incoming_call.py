"""A guarded call as it came to one attempt: of what, from where, and since when."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from ...canonical import scrub
from ..contract.action_header import ActionHeader, first_of_all
from ..contract.activity_failure import NOT_STARTED, again
from ..runner.clock import now
from .guarded import Guarded

log = structlog.get_logger("commitline")

_SAME_CALL: Final = 50
"""Up to which attempt a call of the relay's is tried again, and not started afresh."""
_SAME_CALL_DELAY: Final = timedelta(seconds=2)


class IncomingCall:
    """What is fixed about a call while one attempt is at work on it.

    Args:
        guarded: The activity type.
        origin: Where the call comes from.
    """

    def __init__(self, guarded: Guarded, header: ActionHeader) -> None:
        self.guarded = guarded
        self.header = header
        self.limits = guarded.limits(header)
        self.tries = header.tries or guarded.tries
        """How often the tool may fail it."""
        self.began = now()
        self.log = log.bind(
            run_key=header.run_key,
            position=header.position,
            tool=guarded.name,
            attempt=activity.info().attempt,
        )

    def spent(self) -> float:
        """Return the seconds since this attempt began."""
        return now() - self.began

    @property
    def is_first(self) -> bool:
        """Whether no earlier attempt can have left anything, so that looking would be in vain."""
        return first_of_all(self.header.run_key) and not self.header.again

    @property
    def cancelled_with_its_run(self) -> bool:
        """Whether the run was cancelled; else it is the worker that goes."""
        details = activity.cancellation_details()
        return details is not None and details.cancel_requested

    def not_started(self, reason: str) -> ApplicationError:
        """Return the failure of a call that could not be dispatched.

        The relay must wait for whoever else has the row, for as long as that one's lease. A call
        that is started afresh could not tell an earlier attempt of its own from somebody else's,
        so it is this one that is tried again, for a while.
        """
        if self.header.purpose == "relay" and activity.info().attempt < _SAME_CALL:
            return again(NOT_STARTED, scrub(reason), delay=_SAME_CALL_DELAY)
        return self.guarded.not_started(reason)
