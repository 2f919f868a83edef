"""Starts the workflow that undoes a run, for a person or for the relay."""

from __future__ import annotations

from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue, WorkflowIDConflictPolicy

from ...identity import RunKey, undo_workflow
from ...shown import markdown_line
from ..contract.encoding import pack
from ..contract.undo import UNDO_RUN, UndoRequest
from .left_workflows import left


async def start_undo(
    temporal: Client, run_key: RunKey, why: str, *, name: str, task_queue: str
) -> WorkflowHandle[Any, Any]:
    """Start the undo of a run, or join the one under way; one that is left is replaced.

    Safe to repeat: one such workflow is at work at a time, and the ledger says what is undone.

    Args:
        temporal: The cluster of the run.
        run_key: The run.
        why: Who wants it, and why.
        name: Of the run, for people.
        task_queue: Where it is undone.

    Raises:
        RPCError: Temporal is away, or refuses it.
    """
    joins = await left(temporal, undo_workflow(run_key)) is None
    policy = WorkflowIDConflictPolicy
    return await temporal.start_workflow(
        UNDO_RUN,
        pack(UndoRequest(run_key, why)),
        id=undo_workflow(run_key),
        task_queue=task_queue,
        result_type=RawValue,
        id_conflict_policy=policy.USE_EXISTING if joins else policy.TERMINATE_EXISTING,
        static_summary=markdown_line(f"Undo {name}"),
    )
