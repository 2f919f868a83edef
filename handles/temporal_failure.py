"""What Temporal's errors mean for whoever started a run or waits for it."""

from __future__ import annotations

from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as TimedOutError
from temporalio.service import RPCError, RPCStatusCode

from .. import errors
from ..activities.contract.undo import UNDONE
from ..canonical import scrub
from ..errors import CommitlineError, ConfigurationError, RunFailed, RunNotFound


def refused(id: str, error: RPCError) -> CommitlineError:
    """Return what a failed call to the Temporal server means for a run."""
    if error.status is RPCStatusCode.NOT_FOUND and "namespace" not in error.message.lower():
        return RunNotFound(f"no run has the id {id!r}")
    text = scrub(error.message, limit=300)
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return RunFailed(f"Temporal refused the run {id!r}: {text}")
    return ConfigurationError(f"Temporal did not answer for the run {id!r}: {text}")


def ended_badly(id: str, cause: BaseException) -> CommitlineError:
    """Return what the failure of a run, or of a request to it, is for its caller."""
    if isinstance(cause, ApplicationError):
        kind = getattr(errors, cause.type or "", None)
        text = cause.message
        if isinstance(kind, type) and issubclass(kind, CommitlineError):
            # The message carries code and remedy already; the class adds its own.
            made = kind(text.split(f" [{kind.code}]")[0])
            if UNDONE in cause.details:
                made.remedy = (
                    "`commitline undo RUN` tries again what stands."
                    if "partly compensated" in cause.details
                    else "What can be undone of it is undone."
                )
            return made
        return RunFailed(f"the run {id!r} failed: {cause.type}: {text}")
    told = {
        CancelledError: "was canceled",
        TerminatedError: "was terminated",
        TimedOutError: "timed out",
    }
    for kind, text in told.items():
        if isinstance(cause, kind):
            return RunFailed(f"the run {id!r} {text}")
    return RunFailed(f"the run {id!r} failed: {cause}")
