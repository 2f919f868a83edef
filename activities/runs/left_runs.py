"""Ends the workflows of runs that are left, and goes on with their undos.

A run that was stopped, or is being undone, goes forward no more. So the relay may end its workflow
where that is left (see `left_workflows`): the ledger says what is to be done.
"""

from __future__ import annotations

from temporalio.client import Client

from ...identity import undo_workflow
from ...ledger import ActionLedger, Run
from ...logs import Log
from .left_workflows import left
from .step_tools import StepTools
from .undo_start import start_undo

log = Log()


class LeftRuns:
    """The runs of a namespace that are stopping or being undone, and that nobody is at.

    Args:
        app: A run is undone here if all the tools are its that the undo may call.
        ledger: Over an open pool.
        temporal: The cluster of the runs.
        task_queue: Where they are undone.
    """

    def __init__(
        self, app: StepTools, ledger: ActionLedger, temporal: Client, *, task_queue: str
    ) -> None:
        self._tools = frozenset(made.name for made in app.tools)
        self._undo = ledger.undo
        self._temporal = temporal
        self._task_queue = task_queue

    async def take_over_if_left(self, run: Run) -> None:
        """End the workflow of a run that is left; go on with its undo. Safe to repeat.

        What a stopped run left dispatched is queued at the next look, as of any workflow that has
        ended. A run that is being undone is left to a worker that can bring that to its end.

        Raises:
            RPCError: Temporal does not say, or does not do it.
        """
        undoing = run.state == "undoing"
        at_it = (run.undo_owner if undoing else None) or run.workflow_id
        if run.state == "running" or at_it not in (run.workflow_id, undo_workflow(run.run_key)):
            return  # a sub-agent's that is undone with the run above it
        found = await left(self._temporal, at_it)
        undoes = undoing or run.compensate
        if found is None or (undoes and not self._tools >= await self._undo.tools(run.run_key)):
            return
        log.warning("relay.run_left", run_key=run.run_key, workflow_id=at_it, state=run.state)
        if at_it == run.workflow_id:
            await found.terminate(reason="commitline: no worker polls its task queue any more")
        if undoes:
            await start_undo(
                self._temporal,
                run.run_key,
                run.stop_reason or "",
                name=run.workflow_id,
                task_queue=self._task_queue,
            )
