"""One attempt at a READ: called without a claim, since repeating it harms nobody.

It has no row. Its failures are counted in the notes of its attempts, and its result is kept in the
ledger only where it is too large to travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temporalio import activity

from ...errors import LedgerUnavailable
from ...ledger import ActionLedger, Outcome, Question
from ...traces import OUTCOME, RESULT, note, note_content
from ..app.tool_failure import FailureKind
from ..contract.activity_failure import again
from ..runner.attempt_notes import AttemptNotes
from ..runner.bounded_call import CallEnd, Raised, Returned
from .claim_request import Prepared
from .guarded_call import GuardedCall
from .invocation import Invocation, Invoke, failure_of, is_question, question_request
from .question_record import write_question
from .retry import delay_after, time_for


class ReadAttempt:
    """One attempt at a READ.

    Args:
        ledger: Where questions and large results are kept.
        call: The call.
        prepared: What it calls with.
        invoke: Runs the activity.
    """

    def __init__(
        self, ledger: ActionLedger, call: GuardedCall, prepared: Prepared, invoke: Invoke
    ) -> None:
        self._ledger = ledger
        self._call = call
        self._request = prepared.request
        self._invocation = Invocation(call, prepared, invoke, spent=call.spent)

    async def run(self) -> Any:
        """Call; return, or raise, what the workflow gets. Safe to repeat."""
        request, guarded = self._request, self._call.guarded
        context = self._invocation.read_context(await self._earlier_questions())
        end = await self._invocation.run(context, request.args)
        self._invocation.count(end)
        if is_question(end):
            question = await write_question(
                self._ledger,
                self._call,
                question_request(self._call, context),
                claim=None,
                stopped=end.stopped_by == "caller",
            )
            assert isinstance(question, Question), "it has no row"
            assert guarded.questions is not None, "as for the context"
            return guarded.questions.reply(question)
        if isinstance(end.how, Returned):
            outcome = guarded.encode(end.how.value)
            note({OUTCOME: outcome.kind})
            note_content({RESULT: outcome.result})
            return await self._reply(outcome)
        if end.stopped_by == "caller":
            raise asyncio.CancelledError
        return self._failed(end)

    async def _earlier_questions(self) -> Sequence[Question]:
        """Return the questions of earlier attempts, where there can be some."""
        if self._call.nothing_written_before or self._call.guarded.questions is None:
            return ()
        try:
            return await self._ledger.questions.of_call(self._request.key)
        except LedgerUnavailable as err:
            raise self._call.not_started(err.message) from err

    async def _reply(self, outcome: Outcome) -> Any:
        key = self._request.key if await self._keep(outcome) else ""
        limit = self._call.header.content_limit
        return self._call.guarded.replies.done(key, outcome, None, limit)

    async def _keep(self, outcome: Outcome) -> bool:
        """Keep a result that is too large to travel; return whether it was."""
        request, limit = self._request, self._call.header.content_limit
        if limit is None or len(outcome.result) <= limit:
            return False
        thread_id = request.thread_id or request.run_key
        try:
            await self._ledger.put_value(request.key, thread_id, outcome.result)
        except LedgerUnavailable as err:
            # It can be read again, so the call may be made again.
            raise self._call.not_started(err.message) from err
        return True

    def _failed(self, end: CallEnd) -> Any:
        failure = failure_of(self._call, end)
        notes = AttemptNotes.read()
        failed = notes.failed + (failure.kind is not FailureKind.IN_PROGRESS)
        if (
            failure.kind not in (FailureKind.REFUSED, FailureKind.OTHER)
            and failed < self._call.tries
        ):
            times = max(failed, activity.info().attempt)
            delay = delay_after(self._call, failure, failed=times)
            if time_for(self._call, delay):
                replace(notes, failed=failed).leave()
                raise again(failure.type, failure.text, delay=delay)
        note({OUTCOME: "error"}, failed=failure.type)
        error = end.how.error if isinstance(end.how, Raised) else None
        return self._call.guarded.replies.raised(failure, error)
