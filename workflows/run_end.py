"""What the error means that a run ends with: a stop or a failure, and whether to undo the run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    is_cancelled_exception,
)

from ..activities.contract.activity_failure import ErrorFields, passed_on
from ..activities.contract.turns import RUN_LOST
from ..canonical import scrub
from ..errors import (
    Fenced,
    ModelUnavailable,
    NodeTimeout,
    RunNotRunning,
    StaleThread,
    ThreadDeleted,
    ThreadNotFound,
)
from ..identity import parent_of
from .action_headers import this_run
from .activity_calls import cancelled

_STOP_WAIT: Final = timedelta(seconds=10)
"""How long a run that may start nothing waits for the cancellation that follows a stop."""
_STANDS: Final = (
    StaleThread.__name__,
    ThreadDeleted.__name__,
    ThreadNotFound.__name__,
    Fenced.__name__,
    RunNotRunning.__name__,
    RUN_LOST,
)
"""The types of failures after which what the run did stands."""


def is_stop(error: BaseException) -> bool:
    """Whether the run was stopped. What an activity makes of a cancellation is no failure."""
    if is_cancelled_exception(error) or _found_stopping(error):
        return True
    return isinstance(error, ActivityError) and cancelled()


def undo_reason(error: BaseException) -> str | None:
    """Return why the run must be undone, for people; None if it must not.

    Of a run that was stopped the ledger knows whether the stop said so, and of an undo that had
    begun, whether this workflow goes on with it.
    """
    if is_stop(error):
        return "it was stopped"
    if is_undoing(error):
        return "its undo had begun"
    if parent_of(this_run()) is not None:
        return None  # the parent's undo includes it
    if not isinstance(error, FailureError):
        return None  # a fault of this code fails the workflow task; once mended, the run goes on
    if is_refused(error) or _is_retried(error):
        return None
    return f"it failed: {_text_of(error)}"


async def final_error(error: BaseException) -> BaseException:
    """Return the error that the run ends with, of the error that ended its work."""
    if not isinstance(error, ActivityError):
        return error
    if is_cancelled_exception(error) or cancelled():
        return asyncio.CancelledError()
    if _found_stopping(error):
        # A stop is committed before the cancellation is sent: the cancellation will come.
        try:
            await workflow.sleep(_STOP_WAIT)
        except asyncio.CancelledError as stopped:
            return stopped
    return run_failure(error)


def is_undoing(error: BaseException) -> bool:
    """Whether an activity found that an undo of the run had begun: its history was reset."""
    fields = _fields_of(error)
    return fields is not None and fields.undoing


def _found_stopping(error: BaseException) -> bool:
    """Whether an activity found that the run is being stopped."""
    fields = _fields_of(error)
    return fields is not None and fields.stopping


def _fields_of(error: BaseException) -> ErrorFields | None:
    return ErrorFields.read(error.cause) if isinstance(error, ActivityError) else None


def _text_of(error: BaseException) -> str:
    """Return what happened, without the remedy, which says that everything stands."""
    cause = (error.cause if isinstance(error, ActivityError) else None) or error
    fields = ErrorFields.read(cause)
    if fields is None or not isinstance(cause, ApplicationError):
        return scrub(str(cause), limit=500)
    return scrub(f"{cause.type}: {fields.message}", limit=500)


def is_refused(error: BaseException) -> bool:
    """Whether the ledger let the run go no further. What it did stands then, although it failed.

    Another workflow has the run or its conversation, and goes on with what it did. Or the ledger
    has lost a part of that, and an undo could reach the rest alone. Or a person has deleted the
    conversation: that says nothing of what the run did.
    """
    cause = error.cause if isinstance(error, ActivityError) else error
    return isinstance(cause, ApplicationError) and cause.type in _STANDS


def _is_retried(error: BaseException) -> bool:
    """Whether the workflow's retry policy starts the run again after this failure."""
    policy, attempt = workflow.info().retry_policy, workflow.info().attempt
    if policy is None or (policy.maximum_attempts and attempt >= policy.maximum_attempts):
        return False
    ends = run_failure(error) if isinstance(error, ActivityError) else error
    if not isinstance(ends, ApplicationError):
        return True
    return not (ends.non_retryable or ends.type in (policy.non_retryable_error_types or ()))


def run_failure(error: ActivityError) -> BaseException:
    """Return what the run ends with: the activity's own failure, by its type.

    Final, but for a model that could not answer: a retry policy of the workflow mends that,
    and finds everything before that turn recorded.
    """
    cause = error.cause
    if not isinstance(cause, ApplicationError):
        return cause or error
    final = cause.type not in (ModelUnavailable.__name__, NodeTimeout.__name__)
    return passed_on(cause, final=final)
