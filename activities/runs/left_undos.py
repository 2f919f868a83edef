"""Moves undos that were ordered on a task queue that no worker polls, and that have not begun.

The ledger knows of an undo once that has begun: the sweep of the runs goes on with it then (see
`left_runs`). Before that only Temporal knows of it: a workflow `UndoRun` waits for its first task.
So this part of the sweep looks at the workflows that Temporal lists, on whatever task queue.
"""

from __future__ import annotations

import time
from typing import Final

from temporalio.client import Client, WorkflowExecution
from temporalio.common import RawValue
from temporalio.service import RPCError

from ...identity import undone_run
from ...ledger import ActionLedger, Run
from ...logs import Log
from ..contract.encoding import unpack
from ..contract.undo import UNDO_RUN, UndoRequest
from .left_workflows import is_polled, left
from .relay_batch import AT_ONCE, LONGEST_SECONDS, side_by_side
from .step_tools import StepTools
from .undo_start import start_undo

log = Log()

_LISTED: Final = 1_000
"""How many undos of other task queues a sweep looks at, at most: the newest."""


class LeftUndos:
    """The undos of a namespace that wait on task queues without workers.

    Args:
        app: An undo is moved here if all the tools are its that the undo may call.
        ledger: Over an open pool. Undos of runs that it does not know are another ledger's.
        temporal: The cluster of the undos.
        task_queue: Where they are moved to.
    """

    def __init__(
        self, app: StepTools, ledger: ActionLedger, temporal: Client, *, task_queue: str
    ) -> None:
        self._tools = frozenset(made.name for made in app.tools)
        self._ledger = ledger
        self._temporal = temporal
        self._task_queue = task_queue

    async def take_over(self) -> None:
        """Move the undos that wait where no worker polls, and have not begun. Safe to repeat.

        One of which Temporal says nothing now is left to the next look.
        """
        ends_at = time.monotonic() + LONGEST_SECONDS
        try:
            waiting = await self._waiting()
        except RPCError as err:
            log.warning("relay.undos_not_listed", reason=err.message[:200])
            return
        while waiting and time.monotonic() < ends_at:
            some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            await side_by_side([self._move_if_left(one) for one in some])

    async def _waiting(self) -> list[WorkflowExecution]:
        """Return the undos that go on on other task queues that no worker polls."""
        own = self._task_queue.replace("'", "''")
        query = (
            f"WorkflowType = '{UNDO_RUN}' AND ExecutionStatus = 'Running' AND TaskQueue != '{own}'"
        )
        found = [one async for one in self._temporal.list_workflows(query, limit=_LISTED)]
        queues = {one.task_queue for one in found}
        unpolled = {name for name in queues if not await is_polled(self._temporal, name)}
        return [one for one in found if one.task_queue in unpolled]

    async def _move_if_left(self, waiting: WorkflowExecution) -> bool:
        run_key = undone_run(waiting.id)
        try:
            run = None if run_key is None else await self._ledger.runs.get(run_key)
            return run is not None and await self._moved(waiting, run)
        except RPCError as err:
            log.warning("relay.look_failed", run_key=run_key, reason=err.message[:200])
            return False

    async def _moved(self, waiting: WorkflowExecution, run: Run) -> bool:
        if run.state == "undoing":
            return False  # it has begun, or another one has: the sweep of the runs sees to that
        undoing = await left(self._temporal, waiting.id)
        if undoing is None:
            return False
        if _is_over(waiting, run):
            await undoing.terminate(reason="commitline: over, and no worker is there to end it")
            return True
        if not self._tools >= await self._ledger.undo.tools(run.run_key):
            return False
        log.warning("relay.undo_left", run_key=run.run_key, task_queue=waiting.task_queue)
        await start_undo(
            self._temporal,
            run.run_key,
            await self._reason(waiting),
            name=run.workflow_id,
            task_queue=self._task_queue,
        )
        return True

    async def _reason(self, waiting: WorkflowExecution) -> str:
        """Return who ordered an undo, and why."""
        workflow = self._temporal.get_workflow_handle(waiting.id, run_id=waiting.run_id)
        async for event in workflow.fetch_history_events(page_size=1):
            given = event.workflow_execution_started_event_attributes.input.payloads
            (raw,) = await self._temporal.data_converter.decode(given, [RawValue])
            return unpack(UndoRequest, raw).why
        raise AssertionError("a history begins with the workflow's start")


def _is_over(waiting: WorkflowExecution, run: Run) -> bool:
    """Whether an undo has committed its end already, and only its workflow has not ended."""
    if run.state != "ended" or run.undo_owner != waiting.id or run.ended_attempt_at is None:
        return False
    return run.ended_attempt_at >= waiting.start_time
