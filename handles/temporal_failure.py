"""What Temporal's errors mean to the caller who starts a run, or waits for one."""

from __future__ import annotations

import asyncio
from typing import Final

from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOutError
from temporalio.service import RPCError, RPCStatusCode

from .. import errors
from ..activities.contract.activity_failure import ErrorFields
from ..canonical import scrub
from ..errors import CommitlineError, ConfigurationError, RunFailed, RunNotFound

LEFT_UNANSWERED: Final = "AcceptedUpdateCompletedWorkflow"
"""Temporal's type of the failure of an update whose workflow ended first."""


def refused(id: str, error: RPCError) -> CommitlineError:
    """Return what a failed call to the Temporal server means for a run."""
    if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
        return RunNotFound(f"no run has the id {id!r}")
    text = scrub(error.message, limit=300)
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return RunFailed(f"Temporal refused the run {id!r}: {text}")
    return ConfigurationError(f"Temporal did not answer for the run {id!r}: {text}")


def raise_if_cancelled(error: WorkflowUpdateRPCTimeoutOrCancelledError) -> None:
    """Raise the caller's cancellation, where that ended the call; else the server did not answer.

    The SDK makes one error of both, which `asyncio.timeout` does not take for its own.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from error


def ended_badly(id: str, cause: BaseException) -> CommitlineError:
    """Return what the failure of a run, or of a request to it, is for its caller."""
    match cause:
        case ApplicationError():
            failed = RunFailed(f"the run {id!r} failed: {cause.type}: {cause.message}")
            return _error_of(cause) or failed
        case CancelledError():
            return RunFailed(f"the run {id!r} was canceled")
        case TerminatedError():
            return RunFailed(f"the run {id!r} was terminated")
        case TimedOutError():
            return RunFailed(f"the run {id!r} timed out")
    return RunFailed(f"the run {id!r} failed: {cause}")


def _error_of(failure: ApplicationError) -> CommitlineError | None:
    """Return the error of ours that a failure carries; None where it is an application's own."""
    kind = getattr(errors, failure.type or "", None)
    if not isinstance(kind, type) or not issubclass(kind, CommitlineError):
        return None
    fields = ErrorFields.read(failure)
    error = kind(failure.message if fields is None else fields.message)
    if fields is not None:
        error.remedy = fields.remedy  # what was undone of the run may have changed it
    return error
