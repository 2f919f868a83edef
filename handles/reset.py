"""A reset: a run goes back to a model turn, or to a stage of its plan, and on from there.

A *reset* replays the plan: the run reads back the completions that are on record, and a call
that is done returns what it returned. It helps after a fault that has been mended since, such
as a bug of a worker or a missing tool.

A *fork* goes another way: from that turn on the run makes new model requests, in which the model
reads what already took effect. The conversation from there on is taken back. What is done
stands, under the positions of its epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from ..canonical import parse, scrub
from ..errors import ResetRefused, RunNotFound
from ..identity import Position, RunKey, is_from, position_below, position_in_parent, step_of
from ..ledger import Action, ActionLedger, Run
from ..ledger.run_rules import check_not_stopped
from ..ledger.thread_rules import check_goes_back
from .executions import describe_execution

_ALL: Final = 1_000_000
_LOCAL_ACTIVITY: Final = "core_local_activity"
"""The name of the SDK's markers."""
_MODEL_TURN: Final = "{step}.model"
"""The activity id of a model turn."""


@dataclass(frozen=True)
class Reset:
    """A run that was taken back to a model turn."""

    id: str
    """The workflow id."""
    run_id: str
    """The new execution."""
    step: int
    """The model turn, or a plan's stage, from which it goes on."""
    epoch: int
    """The run's epoch from there on; a fork opens the next one."""
    read_back: Sequence[int]
    """The model turns from there on that are on record: the run reads their completions back,
    without a model request. Empty after a fork."""
    actions: Sequence[Action]
    """The run's actions in the ledger from that turn on. After a reset a call that is done
    returns what it returned. After a fork the model reads which of them took effect."""


async def reset_run(
    client: Client, ledger: ActionLedger, run_key: RunKey, *, step: int, fork: bool, reason: str
) -> Reset:
    """Take a run back to just before a model turn.

    Safe to repeat: a fork that was opened and not gone on with is not opened again.

    Args:
        client: Where the run is.
        ledger: Where its record is.
        run_key: The run.
        step: The model turn, or a plan's stage, as in its positions: 0 is the first.
        fork: Whether the run makes new model requests from there on.
        reason: For people; kept in history.

    Raises:
        RunNotFound: The ledger does not have it.
        ResetRefused: It was stopped for good, or has no such turn.
        StaleThread: Another run has written its conversation since.
    """
    run = await ledger.runs.get(run_key)
    if run is None:
        raise RunNotFound(f"the ledger has no run {run_key}")
    await _check(ledger, run)
    if fork and _is_plan(run):
        raise ResetRefused(f"{run.workflow_id!r} is a plan: its steps are given, no other way goes")
    execution, event_id = await _before_turn(client, run, step)
    epoch = await ledger.threads.fork(run_key, step) if fork else run.epoch
    read_back = [] if fork else await _recorded_turns(ledger, run, step)
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.workflow_id, run_id=execution),
            reason=scrub(reason, limit=500),
            request_id=str(uuid4()),
            workflow_task_finish_event_id=event_id,
        )
    )
    if fork:
        await _end_what_was_called(client, ledger, run, step)
    return Reset(
        id=run.workflow_id,
        run_id=answer.run_id,
        step=step,
        epoch=epoch,
        read_back=read_back,
        actions=[
            one
            for one in await ledger.sub_runs.actions(run_key, limit=_ALL)
            if is_from(position_below(run_key, one.run_key) or one.position, step)
        ],
    )


async def _end_what_was_called(client: Client, ledger: ActionLedger, run: Run, step: int) -> None:
    """Cancel the sub-agents that the run began after the turn to which a fork goes back.

    They can claim nothing any more. After a plain reset this is not needed: the call that began
    a sub-agent begins it again, and ends the former one first.
    """
    for below in await ledger.sub_runs.below(run.run_key):
        at = position_in_parent(below.run_key)
        if below.parent_key == run.run_key and at is not None and is_from(at, step):
            try:
                await client.get_workflow_handle(below.workflow_id).cancel(reason="forked")
            except RPCError as err:
                if err.status is not RPCStatusCode.NOT_FOUND:  # it has ended
                    raise


async def _check(ledger: ActionLedger, run: Run) -> None:
    thread = None if run.thread_id is None else await ledger.threads.get(run.thread_id)
    if thread is None:
        check_not_stopped(run)  # a plan's: it writes no conversation
    else:
        check_goes_back(run, thread)


async def _before_turn(client: Client, run: Run, step: int) -> tuple[str, int]:
    """Return the execution in which a turn began, and the event before it to go back to."""
    described = await describe_execution(client, run.workflow_id)
    execution = described.run_id
    first = described.raw_description.workflow_execution_info.first_run_id or execution
    if run.run_key != f"{run.workflow_id}/{first}":
        raise ResetRefused(f"another run has the id {run.workflow_id!r} by now")
    while True:
        handle = client.get_workflow_handle(run.workflow_id, run_id=execution)
        history = await handle.fetch_history()
        event_id = _scheduled_after(history, step)
        if event_id is not None:
            return execution, event_id
        started = history.events[0].workflow_execution_started_event_attributes
        execution = started.continued_execution_run_id
        if not execution:
            what = "stage" if _is_plan(run) else "model turn"
            raise ResetRefused(f"the run {run.workflow_id!r} has no {what} {step} in its history")


def _is_plan(run: Run) -> bool:
    """Whether its steps were given, by a plan: it writes no conversation."""
    return run.thread_id is None and run.spec is not None


def _scheduled_after(history: WorkflowHistory, step: int) -> int | None:
    """Return the end of the workflow task that began a model turn, or a plan's stage.

    A workflow task of local activities takes several turns. The earlier ones of them are on record:
    they are read back.
    """
    for event in history.events:
        at, task = _activity_of(event)
        if at == _MODEL_TURN.format(step=step) or step_of(Position(at)) == step:
            return task
    return None


def _activity_of(event: HistoryEvent) -> tuple[str, int]:
    """Return the id of the activity that an event begins, and the end of its workflow task.

    Of a local one, history has the end only, as a marker of the SDK's core.
    """
    if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        scheduled = event.activity_task_scheduled_event_attributes
        return scheduled.activity_id, scheduled.workflow_task_completed_event_id
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != _LOCAL_ACTIVITY:
        return "", 0
    told = parse(marker.details["data"].payloads[0].data.decode("utf-8"))
    return str(told["activity_id"]), marker.workflow_task_completed_event_id


async def _recorded_turns(ledger: ActionLedger, run: Run, step: int) -> list[int]:
    if run.thread_id is None:
        return []
    messages = await ledger.threads.messages(run.thread_id)
    return [
        one.step
        for one in messages
        if one.role == "assistant" and one.run_key == run.run_key and one.step >= step
    ]
