"""How a claimed call ended, written on its row: once, whoever is cancelled and whatever is away.

The record is seen through. Where the ledger is away the workflow records it, by way of its
history, if it can; else this attempt holds it until the ledger is back. The first outcome on a
row stands, and a row that a failover lost is written anew.
"""

from __future__ import annotations

from dataclasses import replace

from ...crash import crash_point
from ...errors import Fenced, LedgerUnavailable
from ...identity import split_action_key
from ...ledger import Action, ActionLedger, Dispatched, Outcome
from ..app.tool_failure import FailureKind
from ..contract.outcomes import Unrecorded
from ..runner.bounded_call import Raised, Returned, despite_cancellation
from .claiming import Claiming
from .incoming_call import IncomingCall
from .metrics import count
from .persisting import persist


class Recording:
    """Records for one attempt.

    Args:
        ledger: Where it records.
        call: The call.
        claiming: By which the row was claimed.
    """

    def __init__(self, ledger: ActionLedger, call: IncomingCall, claiming: Claiming) -> None:
        self._ledger = ledger
        self._call = call
        self._claiming = claiming

    async def returned(self, claim: Dispatched, end: Returned) -> Outcome | Unrecorded:
        """Record what the tool returned; see `record`."""
        return await self.record(claim, self._outcome(claim, end))

    async def record(self, claim: Dispatched, outcome: Outcome) -> Outcome | Unrecorded:
        """Record the outcome, whoever is cancelled meanwhile; return the one that stands."""
        crash_point("before_record", tool=claim.tool)
        try:
            stands = await despite_cancellation(self._recorded(claim, outcome))
        except LedgerUnavailable as err:
            handed_over = self._hand_over(claim, Unrecorded.of(claim, outcome), err)
            if handed_over is not None:
                return handed_over
            stands = await persist(lambda: self._recorded(claim, outcome))
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

    async def park(
        self, claim: Dispatched, reason: str, *, over: bool, failures: int | None = None
    ) -> Action | Unrecorded:
        """Leave it unknown; return the row, which may be known after all.

        Args:
            claim: By which it was called.
            reason: Why it is unknown.
            over: Whether the tool has ended.
            failures: Tries that it has failed so far, this one included.
        """
        crash_point("before_record", tool=claim.tool)

        async def parked() -> Action:
            return await self._ledger.park(claim, reason, over=over, failures=failures)

        try:
            action = await despite_cancellation(parked())
        except LedgerUnavailable as err:
            unknown = Unrecorded.unknown(claim, reason, over=over, failures=failures)
            handed_over = self._hand_over(claim, unknown, err)
            if handed_over is not None:
                return handed_over
            action = await persist(parked)
        crash_point("after_record", tool=claim.tool)
        if action.recorded is None:
            count("commitline_parks", claim.tool)
            self._call.log.warning("ledger.action_parked", action_key=claim.key, reason=reason)
        return action

    async def late(self, claim: Dispatched, end: Returned | Raised) -> None:
        """Record what a tool that was left behind ended with, on its row, if it is still open."""
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

    async def _recorded(self, claim: Dispatched, outcome: Outcome) -> Outcome:
        try:
            return await self._ledger.record(claim, outcome)
        except Fenced as err:
            if not err.lost or claim.settles_for is not None:
                count("commitline_fenced_records", claim.tool)
                raise
            # A failover lost the row, and we know how the call ended: write it anew.
            self._call.log.error("ledger.row_lost", action_key=claim.key)
            anew = await self._claiming.claim_at_once()
            if not isinstance(anew, Dispatched):
                raise
            return await self._ledger.record(anew, outcome)

    def _outcome(self, claim: Dispatched, end: Returned) -> Outcome:
        """Return the outcome of a call that returned.

        What it changed in the state counts only where the row's own call had the same copy:
        not in another run's conversation, and not a turn later.
        """
        outcome = self._call.guarded.encode(end.value)
        run, at = split_action_key(claim.key)
        header = self._call.header
        here = (header.run_key, header.position.rpartition(".")[0])
        if claim.settles_for is None or here == (run, at.rpartition(".")[0]):
            return outcome
        return replace(outcome, state_changes=None)

    def _late_outcome(self, claim: Dispatched, end: Returned | Raised) -> Outcome | None:
        """Return what a late end says for sure; None where it says nothing."""
        if isinstance(end, Returned):
            return self._outcome(claim, end)
        failure = self._call.guarded.failure(end.error)
        self._call.log.info("tool.ended_late", action_key=claim.key, error=failure.type)
        surely_nothing = failure.kind is FailureKind.REFUSED and not claim.taken_over
        return failure.without_effect if surely_nothing else None

    def _compare(self, claim: Dispatched, stands: Outcome, ended: Outcome) -> None:
        """Say aloud what two attempts, or an attempt and a person, say differently."""
        if stands != ended and "ok" in (stands.kind, ended.kind):
            self._call.log.error(
                "ledger.outcomes_differ",
                action_key=claim.key,
                stands=stands.kind,
                ended=ended.kind,
            )

    def _hand_over(
        self, claim: Dispatched, unrecorded: Unrecorded, error: LedgerUnavailable
    ) -> Unrecorded | None:
        """Leave the record to the workflow; None where it cannot, and this attempt has to."""
        count("commitline_unrecorded_outcomes", claim.tool)
        if claim.settles_for is None and self._call.guarded.records_later(unrecorded):
            self._call.log.error(
                "ledger.outcome_handed_over", action_key=claim.key, reason=error.message
            )
            return unrecorded
        self._call.log.error("ledger.outcome_held", action_key=claim.key, reason=error.message)
        return None
