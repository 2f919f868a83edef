"""What Temporal knows of the workflow that carries out a run: whether it goes on, how it ended.

Whether a run is gone is a question about the *current* execution of its workflow id. After a
reset the first execution reads as terminated while the run lives on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import Client

from ...identity import RunKey, undo_workflow
from ...ledger import ActionLedger, Run
from .left_workflows import described

_NOT_FOUND_AFTER: Final = timedelta(hours=1)
"""How old a run must be before it counts that Temporal does not know its workflow. A replica that
lags, or another cluster, does not know it either."""
_PREFIX: Final = "WORKFLOW_EXECUTION_STATUS_"


@dataclass(frozen=True)
class RunEnd:
    """How the workflow of a run ended, and when."""

    how: str
    at: datetime


class RunExecutions:
    """The workflow executions of runs, as a cluster describes them."""

    def __init__(self, temporal: Client, ledger: ActionLedger) -> None:
        self._temporal = temporal
        self._ledger = ledger

    async def end_of(self, run: Run) -> RunEnd | None:
        """Return how a run's workflow ended; None while the run goes on, or may go on."""
        if run.namespace not in (None, self._temporal.namespace):
            return None
        current = await self._describe(run.workflow_id)
        if current is not None and _is_of(current, run):
            end = _ended(current)
        else:
            end = await self._earlier_end(run)
        if end is not None and await self._waits_below(run):
            return None
        if end is None or run.state != "undoing":
            return end
        if await self._is_undone_now(run):
            return None
        # The run had ended well and was being undone: its undo is what was lost.
        return replace(end, how="undo lost") if end.how == "completed" else end

    async def _earlier_end(self, run: Run) -> RunEnd | None:
        """Return how a run ended whose workflow id another run has by now, or no run."""
        first = None
        if run.parent_key is None:  # a sub-agent's key names no execution
            first = await self._describe(run.workflow_id, run.run_key.rpartition("/")[2])
        if first is not None:
            # Its chain of executions has ended, or its id were not free. Only of the first
            # execution is it known how; that one may have gone on in others.
            end = _ended(first)
            return end if end is not None else RunEnd("ended", run.now)
        return RunEnd("not found", run.now) if run.now - run.created_at > _NOT_FOUND_AFTER else None

    async def _waits_below(self, run: Run) -> bool:
        """Whether a child of another framework's workflow waits for a person, and outlives it."""
        if run.state != "running" or run.spec is not None or run.parent_key is not None:
            return False
        waiting = await self._ledger.approvals.list(run.run_key)
        for child in {one.waiting_workflow for one in waiting} - {None, run.workflow_id}:
            found = await self._describe(str(child))
            if found is None or _ended(found) is not None:
                continue
            if await makes_calls_of(self._temporal, found, run.run_key):
                return True
        return False

    async def _is_undone_now(self, run: Run) -> bool:
        """Whether a workflow undoes an ended run now, or a run above it."""
        at: Run | None = run
        while at is not None:
            undoing = await self._describe(undo_workflow(at.run_key))
            if undoing is not None and _ended(undoing) is None:
                return True
            at = None if at.parent_key is None else await self._ledger.runs.get(at.parent_key)
            if at is not None:
                above = await self._describe(at.workflow_id)
                if above is not None and _is_of(above, at) and _ended(above) is None:
                    return True
        return False

    async def _describe(self, workflow_id: str, run_id: str = "") -> WorkflowExecutionInfo | None:
        """Return an execution, by default the *current* one of a workflow id."""
        found = await described(self._temporal, workflow_id, run_id)
        return None if found is None else found.workflow_execution_info


async def makes_calls_of(temporal: Client, found: WorkflowExecutionInfo, run: RunKey) -> bool:
    """Whether a workflow is a run's own, or a child below it; another one may have its id by now.

    True where Temporal has forgotten who began it: a child may outlive its parent by long.

    Raises:
        RPCError: Temporal does not say.
    """
    while _key(found) != run:
        above = found.parent_execution
        if not above.workflow_id:
            return False
        parent = await described(temporal, above.workflow_id, above.run_id)
        if parent is None:
            return True
        found = parent.workflow_execution_info
    return True


def _ended(found: WorkflowExecutionInfo) -> RunEnd | None:
    """Return how an execution ended; None if it goes on, in this execution or the next."""
    if not found.HasField("close_time"):
        return None
    name = WorkflowExecutionStatus.Name(found.status).removeprefix(_PREFIX).lower()
    if name == "continued_as_new":
        return None
    return RunEnd(name, found.close_time.ToDatetime().replace(tzinfo=UTC))


def _is_of(found: WorkflowExecutionInfo, run: Run) -> bool:
    """Whether a workflow is the run's own, and not a later one with the same id."""
    if run.parent_key is not None:
        return True  # its workflow's id names the parent's execution
    return run.run_key == _key(found)


def _key(found: WorkflowExecutionInfo) -> str:
    """Return what the run's key would be; not every workflow's id can be a run's."""
    return f"{found.execution.workflow_id}/{found.first_run_id or found.execution.run_id}"
