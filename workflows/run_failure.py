"""What a run ends with, of what its activities ended with."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.activity_failure import passed_on
    from ..errors import ModelUnavailable, NodeTimeout


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
