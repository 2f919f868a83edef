"""`ClaimedRow`: the row of one claimed call, and all that its attempt may write on it.

The first outcome on a row stands. Every write finishes, whoever is cancelled, while Postgres is
away, and whatever it answers (`ledger_write`): an outcome in hand is written, handed over to the
workflow, or held by this attempt. A row that a failover lost is written anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from temporalio import activity

from ...crash import crash_point
from ...errors import Fenced, LedgerUnavailable, StatementRefused
from ...identity import parent_of
from ...ledger import Action, ActionLedger, Dispatched, Effect, Outcome, Question
from ...ledger.result_codec import error_text
from ...metrics import FENCED_RECORDS, LATE_RECORDS, NODE_TIMEOUTS, PARKS, UNRECORDED_OUTCOMES
from ..app.tool_failure import FailureKind
from ..contract.activity_failure import again
from ..contract.outcomes import Unrecorded
from ..runner.bounded_call import Raised, Returned, despite_cancellation
from .claims import Claims
from .guarded_call import GuardedCall
from .invocation import NotBegun
from .ledger_write import finish, hold
from .outcome import NO_TIME, Again, Asked, Follows, Known, Stopped, Unknown, Unsent, late_outcome
from .question_record import write_question

T = TypeVar("T")

Ended: TypeAlias = Outcome | Action | Unrecorded | Question
"""How a call ended: the outcome that stands; its row, parked or known after all; what the
workflow is to record; or the question that it waits for."""


class ClaimedRow:
    """One claimed row.

    Args:
        ledger: Where it is.
        call: The call of this attempt.
        claims: By which the row was claimed, and can be handed back.
        claim: The claim. Its row is another action's where it settles that one.
    """

    def __init__(
        self, ledger: ActionLedger, call: GuardedCall, claims: Claims, claim: Dispatched
    ) -> None:
        self._ledger = ledger
        self._call = call
        self._claims = claims
        self._claim = claim

    async def write(self, follows: Follows) -> Ended:
        """Write what follows from the end of the call; return how the call ended.

        Raises:
            ApplicationError: Temporal starts another attempt.
            asyncio.CancelledError: The row is left to the next attempt, or to an operator.
        """
        if isinstance(follows, Again):
            if await self._is_left_for_another_attempt(follows):
                failure = follows.failure
                raise again(failure.type, failure.text, delay=follows.delay)
            follows = follows.otherwise
        match follows:
            case Known(outcome):
                return await self.record(outcome)
            case Unknown():
                return await self.park(follows)
            case Unsent():
                return await self._leave_unsent(follows)
            case Asked(question, stopped):
                return await write_question(
                    self._ledger, self._call, question, claim=self._claim, stopped=stopped
                )
            case NotBegun(too_old):
                return await self._leave_uncalled(too_old=too_old)
            case Stopped(over):
                return await self._stop(over=over)

    # --- its outcome ------------------------------------------------------------------------

    async def record(self, outcome: Outcome) -> Outcome | Unrecorded:
        """Record an outcome; return the one that stands, or what the workflow is to record."""
        claim = self._claim
        crash_point("before_record", tool=claim.tool)
        stands = await finish(
            lambda: self._write(lambda held: self._ledger.record(held, outcome)),
            hand_over=lambda err: self._hand_over(Unrecorded.of(claim, outcome), err),
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
        self._compare(stands, outcome)
        return stands

    async def _write(self, write: Callable[[Dispatched], Coroutine[Any, Any, T]]) -> T:
        """Write how the call ended; first its row, where a failover lost that: it was called."""
        try:
            return await write(self._claim)
        except Fenced as err:
            if not err.lost or self._claim.settles_for is not None:
                self._call.count(FENCED_RECORDS)
                raise
            self._call.log.error("ledger.row_lost", action_key=self._claim.key)
            anew = await self._claims.claim_anew()
            if anew is None or anew.taken_over:
                # Another attempt has it, and may have sent: what is known counts as a late record.
                nobody = replace(self._claim.attempt, token=uuid4())
                return await write(replace(self._claim, attempt=nobody))
            return await write(anew)

    async def record_late(self, end: Returned | Raised) -> None:
        """Record what an abandoned tool ended with, if the row is still open."""
        outcome = late_outcome(self._call, self._claim, end)
        if outcome is None:
            return
        key = self._claim.key
        try:
            stands = await hold(lambda: self._ledger.record(self._claim, outcome))
        except Fenced:
            self._call.count(FENCED_RECORDS)
            self._call.log.warning("ledger.late_record_fenced", action_key=key)
        else:
            self._call.count(LATE_RECORDS)
            self._call.log.info("ledger.late_recorded", action_key=key, outcome=stands.kind)
            self._compare(stands, outcome)

    async def park(self, unknown: Unknown) -> Action | Unrecorded:
        """Leave it unknown; return the row, whose outcome may be known after all."""
        claim, reason = self._claim, unknown.reason
        given: dict[str, Any] = {"over": unknown.over, "failures": unknown.failures}
        if unknown.out_of_time:
            self._call.count(NODE_TIMEOUTS)
            self._call.log.warning("tool.node_timed_out", action_key=claim.key)
        handed_over = Unrecorded.unknown(claim, reason, **given)
        crash_point("before_record", tool=claim.tool)
        row = await finish(
            lambda: self._write(lambda held: self._ledger.park(held, reason, **given)),
            hand_over=lambda err: self._hand_over(handed_over, err),
        )
        if isinstance(row, Unrecorded):
            return row
        crash_point("after_record", tool=claim.tool)
        if row.recorded is None:
            self._call.count(PARKS)
            self._call.log.warning("ledger.action_parked", action_key=claim.key, reason=reason)
        return row

    def _hand_over(self, unrecorded: Unrecorded, error: Exception) -> Unrecorded | None:
        """Leave the write to the workflow; None where it cannot, and this attempt goes on."""
        self._call.count(UNRECORDED_OUTCOMES)
        key, workflow = self._claim.key, self._call.guarded.hand_over
        own, why = self._claim.settles_for is None, error_text(error)
        if own and workflow is not None and workflow.fits(unrecorded):
            self._call.log.error("ledger.outcome_handed_over", action_key=key, reason=why)
            return unrecorded
        self._call.log.error("ledger.outcome_held", action_key=key, reason=why)
        return None

    def _compare(self, stands: Outcome, ended: Outcome) -> None:
        """Log what two attempts, or an attempt and an operator, say differently."""
        if stands != ended and "ok" in (stands.kind, ended.kind):
            self._call.log.error(
                "ledger.outcomes_differ",
                action_key=self._claim.key,
                stands=stands.kind,
                ended=ended.kind,
            )

    # --- left to another attempt, or to an operator --------------------------------------------

    async def _leave_uncalled(self, *, too_old: bool) -> Ended:
        """Give the row back that was claimed too late to call."""
        handed_back = await self._claims.hand_back(self._claim)
        if too_old or handed_back:
            raise self._call.not_started("the claim is older than it may be")
        # Earlier attempts may have sent something, and there is no time to find out.
        return await self.park(Unknown(NO_TIME, over=False, out_of_time=True))

    async def _is_left_for_another_attempt(self, again: Again) -> bool:
        """Count the failed try on the row; return whether another attempt may have the row."""
        claim = self._claim
        not_attempted = again.failure.kind is FailureKind.NOT_ATTEMPTED
        if not_attempted and await self._claims.hand_back(claim, failures=again.failures):
            return True
        if not_attempted and claim.effect is Effect.AT_MOST_ONCE:
            return False  # the next attempt could not tell it from one that was lost
        given = {"in_progress": not again.failure.counts, "over": again.over}
        try:
            await despite_cancellation(
                self._write(lambda held: self._ledger.fail_try(held, **given))
            )
        except LedgerUnavailable as err:
            # Not counted. Nothing is called while the ledger is away, so this has an end too.
            self._call.log.warning("ledger.unavailable", reason=err.message)
        except StatementRefused as err:
            # Claims go on, so tries that nobody counts would have no end.
            self._call.log.error("ledger.write_refused", reason=err.message)
            return False
        return True

    async def _leave_unsent(self, unsent: Unsent) -> Ended:
        """Leave to an operator what the relay could not send."""
        key, reason, failures = self._claim.key, unsent.reason, unsent.failures
        if not await self._claims.hand_back(self._claim, failures=failures):
            return await self.park(Unknown(reason, over=True, failures=failures))
        return await hold(lambda: self._ledger.park_unsent(key, f"not sent: {reason}"))

    async def _stop(self, *, over: bool) -> Ended:
        """Leave a cancelled call to whoever can find out: an operator, or the next attempt."""
        if not await self._is_cancelled_with_its_run() or await self._is_overtaken():
            # The next attempt, or the workflow that carries the run out now, takes the row over.
            raise asyncio.CancelledError
        reason = "the run was cancelled while the tool was at work"
        surely_over = over and self._call.guarded.ends_when_cancelled
        parked = await self.park(Unknown(reason, surely_over))
        if isinstance(parked, Action) and parked.recorded is None:
            raise asyncio.CancelledError
        return parked

    async def _is_cancelled_with_its_run(self) -> bool:
        """Whether the run was cancelled; otherwise another attempt takes the row over.

        A local activity is also cancelled where the worker drops its workflow from the cache, as it
        does when a workflow task has timed out. Nothing says so, but the ledger knows of a stop. A
        run that was cancelled without one closes itself, and parks what it leaves.
        """
        if not activity.info().is_local:
            return self._call.cancelled_with_its_run
        with suppress(LedgerUnavailable, StatementRefused):
            run = await despite_cancellation(self._ledger.runs.get(self._call.header.run_key))
            return run is not None and run.stopped_at is not None
        return False

    async def _is_overtaken(self) -> bool:
        """Whether another workflow carries this sub-agent's run out: its parent was reset."""
        run_key = self._call.header.run_key
        if parent_of(run_key) is None:
            return False
        with suppress(LedgerUnavailable, StatementRefused):
            run = await despite_cancellation(self._ledger.runs.get(run_key))
            # A stop is final: no workflow takes over then.
            here = activity.info().workflow_id or ""
            return run is not None and run.stopped_at is None and not run.is_owned_by(here)
        return False
