"""Stopping a run for good, and undoing what a run did.

A stop is committed in the ledger before the workflow hears of it: from then on no attempt
claims anything for the run. An undo of a run that has ended is a workflow of its own,
``undo:<run key>``, so one is at work at a time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.undo import UndoRequest
from ..activities.contract.wire import pack, unpack
from ..canonical import scrub
from ..errors import UndoRefused
from ..identity import RunKey, check_any_workflow_id, undo_workflow
from ..ledger import UndoReport
from ..workflows import UNDO_RUN
from .connection import Connection
from .run_workflow import RunWorkflow, run_key_of, state_of
from .temporal_failure import ended_badly, refused

_NO_REASON: Final = "no reason given"
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
    described = await workflow.describe()
    if described.status not in _MAY_GO_ON:
        return workflow
    ledger = await connection.ledger()
    await ledger.stop_run(
        await run_key_of(described),
        workflow_id=workflow.id,
        agent="",
        reason=reason or _NO_REASON,
        attempt_at=described.start_time,
        compensate=compensate,
        namespace=connection.temporal.namespace,
    )
    this = workflow.only(described)
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


async def _undo_if_ended(connection: Connection, workflow: RunWorkflow, reason: str) -> None:
    """Undo a run that was just ending, and so did not do it itself, as its stop wanted it."""
    described = await workflow.describe()
    if state_of(described) in ("running", "stopping"):
        return
    run_key = await run_key_of(described)
    ledger = await connection.ledger()
    found = await ledger.get_run(run_key)
    if found is None or found.undo_ended_at is not None:
        return
    if (await ledger.undo.report(run_key)).state == "partly compensated":
        await _undo(connection, described, run_key, reason)


async def undo(connection: Connection, workflow: RunWorkflow, *, reason: str) -> UndoReport:
    """Undo what an ended run did; see `AnyRun.undo`."""
    described = await workflow.describe()
    return await _undo(connection, described, await run_key_of(described), reason)


async def _undo(
    connection: Connection, described: WorkflowExecutionDescription, run_key: RunKey, reason: str
) -> UndoReport:
    workflow_id = described.id
    if described.status is WorkflowExecutionStatus.RUNNING:
        raise UndoRefused(f"the run {workflow_id!r} is running")
    ledger = await connection.ledger()
    why = scrub(reason or _NO_REASON, limit=1_000)
    found = await ledger.get_run(run_key)
    if found is None:
        return await ledger.undo.report(run_key)  # it was never opened: it did nothing
    if found.state == "running":
        # It was terminated, or timed out, and could not say so; no reset takes it up now.
        await ledger.stop_run(
            run_key, workflow_id=workflow_id, agent="", reason=why, attempt_at=described.start_time
        )
    reported = await _run_undo(connection, workflow_id, run_key, why)
    return _with_reasons(await ledger.undo.report(run_key), reported)


async def _run_undo(connection: Connection, id: str, run_key: RunKey, why: str) -> UndoReport:
    """Start the workflow that undoes a run, or join it, and wait for its report."""
    try:
        undoing = await connection.temporal.start_workflow(
            UNDO_RUN,
            pack(UndoRequest(run_key, why)),
            id=undo_workflow(run_key),
            task_queue=connection.settings.task_queue,
            result_type=RawValue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=scrub(f"Undo {id}", limit=150),
        )
        return unpack(UndoReport, await undoing.result())
    except WorkflowFailureError as err:
        raise ended_badly(undo_workflow(run_key), err.cause) from err
    except RPCError as err:
        raise refused(id, err) from err


def _with_reasons(report: UndoReport, reported: UndoReport) -> UndoReport:
    """Add why each action still stands, which only the workflow that tried its undo knows."""
    why = {fate.key: fate.why for fate in reported.standing}
    actions = [
        replace(fate, why=why.get(fate.key, fate.why)) if fate.fate == "stands" else fate
        for fate in report.actions
    ]
    return replace(report, actions=actions)
