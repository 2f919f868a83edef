"""How an activity of ours fails: what Temporal is told, and so whether it tries again.

    as_failure    an error of ours; final, or tried again, as the error says of itself
    again         another attempt, after a while, as it is designed
    not_started   nothing was dispatched: the run starts the call afresh, with a fresh clock

`failures` is about the other side: what an exception of a *tool* means.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from ...canonical import scrub
from ...errors import CommitlineError, LedgerUnavailable, RunNotRunning

NOT_STARTED: Final = "NotStarted"
"""The type of the failure of a call that was not dispatched: the run waits, and starts it
afresh, with a fresh clock."""

STOPPING: Final = "stopping"
"""In the details of a failure: the run is being stopped, and its cancellation follows."""

_BENIGN: Final = ApplicationErrorCategory.BENIGN
"""Of what is tried again by design: the SDK need not log a traceback of it."""


def as_failure(error: CommitlineError) -> ApplicationError:
    """Return the failure that Temporal retries, or does not, as the error says of itself."""
    details = (STOPPING,) if isinstance(error, RunNotRunning) and error.stopping else ()
    return ApplicationError(
        scrub(str(error)),
        *details,
        type=type(error).__name__,
        non_retryable=not error.retryable,
        next_retry_delay=timedelta(seconds=1) if isinstance(error, LedgerUnavailable) else None,
        category=_BENIGN if error.retryable else ApplicationErrorCategory.UNSPECIFIED,
    )


def again(kind: str, told: str, *, delay: timedelta) -> ApplicationError:
    """Return the failure after which Temporal starts another attempt, when ``delay`` is over."""
    return ApplicationError(told, type=kind, next_retry_delay=delay, category=_BENIGN)


def not_started(reason: str) -> ApplicationError:
    """Return the failure by which the workflow of ours starts a call afresh."""
    return ApplicationError(scrub(reason), type=NOT_STARTED, non_retryable=True, category=_BENIGN)
