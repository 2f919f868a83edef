"""One attempt at a READ: called without the ledger, since repeating it harms nobody.

It has no row: what it failed is counted on its heartbeat, and what it returned is kept in the
ledger only where it is too large to travel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import activity

from ...errors import LedgerUnavailable
from ...ledger import ActionLedger, Outcome, Question
from ..app.tool_context import ToolContext
from ..app.tool_failure import FailureKind
from ..contract.activity_failure import again
from ..runner.bounded_call import CallEnd, Raised, Returned
from .calling import Calling, Invoke
from .heartbeat import failed_so_far
from .incoming_call import IncomingCall
from .pausing import Pausing, asks
from .preparing import Prepared
from .retrying import delay_after, time_for


class ReadCall:
    """One attempt at a READ.

    Args:
        ledger: Where questions and large results are kept.
        call: The call as it came.
        prepared: What it calls with.
        invoke: Runs the activity.
    """

    def __init__(
        self, ledger: ActionLedger, call: IncomingCall, prepared: Prepared, invoke: Invoke
    ) -> None:
        self._ledger = ledger
        self._call = call
        self._request = prepared.request
        self._calling = Calling(call, prepared, invoke, spent=call.spent)

    async def run(self) -> Any:
        """Call; return, or raise, what the workflow gets. Safe to repeat."""
        request = self._request
        asked = await self._asked_before()
        context = self._calling.context(
            request.key, f"read-{request.position}", taken_over=False, asked=asked
        )
        end = await self._calling.call(context, request.args)
        if asks(end):
            return await self._pause(end, context)
        if isinstance(end.how, Returned):
            return await self._tell(self._call.guarded.encode(end.how.value))
        if end.stopped_by == "caller":
            raise asyncio.CancelledError
        return self._failed(end)

    async def _asked_before(self) -> Sequence[Question]:
        """Return what earlier attempts have asked, where there may have been some."""
        if self._call.is_first or not self._call.guarded.may_interrupt:
            return ()
        try:
            return await self._ledger.questions.asked(self._request.key)
        except LedgerUnavailable as err:
            raise self._call.not_started(err.message) from err

    async def _pause(self, end: CallEnd, context: ToolContext) -> Any:
        paused = await Pausing(self._ledger, self._call).pause(end, context, None)
        assert isinstance(paused, Question), "it has no row"
        return self._call.guarded.reply_asked(paused)

    async def _tell(self, outcome: Outcome) -> Any:
        key = self._request.key if await self._keep(outcome) else ""
        limit = self._call.header.content_limit
        return self._call.guarded.reply_done(key, outcome, None, limit)

    async def _keep(self, outcome: Outcome) -> bool:
        """Keep a result that is too large to travel; return whether that was so."""
        request, limit = self._request, self._call.header.content_limit
        if limit is None or len(outcome.result) <= limit:
            return False
        kept = self._ledger.put_value(
            request.key, request.thread_id or request.run_key, outcome.result
        )
        try:
            await kept
        except LedgerUnavailable as err:
            # It can be read again, so it may be called again.
            raise self._call.not_started(err.message) from err
        return True

    def _failed(self, end: CallEnd) -> Any:
        failure = self._calling.failure(end)
        failed = failed_so_far() + (failure.kind is not FailureKind.IN_PROGRESS)
        if (
            failure.kind not in (FailureKind.REFUSED, FailureKind.OTHER)
            and failed < self._call.tries
        ):
            times = max(failed, activity.info().attempt)
            delay = delay_after(self._call, failure, failed=times)
            if time_for(self._call, delay):
                activity.heartbeat(failed)
                raise again(failure.type, failure.text, delay=delay)
        error = end.how.error if isinstance(end.how, Raised) else None
        return self._call.guarded.reply_raised(failure, error)
