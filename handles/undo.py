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
from temporalio.exceptions import TerminatedError
from temporalio.service import RPCError

from ..activities.runs.left_workflows import is_polled, left
from ..activities.runs.undo_start import start_undo
from ..canonical import scrub
from ..errors import RunGone, UndoRefused
from ..identity import RunKey
from ..ledger import Run, UndoReport
from .connection import Connection
from .executions import check_readable
from .run_workflow import RunWorkflow, first_of, run_key_of
from .temporal_failure import ended_badly, refused

NO_REASON: Final = "no reason given"


async def undo(connection: Connection, workflow: RunWorkflow, *, reason: str) -> UndoReport:
    """Undo what an ended run did; see `AnyRun.undo`."""
    why = scrub(reason or NO_REASON, limit=1_000)
    try:
        described = await workflow.describe()
    except RunGone:
        return await _undo_gone(connection, workflow, why)
    await check_readable(connection.temporal, described)
    run_key = await run_key_of(described)
    ledger = await connection.ledger()
    found = await ledger.runs.get(run_key)
    if described.status is WorkflowExecutionStatus.RUNNING:
        await _end_if_left(connection, workflow.id, found)
    if found is None:
        await workflow.check_recorded(run_key)
        return await ledger.undo.report(run_key)  # it was never opened: it did nothing
    if found.state == "running":
        # It was terminated, or timed out, and could not say so; no reset takes it up now.
        await ledger.runs.stop(
            run_key, workflow_id=workflow.id, agent="", reason=why, attempt_at=described.start_time
        )
    reported = await _run_undo(connection, workflow.id, run_key, why, described.task_queue)
    return _with_reasons(await ledger.undo.report(run_key), reported)


async def _undo_gone(connection: Connection, workflow: RunWorkflow, why: str) -> UndoReport:
    """Undo a run that only the ledger has, on the client's task queue.

    Raises:
        UndoRefused: The ledger has it as running. Nobody has said that its workflow has ended: it
            may be one of another cluster, to which this client is not connected.
    """
    run = await workflow.recorded()
    if run is None or run.state == "running":
        raise UndoRefused(
            f"the run {workflow.id!r} is open in the ledger, and Temporal has no workflow of it"
        )
    queue = connection.settings.task_queue
    reported = await _run_undo(connection, workflow.id, run.run_key, why, queue)
    ledger = await connection.ledger()
    return _with_reasons(await ledger.undo.report(run.run_key), reported)


async def _end_if_left(connection: Connection, id: str, run: Run | None) -> None:
    """End the workflow of a stopped run that no worker will ever end.

    Raises:
        UndoRefused: The run goes on, or a worker is there to end it.
    """
    try:
        found = await left(connection.temporal, id)
        if run is None or run.stopped_at is None or found is None:
            raise UndoRefused(f"the run {id!r} is running")
        await found.terminate(reason="commitline: it is undone, and no worker polls its task queue")
    except RPCError as err:
        raise refused(id, err) from err


async def _queue_of_workers(connection: Connection, own: str) -> str:
    """Return where a run is undone: its own task queue, or the client's if no worker polls that.

    The workers of its own queue serve its tools, whatever queue the client has.
    """
    if await is_polled(connection.temporal, own):
        return own
    return connection.settings.task_queue


async def _run_undo(
    connection: Connection, id: str, run_key: RunKey, why: str, own_queue: str
) -> UndoReport:
    """Start the workflow that undoes a run, or join it, and wait for its report."""
    try:
        queue = await _queue_of_workers(connection, own_queue)
        undoing = await start_undo(connection.temporal, run_key, why, name=id, task_queue=queue)
        return await _report_of(connection, undoing.id, undoing.first_execution_run_id)
    except RPCError as err:
        raise refused(id, err) from err


async def _report_of(connection: Connection, id: str, first: str | None) -> UndoReport:
    """Wait for the report of an undo, also from another workflow that the relay puts in its place.

    The relay does so where no worker polls the task queue of the first one any more.
    """
    while True:
        try:
            return await RunWorkflow(connection, id, first=first).result(UndoReport)
        except WorkflowFailureError as err:
            newest = first_of(await RunWorkflow(connection, id).describe())
            if newest == first or not isinstance(err.cause, TerminatedError):
                raise ended_badly(id, err.cause) from err
            first = newest


def _with_reasons(report: UndoReport, reported: UndoReport) -> UndoReport:
    """Add why each action still stands, which only the workflow that tried its undo knows."""
    why = {fate.key: fate.why for fate in reported.standing}
    actions = [
        replace(fate, why=why.get(fate.key, fate.why)) if fate.fate == "stands" else fate
        for fate in report.actions
    ]
    return replace(report, actions=actions)
