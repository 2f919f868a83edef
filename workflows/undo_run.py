"""`UndoRun`: takes back what an ended run did, because a person asks for it.

Its id is ``undo:<run key>``, so that one at a time is at it. What an earlier unwinding could not
undo is tried again; what is undone stays undone.
"""

from __future__ import annotations

from typing import Final

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.undo import UndoAgain
    from ..activities.contract.wire import pack, unpack
    from ..ledger.undo_rules import UndoReport
    from .activity_calls import see_through
    from .progress import Progress
    from .run_failure import run_failure
    from .undo import Undo

UNDO_RUN: Final = "UndoRun"


@workflow.defn(name=UNDO_RUN)
class UndoRun:
    """The undo of one ended run; see the module."""

    @workflow.run
    async def run(self, raw: RawValue) -> RawValue:
        """Undo it; input `UndoAgain`, result `UndoReport`, both as JSON."""
        given = unpack(UndoAgain, raw)
        progress = Progress(agent="undo", prompt=given.run_key)
        unwinding = Undo(given.run_key, progress)
        try:
            report = await see_through(unwinding.run(given.why, failed=False, again=True))
        except ActivityError as err:
            raise run_failure(err) from err
        progress.state = "done"
        workflow.set_current_details(progress.markdown())
        return pack(report or UndoReport("nothing to undo", []))
