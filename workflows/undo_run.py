"""`UndoRun`: undoes an ended run because a person wants it, or goes on for a run that failed.

Its id is ``undo:<run key>``, so only one undo of a run works at a time. What an earlier undo could
not undo is tried again; what is undone stays undone.
"""

from __future__ import annotations

from dataclasses import replace

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, WorkflowAlreadyStartedError

from ..activities.contract.encoding import pack, unpack
from ..activities.contract.undo import UNDO_RUN, UndoRequest
from ..identity import undo_workflow
from ..ledger.undo_rules import UndoReport
from ..shown import markdown_line
from .activity_calls import despite_cancellation
from .list_state import ListState, list_state, show
from .progress import Progress
from .run_end import run_failure
from .run_input import TASK_TIMEOUT
from .undo import Undo


@workflow.defn(name=UNDO_RUN, sandboxed=False)
class UndoRun:
    """The undo of one ended run; see the module."""

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """Undo it; input `UndoRequest`, result `UndoReport`, both as JSON."""
        given = unpack(UndoRequest, raw)
        progress, listed = Progress(agent="undo", prompt=given.run_key), ListState()
        list_state.set(listed)
        undo = Undo(
            given.run_key,
            progress,
            elsewhere=_continue_as_new,
            so_far=given.so_far,
            own=listed,
        )
        if given.so_far is None:
            work = undo.run(given.why, failed=False, again=True)
        else:
            work = undo.go_on(given.why, after=given.after)
        try:
            report = await despite_cancellation(work)
        except ActivityError as err:
            raise run_failure(err) from err
        progress.state = "done"
        show(progress)
        listed.end(progress, report)
        return pack(report or UndoReport("nothing to undo", []))


async def undo_in_child(request: UndoRequest) -> UndoReport | None:
    """Have a child workflow go on with the undo; return its report, or None if one is at work.

    It goes on if its parent is terminated: an undo that has begun is brought to its end.
    """
    given = replace(request, after=workflow.info().workflow_id)
    try:
        answer: RawValue = await workflow.execute_child_workflow(
            UNDO_RUN,
            pack(given),
            id=undo_workflow(request.run_key),
            result_type=RawValue,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            task_timeout=TASK_TIMEOUT,
            static_summary=markdown_line(f"Undo {request.run_key}"),
        )
    except WorkflowAlreadyStartedError:
        return None
    return unpack(UndoReport, answer)


async def _continue_as_new(request: UndoRequest) -> UndoReport | None:
    workflow.continue_as_new(pack(request))
