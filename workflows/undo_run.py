"""`UndoRun`: undoes an ended run, because a person wants it undone.

Its id is ``undo:<run key>``, so only one undo of a run works at a time. What an earlier undo could
not undo is tried again; what is undone stays undone.
"""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.encoding import pack, unpack
    from ..activities.contract.undo import UNDO_RUN, UndoRequest
    from ..ledger.undo_rules import UndoReport
    from .activity_calls import despite_cancellation
    from .progress import Progress
    from .run_end import run_failure
    from .undo import Undo


@workflow.defn(name=UNDO_RUN)
class UndoRun:
    """The undo of one ended run; see the module."""

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """Undo it; input `UndoRequest`, result `UndoReport`, both as JSON."""
        given = unpack(UndoRequest, raw)
        progress = Progress(agent="undo", prompt=given.run_key)
        undo = Undo(given.run_key, progress)
        try:
            report = await despite_cancellation(undo.run(given.why, failed=False, again=True))
        except ActivityError as err:
            raise run_failure(err) from err
        progress.state = "done"
        workflow.set_current_details(progress.markdown())
        return pack(report or UndoReport("nothing to undo", []))
