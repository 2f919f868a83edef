"""Stopping a run for good.

A stop is committed in the ledger before the workflow hears of it: from then on no attempt
claims anything for the run.
"""

from __future__ import annotations

from typing import Final

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from ..errors import RunGone
from ..identity import check_any_workflow_id
from .connection import Connection
from .run_workflow import LIVE, RunWorkflow, is_ours, run_key_of, state_of
from .temporal_failure import refused
from .undo import NO_REASON, undo

_MAY_GO_ON: Final = (
    WorkflowExecutionStatus.RUNNING,
    WorkflowExecutionStatus.TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT,
)
"""A reset would start such a run again, and the relay send its intents: the stop of it must be
in the ledger, too."""


async def stop(
    connection: Connection,
    workflow: RunWorkflow,
    *,
    reason: str,
    compensate: bool,
    wait_seconds: float,
) -> RunWorkflow:
    """Stop a run for good; see `AnyRun.stop`. Returns the workflow of the run that was stopped."""
    check_any_workflow_id(workflow.id)
    try:
        described = await workflow.describe()
    except RunGone:
        await _stop_gone(connection, workflow, reason=reason, compensate=compensate)
        return workflow
    has_ended = described.status not in _MAY_GO_ON
    if has_ended and not await _goes_on_below(connection, described):
        return workflow
    await (await connection.ledger()).runs.stop(
        await run_key_of(described),
        workflow_id=workflow.id,
        agent="",
        reason=reason or NO_REASON,
        attempt_at=described.start_time,
        compensate=compensate,
        namespace=connection.temporal.namespace,
    )
    this = workflow.only(described)
    if has_ended and compensate:
        await _undo_if_ended(connection, this, reason)
    if described.status is not WorkflowExecutionStatus.RUNNING:
        return this
    try:
        await this.cancel(reason)
    except RPCError as err:
        if err.status is not RPCStatusCode.NOT_FOUND:  # it has just ended
            raise refused(workflow.id, err) from err
    await this.ended_within(wait_seconds)
    if compensate:
        await _undo_if_ended(connection, this, reason)
    return this


async def _goes_on_below(connection: Connection, described: WorkflowExecutionDescription) -> bool:
    """Whether an ended run of another framework's may act yet: a child may outlive its workflow."""
    if is_ours(described):
        return False
    run = await (await connection.ledger()).runs.get(await run_key_of(described))
    return run is not None and run.state in {"running", "stopping"}


async def _stop_gone(
    connection: Connection, workflow: RunWorkflow, *, reason: str, compensate: bool
) -> None:
    """Commit the stop of a run that only the ledger has, and its end: no workflow will do that.

    Where Temporal has it after all, as a replica may that lags, the run finds that it is over.
    """
    run = await workflow.recorded()
    if run is None or (run.state == "ended" and run.workflow_status in (None, "completed")):
        return  # it had ended by itself
    ledger = await connection.ledger()
    stopped = await ledger.runs.stop(
        run.run_key,
        workflow_id=run.workflow_id,
        agent="",
        reason=reason or NO_REASON,
        attempt_at=run.opened_attempt_at,
        compensate=compensate,
        namespace=connection.temporal.namespace,
    )
    if compensate:
        await undo(connection, workflow, reason=reason)
    elif stopped.state == "stopping":
        await ledger.relay.end_lost(
            stopped,
            workflow_status="not found",
            ended_at=stopped.now,
            can_look_up=stopped.can_look_up,
        )


async def _undo_if_ended(connection: Connection, workflow: RunWorkflow, reason: str) -> None:
    """Undo a run that was just ending, and so did not do it itself, as its stop wanted it."""
    described = await workflow.describe()
    if state_of(described) in LIVE:
        return
    run_key = await run_key_of(described)
    ledger = await connection.ledger()
    found = await ledger.runs.get(run_key)
    if found is None or found.undo_ended_at is not None:
        return
    if (await ledger.undo.report(run_key)).state == "partly compensated":
        await undo(connection, workflow, reason=reason)
