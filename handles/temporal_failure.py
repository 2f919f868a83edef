"""What Temporal's errors mean to the caller who starts a run, or waits for one."""

from __future__ import annotations

import asyncio
from typing import Final

from temporalio.client import Client, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
)
from temporalio.exceptions import TimeoutError as TimedOutError
from temporalio.service import RPCError, RPCStatusCode

from .. import errors
from ..activities.contract.activity_failure import ErrorFields
from ..canonical import scrub
from ..errors import CommitlineError, ConfigurationError, RunFailed, RunNotFound
from .executions import describe_execution

LEFT_UNANSWERED: Final = "AcceptedUpdateCompletedWorkflow"
"""Temporal's type of the failure of an update whose workflow ended first."""
_MAY_END_A_WAIT: Final = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.UNKNOWN, RPCStatusCode.INTERNAL)
"""A lost connection is any of them, and an update that the server has aborted is the first."""


def refused(id: str, error: RPCError) -> CommitlineError:
    """Return what a failed call to the Temporal server means for a run."""
    if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
        return RunNotFound(f"no run has the id {id!r}")
    text = scrub(error.message, limit=300)
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return RunFailed(f"Temporal refused the run {id!r}: {text}")
    return ConfigurationError(f"Temporal did not answer for the run {id!r}: {text}")


async def only_the_wait_ended(temporal: Client, id: str, error: RPCError) -> bool:
    """Whether the server is there after all, so that a wait which failed may begin anew.

    The SDK tries a call again for ten seconds from its *begin*. So a call that has waited longer
    fails at the first lost connection. And it fails where the server aborts an update that no
    worker has seen yet; any call about the workflow that the server refuses (a late heartbeat,
    say) makes it do so.
    """
    if error.status not in _MAY_END_A_WAIT:
        return False
    try:
        await describe_execution(temporal, id)
    except RPCError as err:
        return err.status is RPCStatusCode.NOT_FOUND
    return True


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
    return RunFailed(f"the run {id!r} failed: {_inmost(cause)}")


def _inmost(failure: BaseException) -> BaseException:
    """Return what an activity, or a child, has failed with: its own words say too little."""
    while isinstance(failure, (ActivityError, ChildWorkflowError)) and failure.cause is not None:
        failure = failure.cause
    return failure


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
