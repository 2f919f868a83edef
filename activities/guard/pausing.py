"""A call that ended with a question to a person: it waits as an intent, and no worker is held.

The question is written down and the call's row handed back in one transaction. Then the
workflow waits for the answer, and has the call made again.
"""

from __future__ import annotations

import asyncio

from temporalio import activity

from ...crash import crash_point
from ...errors import LedgerUnavailable
from ...ledger import Action, ActionLedger, Dispatched, Question, QuestionRequest
from ..app.interrupt import is_interrupt
from ..app.tool_context import ToolContext
from ..runner.bounded_call import CallEnd, Raised, despite_cancellation
from .incoming_call import IncomingCall
from .persisting import persist


def asks(end: CallEnd) -> bool:
    """Whether the call ended with its question; past its deadline it timed out."""
    asked = isinstance(end.how, Raised) and is_interrupt(end.how.error)
    return asked and end.stopped_by != "deadline"


class Pausing:
    """Writes down what one attempt asks."""

    def __init__(self, ledger: ActionLedger, call: IncomingCall) -> None:
        self._ledger = ledger
        self._call = call

    async def pause(
        self, end: CallEnd, context: ToolContext, claim: Dispatched | None
    ) -> Question | Action:
        """Write the question down and hand the row back, in one; the call is made again.

        Held by this attempt while the ledger is away: the row must not be taken for lost.

        Args:
            end: With which the call asks; see `asks`.
            context: That the call was made with.
            claim: By which it was made; None where it has no row.

        Returns:
            The question, or the row, where that is known or parked by now.
        """
        request = self._request(context)
        attempt_at = activity.info().started_time

        async def ask() -> tuple[Question, Action | None]:
            # A lost attempt before this one may still send, until its own time is up.
            over = claim is None or not claim.taken_over
            return await self._ledger.questions.ask(
                request, claim, attempt_at=attempt_at, over=over
            )

        crash_point("before_record", tool=self._call.guarded.name)
        try:
            question, ended = await despite_cancellation(ask())
        except LedgerUnavailable:
            question, ended = await persist(ask)
        self._call.log.info(
            "question.asked",
            action_key=question.key,
            number=question.number,
            state=question.state,
            expires=question.expires_at,
        )
        if end.stopped_by == "caller" and self._call.cancelled_with_its_run:
            raise asyncio.CancelledError
        return question if ended is None else ended

    def _request(self, context: ToolContext) -> QuestionRequest:
        open_question = None if context.questions is None else context.questions.open_question
        assert open_question is not None, "nobody else raises it"
        own = context.run_key == self._call.header.run_key
        return QuestionRequest(
            run_key=context.run_key,
            position=context.position,
            thread_id=(self._call.header.thread_id if own else None) or context.run_key,
            tool=self._call.guarded.name,
            index=open_question.index,
            message=open_question.message,
            payload=open_question.payload,
            expires_after=self._call.guarded.answer_expires,
        )
