"""A call that a sub-agent carries out, as a child workflow with a run of its own.

    begin: give the run to the child that starts next, after the older child has ended
    start the child, wait for its end, reply with its answer
    it gave no whole answer: close its run, reply with what it said and what stands of it

The child's run key is the parent's run key and the position of the call, whichever workflow
carries it out. So the turns and actions of a reset parent's child are read back, as the parent's
own are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)
from temporalio.exceptions import TimeoutError as TimedOutError

from ..activities.contract.activity_failure import passed_on
from ..activities.contract.conversation import RunResult
from ..activities.contract.deadlines import UNSET, RunLimits
from ..activities.contract.encoding import pack, unpack
from ..activities.contract.reply import Reply
from ..activities.contract.runs import AGENT_RUN
from ..activities.contract.spec import ToolSpec
from ..activities.contract.sub_agents import (
    BEGIN_SUB_AGENT,
    END_SUB_AGENT,
    BeginSubAgent,
    BegunSubAgent,
    EndSubAgent,
    prompt_in,
)
from ..activities.replies import call_reply
from ..canonical import scrub
from ..errors import InvalidArguments, PlanDivergence
from ..identity import Position
from ..shown import markdown_line
from .action_headers import MEMO_RUN_KEY, this_run
from .activity_calls import raise_if_cancelled, run_ledger_activity
from .run_input import TASK_TIMEOUT, RunInput

_STARTS: Final = 3


async def run_sub_agent(
    tool: ToolSpec,
    at: Position,
    requested: str,
    *,
    limits: RunLimits,
    content_limit: int,
    started: Callable[[str], None],
) -> Reply:
    """Have an agent carry a call out; return the reply for the calling model.

    Args:
        tool: The agent, as the run remembers it.
        at: The position of the call.
        requested: Its arguments (JSON text).
        limits: The limits of the calling run; its run_deadline does not count for the child.
        content_limit: Characters of the answer that travel.
        started: Called with the child's workflow id.
    """
    try:
        prompt = prompt_in(tool.definition.name, requested)
    except InvalidArguments as err:
        return call_reply.refused(err)
    given = RunInput(tool.agent, prompt, replace(limits, run_deadline=UNSET))
    begin = BeginSubAgent(this_run(), at, tool.agent, given.digest)
    try:
        answer = await _child_result(begin, given, started)
    except ChildWorkflowError as err:
        raise_if_cancelled()
        return await _close_child(begin, _reason(err))
    raise_if_cancelled()
    if answer is None:
        return await _close_child(begin, "it gave none before")
    result = unpack(RunResult, answer)
    if result.lacks:
        said = f"{result.lacks}; it said: {result.output}" if result.output else result.lacks
        return await _close_child(begin, scrub(said, limit=1_000))
    return call_reply.sub_agent_answered(
        result.output, structured=tool.structured, limit=content_limit
    )


async def _child_result(
    begin: BeginSubAgent, given: RunInput, started: Callable[[str], None]
) -> RawValue | None:
    """Return the child's result; None if its run was closed without one before a reset."""
    summary = markdown_line(f"Begin {begin.agent}, for the call at {begin.position}")
    for start in range(_STARTS):
        raise_if_cancelled()
        begun = await run_ledger_activity(BegunSubAgent, BEGIN_SUB_AGENT, begin, summary)
        if begun.closed:
            return None
        started(begun.workflow_id)
        try:
            answer: RawValue = await workflow.execute_child_workflow(
                AGENT_RUN,
                pack(given),
                id=begun.workflow_id,
                result_type=RawValue,
                # The parent must not end, or stop, before the child's tools have ended.
                cancellation_type=workflow.ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
                # If the parent is terminated, the child can still close its run.
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                task_timeout=TASK_TIMEOUT,
                memo={MEMO_RUN_KEY: begin.sub_run},
                static_summary=markdown_line(f"{given.agent}: {given.prompt}"),
            )
            return answer
        except WorkflowAlreadyStartedError:
            # A reset to between begin and start: an earlier execution of the parent began it.
            # Begin again: the id is of this execution then, and the older child is ended first.
            if start == _STARTS - 1:
                raise
    raise AssertionError("it was started, or not")


async def _close_child(begin: BeginSubAgent, reason: str) -> Reply:
    """Close the run of a child that gave no answer; return the reply."""
    end = EndSubAgent(begin.run_key, begin.position, reason)
    summary = markdown_line(f"Close the run of {begin.agent}, which gave no answer")
    return await run_ledger_activity(Reply, END_SUB_AGENT, end, summary)


def _reason(error: ChildWorkflowError) -> str:
    match error.cause:
        case ApplicationError() as cause if cause.type == PlanDivergence.__name__:
            # The plan of this run diverged, one level down: the run fails, and no model reads it.
            raise passed_on(cause, final=True) from error
        case ApplicationError() as cause:
            return scrub(f"{cause.type}: {cause.message}", limit=1_000)
        case CancelledError():
            return "it was stopped"
        case TerminatedError():
            return "it was terminated"
        case TimedOutError():
            return "it was timed out"
    return scrub(str(error.cause or error), limit=1_000)
