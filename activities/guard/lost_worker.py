"""The next task of a workflow whose worker has died goes to any worker, and at once.

A worker keeps the workflows that it has run, so Temporal offers the next task of each to that
worker first, for a second (`worker.STICKY_SECONDS`). An attempt that follows one which was lost
with its worker ends that: the same worker, as a rule, had the workflow.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.service import RPCError

from ...logs import Log
from ..runner.attempt_notes import AttemptNotes

log = Log()

_ANSWER: Final = timedelta(seconds=1)
"""Longer than that would be no gain."""


async def offer_to_any_worker() -> None:
    """Do so if an attempt before the running one has not ended by itself. Safe to repeat.

    Where the worker lives after all, the workflow is rebuilt once from its history.
    """
    info = activity.info()
    if info.is_local or info.attempt - 1 <= AttemptNotes.read().ended:
        return
    request = ResetStickyTaskQueueRequest(
        namespace=info.workflow_namespace or "",
        execution=WorkflowExecution(
            workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""
        ),
    )
    try:
        await activity.client().workflow_service.reset_sticky_task_queue(request, timeout=_ANSWER)
    except RPCError as err:
        # Then the workflow goes on a second later.
        log.info("worker.loss_not_told", reason=err.message)
