"""What follows where a claimed call did not return: the lower rows of `guarded_call`'s table.

Another attempt, an error without effect, or that it is unknown. It is unknown wherever this
attempt, or one before it, may have sent something that nobody can tell of.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ...errors import LedgerUnavailable, NodeTimeout
from ...identity import parent_of
from ...ledger import Action, ActionLedger, Dispatched, Effect
from ..app.tool_failure import FailureKind, ToolFailure
from ..contract.activity_failure import again
from ..runner.bounded_call import despite_cancellation
from .claiming import Claiming
from .guarded import Ended
from .incoming_call import IncomingCall
from .metrics import count
from .persisting import persist
from .recording import Recording
from .retrying import delay_after, time_for


class Aftermath:
    """Decides for one attempt.

    Args:
        ledger: Where failed tries are counted.
        call: The call.
        claiming: By which the row was claimed, and can be handed back.
        recording: Which records what is decided.
    """

    def __init__(
        self,
        ledger: ActionLedger,
        call: IncomingCall,
        *,
        claiming: Claiming,
        recording: Recording,
    ) -> None:
        self._ledger = ledger
        self._call = call
        self._claiming = claiming
        self._recording = recording

    async def not_called(self, claim: Dispatched, *, late: bool) -> Ended:
        """Make nothing of a claim: it is older than it may be, or its time is up.

        The claim was slow to come, or this process was frozen since: what the row gives this
        attempt is not what is left, and by now it may be another attempt's.

        Args:
            claim: The claim.
            late: It is too old; else its time is up.
        """
        handed_back = await self._claiming.hand_back(claim)
        if late or handed_back:
            raise self._call.not_started("the claim is older than it may be")
        # Earlier attempts may have sent something, and there is no time to find out.
        return await self._recording.park(claim, self._no_time(claim), over=False)

    async def failed(self, claim: Dispatched, failure: ToolFailure, *, abandoned: bool) -> Ended:
        """Try again, or record what a call that failed leaves: no effect, or that it is unknown."""
        retry = await self._try_again(claim, failure, abandoned=abandoned)
        if retry is not None:
            raise retry
        if failure.kind is FailureKind.NOT_ATTEMPTED and self._call.header.purpose == "relay":
            return await self._leave_unsent(claim, failure)
        if (
            failure.kind in (FailureKind.REFUSED, FailureKind.NOT_ATTEMPTED)
            and not claim.taken_over
        ):
            return await self._recording.record(claim, failure.without_effect)
        why = self._why_unknown(claim, failure)
        failed = claim.failures + (failure.kind is not FailureKind.IN_PROGRESS)
        return await self._recording.park(claim, why, over=not abandoned, failures=failed)

    async def stopped(self, claim: Dispatched, *, over: bool) -> Ended:
        """Leave the row so that somebody finds out: a person, or the next attempt."""
        if not self._call.cancelled_with_its_run:
            # The worker goes: the next attempt finds the row and takes over.
            raise asyncio.CancelledError
        if await self._overtaken():
            # Its parent was reset: the workflow that carries the run out now takes over.
            raise asyncio.CancelledError
        reason = "the run was cancelled while the tool was at work"
        surely_over = over and self._call.guarded.surely_ends
        parked = await self._recording.park(claim, reason, over=surely_over)
        if isinstance(parked, Action) and parked.recorded is None:
            raise asyncio.CancelledError
        return parked

    async def _try_again(
        self, claim: Dispatched, failure: ToolFailure, *, abandoned: bool
    ) -> ApplicationError | None:
        """Return the failure that Temporal retries, where the table says "again"."""
        in_progress = failure.kind is FailureKind.IN_PROGRESS
        not_attempted = failure.kind is FailureKind.NOT_ATTEMPTED
        repeatable = (
            failure.kind is FailureKind.TRANSIENT and claim.effect is not Effect.AT_MOST_ONCE
        )
        failed = claim.failures + (not in_progress)
        times = activity.info().attempt if in_progress else failed
        delay = delay_after(self._call, failure, failed=times)
        if not (in_progress or not_attempted or repeatable) or not time_for(self._call, delay):
            return None
        # Not while its tool goes on: "it never happened" would be said too soon.
        asks = claim.effect is Effect.LOOKUP and repeatable and claim.can_look_up and not abandoned
        if failed >= self._call.tries and not (in_progress or asks):
            return None
        retry = again(failure.type, failure.text, delay=delay)
        if not_attempted and await self._claiming.hand_back(claim, failures=failed):
            return retry
        if not_attempted and claim.effect is Effect.AT_MOST_ONCE:
            return None  # the next attempt could not tell it from one that was lost
        # A lost attempt before this one may still send, until its own time is up.
        over = not abandoned and not claim.taken_over
        await self._count_failed(claim, in_progress=in_progress, over=over)
        return retry

    async def _count_failed(self, claim: Dispatched, *, in_progress: bool, over: bool) -> None:
        try:
            await despite_cancellation(
                self._ledger.fail_try(claim, in_progress=in_progress, over=over)
            )
        except LedgerUnavailable as err:
            # Not counted. Nothing is called while the ledger is away, so not without end either.
            self._call.log.warning("ledger.unavailable", reason=err.message)

    async def _leave_unsent(self, claim: Dispatched, failure: ToolFailure) -> Ended:
        """Leave what the relay could not send to a person: it is wanted, and can be tried again."""
        failed = claim.failures + 1
        reason = f"tried {failed} times; the last: {failure.text}"
        if not await self._claiming.hand_back(claim, failures=failed):
            return await self._recording.park(claim, reason, over=True, failures=failed)
        return await persist(lambda: self._ledger.park_unsent(claim.key, f"not sent: {reason}"))

    def _why_unknown(self, claim: Dispatched, failure: ToolFailure) -> str:
        if failure.kind in (FailureKind.REFUSED, FailureKind.NOT_ATTEMPTED):
            return f"an earlier attempt may have happened; now {failure.text}"
        in_progress = failure.kind is FailureKind.IN_PROGRESS
        if failure.kind is FailureKind.OTHER or (
            claim.effect is Effect.AT_MOST_ONCE and not in_progress
        ):
            return failure.text
        if claim.failures + 1 >= self._call.tries and not in_progress:
            return f"tried {claim.failures + 1} times; the last: {failure.text}"
        return f"{self._no_time(claim)}; the last: {failure.text}"

    def _no_time(self, claim: Dispatched) -> str:
        count("commitline_node_timeouts", claim.tool)
        self._call.log.warning("tool.node_timed_out", action_key=claim.key)
        return f"no time for another try [{NodeTimeout.code}]"

    async def _overtaken(self) -> bool:
        """Whether another workflow carries this sub-agent's run out by now."""
        run_key = self._call.header.run_key
        if parent_of(run_key) is None:
            return False
        with suppress(LedgerUnavailable):
            run = await despite_cancellation(self._ledger.get_run(run_key))
            # A stop is for good: nobody takes over then.
            here = activity.info().workflow_id or ""
            return run is not None and run.stopped_at is None and not run.is_of(here)
        return False
