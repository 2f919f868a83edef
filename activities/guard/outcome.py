"""What is written on the row of a claimed call that has ended, and what the reply is made of.

    the call returned             the outcome is recorded; the first one on a row stands
    it put a question             the row waits as an intent (`question`)
    it failed                     `outcome_rules` decides: again, an error, or unknown
    its run was cancelled         unknown
    its worker shuts down         nothing: the next attempt takes the row over

Every write finishes, whoever is cancelled and while Postgres is away (`ledger_write`). A row that
a failover lost is written anew.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from temporalio import activity

from ...crash import crash_point
from ...errors import Fenced, LedgerUnavailable, NodeTimeout
from ...identity import parent_of, split_action_key
from ...ledger import Action, ActionLedger, Dispatched, Effect, Outcome, Question
from ..app.tool_context import ToolContext
from ..app.tool_failure import FailureKind, ToolFailure
from ..contract.activity_failure import again
from ..contract.outcomes import Unrecorded
from ..runner.bounded_call import Abandoned, CallEnd, Raised, Returned, despite_cancellation
from .call import GuardedCall
from .claim import Claims
from .invocation import failure_of
from .ledger_write import finish, persist
from .metrics import count
from .outcome_rules import Next, failed_so_far, judge_failure, why_unknown
from .question import is_question, write_question
from .retry import delay_after, time_for

Ended: TypeAlias = Outcome | Action | Unrecorded | Question
"""How a call ended: the outcome that stands; its row, parked or known after all; what the
workflow is to record; or the question that it waits for."""


class Outcomes:
    """Writes the outcomes of one attempt.

    Args:
        ledger: Where they are written.
        call: The call.
        claims: By which the row was claimed, and can be handed back.
    """

    def __init__(self, ledger: ActionLedger, call: GuardedCall, claims: Claims) -> None:
        self._ledger = ledger
        self._call = call
        self._claims = claims

    async def of_call(self, claim: Dispatched, end: CallEnd, context: ToolContext) -> Ended:
        """Write down how a call ended.

        Args:
            claim: By which it was made.
            end: How it ended.
            context: What it was made with.

        Raises:
            ApplicationError: Temporal tries it again.
            asyncio.CancelledError: The row is left to the next attempt, or to an operator.
        """
        if isinstance(end.how, Returned):
            return await self.record(claim, self._outcome(claim, end.how))
        if is_question(end):
            return await write_question(self._ledger, self._call, end, context, claim)
        abandoned = isinstance(end.how, Abandoned)
        if end.stopped_by == "caller":
            return await self.stopped(claim, over=not abandoned)
        return await self._failed(claim, failure_of(self._call, end), abandoned=abandoned)

    # --- an outcome that is known ----------------------------------------------------------

    async def record(self, claim: Dispatched, outcome: Outcome) -> Outcome | Unrecorded:
        """Record an outcome; return the one that stands, or what the workflow is to record."""
        crash_point("before_record", tool=claim.tool)
        stands = await finish(
            lambda: self._record(claim, outcome),
            hand_over=lambda err: self._hand_over(claim, Unrecorded.of(claim, outcome), err),
        )
        if isinstance(stands, Unrecorded):
            return stands
        crash_point("after_record", tool=claim.tool)
        self._call.log.info(
            "ledger.action_recorded",
            action_key=claim.key,
            outcome=stands.kind,
            taken_over=claim.taken_over,
            adopted=stands != outcome,
        )
        self._compare(claim, stands, outcome)
        return stands

    async def _record(self, claim: Dispatched, outcome: Outcome) -> Outcome:
        try:
            return await self._ledger.record(claim, outcome)
        except Fenced as err:
            if not err.lost or claim.settles_for is not None:
                count("commitline_fenced_records", claim.tool)
                raise
            # A failover lost the row, and this attempt knows how the call ended: write it anew.
            self._call.log.error("ledger.row_lost", action_key=claim.key)
            anew = await self._claims.claim_once()
            if not isinstance(anew, Dispatched):
                raise
            return await self._ledger.record(anew, outcome)

    def _outcome(self, claim: Dispatched, end: Returned) -> Outcome:
        """Return the outcome of a call that returned.

        What it changed in the state counts only where the row's own call had the same copy: not
        in another run's conversation, and not a turn later.
        """
        outcome = self._call.guarded.encode(end.value)
        run, at = split_action_key(claim.key)
        header = self._call.header
        here = (header.run_key, header.position.rpartition(".")[0])
        if claim.settles_for is None or here == (run, at.rpartition(".")[0]):
            return outcome
        return replace(outcome, state_changes=None)

    async def late(self, claim: Dispatched, end: Returned | Raised) -> None:
        """Record what an abandoned tool ended with, if its row is still open."""
        outcome = self._late_outcome(claim, end)
        if outcome is None:
            return
        try:
            stands = await persist(lambda: self._ledger.record(claim, outcome))
        except Fenced:
            count("commitline_fenced_records", claim.tool)
            self._call.log.warning("ledger.late_record_fenced", action_key=claim.key)
        else:
            count("commitline_late_records", claim.tool)
            self._call.log.info("ledger.late_recorded", action_key=claim.key, outcome=stands.kind)
            self._compare(claim, stands, outcome)

    def _late_outcome(self, claim: Dispatched, end: Returned | Raised) -> Outcome | None:
        """Return what a late end says for sure; None where it says nothing."""
        if isinstance(end, Returned):
            return self._outcome(claim, end)
        failure = self._call.guarded.failure(end.error)
        self._call.log.info("tool.ended_late", action_key=claim.key, error=failure.type)
        surely_nothing = failure.kind is FailureKind.REFUSED and not claim.taken_over
        return failure.without_effect if surely_nothing else None

    def _compare(self, claim: Dispatched, stands: Outcome, ended: Outcome) -> None:
        """Log what two attempts, or an attempt and an operator, say differently."""
        if stands != ended and "ok" in (stands.kind, ended.kind):
            self._call.log.error(
                "ledger.outcomes_differ",
                action_key=claim.key,
                stands=stands.kind,
                ended=ended.kind,
            )

    # --- an outcome that is unknown ---------------------------------------------------------

    async def park(
        self, claim: Dispatched, reason: str, *, over: bool, failures: int | None = None
    ) -> Action | Unrecorded:
        """Leave it unknown; return the row, whose outcome may be known after all.

        Args:
            claim: By which it was called.
            reason: Why it is unknown.
            over: Whether the tool has ended.
            failures: Tries that it has failed so far, this one included.
        """
        unknown = Unrecorded.unknown(claim, reason, over=over, failures=failures)
        crash_point("before_record", tool=claim.tool)
        row = await finish(
            lambda: self._ledger.park(claim, reason, over=over, failures=failures),
            hand_over=lambda err: self._hand_over(claim, unknown, err),
        )
        if isinstance(row, Unrecorded):
            return row
        crash_point("after_record", tool=claim.tool)
        if row.recorded is None:
            count("commitline_parks", claim.tool)
            self._call.log.warning("ledger.action_parked", action_key=claim.key, reason=reason)
        return row

    def _hand_over(
        self, claim: Dispatched, unrecorded: Unrecorded, error: LedgerUnavailable
    ) -> Unrecorded | None:
        """Leave the write to the workflow; None where it cannot, and this attempt goes on."""
        count("commitline_unrecorded_outcomes", claim.tool)
        workflow = self._call.guarded.hand_over
        if claim.settles_for is None and workflow is not None and workflow.fits(unrecorded):
            self._call.log.error(
                "ledger.outcome_handed_over", action_key=claim.key, reason=error.message
            )
            return unrecorded
        self._call.log.error("ledger.outcome_held", action_key=claim.key, reason=error.message)
        return None

    # --- a call that was not made, failed, or was stopped -----------------------------------

    async def not_called(self, claim: Dispatched, *, late: bool) -> Ended:
        """Call nothing by a claim that is older than it may be, or whose time is up.

        The claim was slow, or this process was frozen since: the row gives this attempt more time
        than is left, and by now another attempt may have it.

        Args:
            claim: The claim.
            late: It is too old; otherwise its time is up.
        """
        handed_back = await self._claims.hand_back(claim)
        if late or handed_back:
            raise self._call.not_started("the claim is older than it may be")
        # Earlier attempts may have sent something, and there is no time to find out.
        return await self.park(claim, self._no_time(claim), over=False)

    async def _failed(self, claim: Dispatched, failure: ToolFailure, *, abandoned: bool) -> Ended:
        """Raise what Temporal tries again, or write what the failed call leaves."""
        call = self._call
        failed = failed_so_far(claim, failure)
        times = activity.info().attempt if failure.kind is FailureKind.IN_PROGRESS else failed
        delay = delay_after(call, failure, failed=times)
        judge = partial(
            judge_failure,
            claim,
            failure,
            tries=call.tries,
            abandoned=abandoned,
            relayed=call.header.purpose == "relay",
        )
        follows = judge(has_time=time_for(call, delay))
        if follows is Next.AGAIN:
            if await self._count_failure(claim, failure, failed, abandoned=abandoned):
                raise again(failure.type, failure.text, delay=delay)
            follows = judge(has_time=False)
        if follows is Next.UNSENT:
            return await self._leave_unsent(claim, failure)
        if follows is Next.NO_EFFECT:
            return await self.record(claim, failure.without_effect)
        why = why_unknown(claim, failure, tries=call.tries)
        why = why or f"{self._no_time(claim)}; the last: {failure.text}"
        return await self.park(claim, why, over=not abandoned, failures=failed)

    async def _count_failure(
        self, claim: Dispatched, failure: ToolFailure, failed: int, *, abandoned: bool
    ) -> bool:
        """Count the failed try on the row; return whether the call can be tried again."""
        not_attempted = failure.kind is FailureKind.NOT_ATTEMPTED
        if not_attempted and await self._claims.hand_back(claim, failures=failed):
            return True
        if not_attempted and claim.effect is Effect.AT_MOST_ONCE:
            return False  # the next attempt could not tell it from one that was lost
        in_progress = failure.kind is FailureKind.IN_PROGRESS
        # A lost attempt before this one may still send something, until its own time is up.
        over = not abandoned and not claim.taken_over
        try:
            await despite_cancellation(
                self._ledger.fail_try(claim, in_progress=in_progress, over=over)
            )
        except LedgerUnavailable as err:
            # Not counted. Nothing is called while the ledger is away, so this has an end too.
            self._call.log.warning("ledger.unavailable", reason=err.message)
        return True

    async def _leave_unsent(self, claim: Dispatched, failure: ToolFailure) -> Ended:
        """Leave to an operator what the relay could not send: it can be tried again."""
        failed = claim.failures + 1
        reason = f"tried {failed} times; the last: {failure.text}"
        if not await self._claims.hand_back(claim, failures=failed):
            return await self.park(claim, reason, over=True, failures=failed)
        return await persist(lambda: self._ledger.park_unsent(claim.key, f"not sent: {reason}"))

    async def stopped(self, claim: Dispatched, *, over: bool) -> Ended:
        """Leave a cancelled call to whoever can find out: an operator, or the next attempt."""
        if not self._call.cancelled_with_its_run or await self._is_overtaken():
            # The next attempt, or the workflow that carries the run out now, takes the row over.
            raise asyncio.CancelledError
        reason = "the run was cancelled while the tool was at work"
        surely_over = over and self._call.guarded.ends_when_cancelled
        parked = await self.park(claim, reason, over=surely_over)
        if isinstance(parked, Action) and parked.recorded is None:
            raise asyncio.CancelledError
        return parked

    async def _is_overtaken(self) -> bool:
        """Whether another workflow carries this sub-agent's run out: its parent was reset."""
        run_key = self._call.header.run_key
        if parent_of(run_key) is None:
            return False
        with suppress(LedgerUnavailable):
            run = await despite_cancellation(self._ledger.get_run(run_key))
            # A stop is final: no workflow takes over then.
            here = activity.info().workflow_id or ""
            return run is not None and run.stopped_at is None and not run.is_of(here)
        return False

    def _no_time(self, claim: Dispatched) -> str:
        count("commitline_node_timeouts", claim.tool)
        self._call.log.warning("tool.node_timed_out", action_key=claim.key)
        return f"no time for another try [{NodeTimeout.code}]"
