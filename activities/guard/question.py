"""A call that stops to put a question to a person.

The question is written down and the call's row becomes an intent again, in one transaction. The
workflow waits for the answer, holding no worker, and then has the call made again.
"""

from __future__ import annotations

import asyncio

from temporalio import activity

from ...crash import crash_point
from ...ledger import Action, ActionLedger, Dispatched, Question, QuestionRequest
from ..app.interrupt import is_interrupt
from ..app.tool_context import ToolContext
from ..runner.bounded_call import CallEnd, Raised
from .call import GuardedCall
from .ledger_write import finish


def is_question(end: CallEnd) -> bool:
    """Whether the call ended with its question. After its deadline it timed out instead."""
    interrupted = isinstance(end.how, Raised) and is_interrupt(end.how.error)
    return interrupted and end.stopped_by != "deadline"


async def write_question(
    ledger: ActionLedger,
    call: GuardedCall,
    end: CallEnd,
    context: ToolContext,
    claim: Dispatched | None,
) -> Question | Action:
    """Write the question down and make the row an intent again. Safe to repeat.

    This attempt goes on trying while the ledger is away: no other attempt may take the row for
    lost.

    Args:
        ledger: Where it is written.
        call: The call.
        end: An end that `is_question`.
        context: What the call was made with.
        claim: By which it was made; None for a READ, which has no row.

    Returns:
        The question; or the row, where its outcome is known, or it is parked, by now.

    Raises:
        asyncio.CancelledError: The run was cancelled. The question stands.
    """
    request = _request(call, context)
    attempt_at = activity.info().started_time
    # A lost attempt before this one may still send something, until its own time is up.
    over = claim is None or not claim.taken_over

    async def write() -> tuple[Question, Action | None]:
        return await ledger.questions.ask(request, claim, attempt_at=attempt_at, over=over)

    crash_point("before_record", tool=call.guarded.name)
    question, row = await finish(write)
    call.log.info(
        "question.asked",
        action_key=question.key,
        number=question.number,
        state=question.state,
        expires=question.expires_at,
    )
    if end.stopped_by == "caller" and call.cancelled_with_its_run:
        raise asyncio.CancelledError
    return question if row is None else row


def _request(call: GuardedCall, context: ToolContext) -> QuestionRequest:
    kind = call.guarded.questions
    assert kind is not None, "only such a call has questions"
    assert context.questions is not None, "as above"
    asked = context.questions.open_question
    assert asked is not None, "it ended the call"
    own = context.run_key == call.header.run_key
    return QuestionRequest(
        run_key=context.run_key,
        position=context.position,
        thread_id=(call.header.thread_id if own else None) or context.run_key,
        tool=call.guarded.name,
        index=asked.index,
        message=asked.message,
        payload=asked.payload,
        expires_after=kind.expires_after,
    )
