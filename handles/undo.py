"""Undoing what a run did, after it has ended.

The undo is a workflow of its own, ``undo:<run key>``, so one is at work at a time. Whoever wants
the same undo meanwhile waits for that one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError

from ..activities.contract.encoding import pack, unpack
from ..activities.contract.undo import UndoRequest
from ..canonical import scrub
from ..errors import UndoRefused
from ..identity import RunKey, undo_workflow
from ..ledger import UndoReport
from ..shown import markdown_line
from ..workflows import UNDO_RUN
from .connection import Connection
from .run_workflow import RunWorkflow, run_key_of
from .temporal_failure import ended_badly, refused

NO_REASON: Final = "no reason given"


async def undo(connection: Connection, workflow: RunWorkflow, *, reason: str) -> UndoReport:
    """Undo what an ended run did; see `AnyRun.undo`."""
    described = await workflow.describe()
    run_key = await run_key_of(described)
    if described.status is WorkflowExecutionStatus.RUNNING:
        raise UndoRefused(f"the run {workflow.id!r} is running")
    ledger = await connection.ledger()
    why = scrub(reason or NO_REASON, limit=1_000)
    found = await ledger.runs.get(run_key)
    if found is None:
        return await ledger.undo.report(run_key)  # it was never opened: it did nothing
    if found.state == "running":
        # It was terminated, or timed out, and could not say so; no reset takes it up now.
        await ledger.runs.stop(
            run_key, workflow_id=workflow.id, agent="", reason=why, attempt_at=described.start_time
        )
    reported = await _run_undo(connection, workflow.id, run_key, why)
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
            static_summary=markdown_line(f"Undo {id}"),
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
