"""Tells runs that Temporal has, and the ledger has no more, to look: the ledger was restored.

Such a run finds at its next step that the ledger does not know it, and ends by that name. One that
waits for a person has no next step for an hour or more. So it is told to look now.

The ledger loses runs only where it becomes another one: a standby, a restored copy, files that were
put back. All of these change its timeline (`commitline_timeline`), and so does a mere restart. So a
worker looks once after its own start and once after each such change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from ...identity import listed_run_key
from ...ledger import ActionLedger
from ...logs import Log
from ..contract.runs import AGENT_RUN, LOOK, PLAN_RUN
from .left_workflows import described
from .relay_batch import AT_ONCE, LONGEST_SECONDS, side_by_side

log = Log()

_OPEN: Final = f"WorkflowType IN ('{AGENT_RUN}', '{PLAN_RUN}') AND ExecutionStatus = 'Running'"
"""To which the task queue is added."""
_BEGUN: Final = 4
"""Events in the history of a run whose first task is done: only then can it be in the ledger."""


class MissingRuns:
    """The runs of a task queue that go on in Temporal, and that the ledger does not know.

    Args:
        ledger: Over an open pool. The runs of another task queue may be another ledger's.
        temporal: The cluster of the runs.
        task_queue: Of the runs.
    """

    def __init__(self, ledger: ActionLedger, temporal: Client, *, task_queue: str) -> None:
        self._runs = ledger.runs
        self._temporal = temporal
        self._task_queue = task_queue
        self._timeline: str | None = None
        """Of the ledger when all runs were looked at last."""

    async def tell(self) -> None:
        """Tell each such run to look, once for each timeline of the ledger. Safe to repeat.

        Where Temporal does not answer, or there is no time for all, the next sweep looks again.
        """
        timeline = await self._runs.timeline()
        if timeline == self._timeline:
            return
        try:
            if await self._tell_all():
                self._timeline = timeline
        except RPCError as err:
            log.warning("relay.runs_not_listed", reason=err.message[:200])

    async def _tell_all(self) -> bool:
        ends_at = time.monotonic() + LONGEST_SECONDS
        page: list[WorkflowExecution] = []
        own = self._task_queue.replace("'", "''")
        async for one in self._temporal.list_workflows(f"{_OPEN} AND TaskQueue = '{own}'"):
            page.append(one)
            if len(page) == AT_ONCE:
                await self._tell_some(page)
                page = []
            if time.monotonic() > ends_at:
                return False
        await self._tell_some(page)
        return True

    async def _tell_some(self, found: Sequence[WorkflowExecution]) -> None:
        named = [(one.id, listed_run_key(one.id, one.run_id)) for one in found]
        known = await self._runs.known(named)
        await side_by_side([self._tell_one(one.id) for one in found if one.id not in known])

    async def _tell_one(self, workflow_id: str) -> bool:
        """Tell a run to look, if the ledger does not know it by its first execution either."""
        found = await described(self._temporal, workflow_id)
        if found is None or found.workflow_execution_info.history_length < _BEGUN:
            return False
        info = found.workflow_execution_info
        key = listed_run_key(workflow_id, info.first_run_id or info.execution.run_id)
        if info.HasField("close_time") or await self._runs.get(key) is not None:
            return False
        log.error("relay.run_missing", run_key=key)
        try:
            await self._temporal.get_workflow_handle(workflow_id).signal(LOOK)
        except RPCError as err:
            if err.status is not RPCStatusCode.NOT_FOUND:  # it has ended meanwhile
                raise
        return True
