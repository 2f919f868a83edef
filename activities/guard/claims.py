"""The claims of one attempt: it claims until the ledger says who has the right to call.

One attempt has one token. If the answer to a commit is lost, the attempt claims again with the
same token, and the ledger recognises its own claim. If no answer comes at all, the next attempt
judges the row.

A claim also starts a clock. Its row says how long this attempt may send. The time that the claim
itself took is not taken from the tool, within bounds; a claim older than those is not used.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypeAlias
from uuid import uuid4

from temporalio import activity

from ...crash import crash_point
from ...errors import LedgerUnavailable, RunNotRunning, StatementRefused
from ...identity import RunKey, first_execution
from ...ledger import (
    Accepted,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Busy,
    Claim,
    Dispatched,
    LookUp,
    Parked,
)
from ...metrics import TAKEOVERS
from ...traces import link, trace_parent
from ..runner.attempt_notes import AttemptNotes
from ..runner.bounded_call import despite_cancellation
from ..runner.clock import began_at, now
from .guarded_call import GuardedCall
from .ledger_write import UNAVAILABLE_SECONDS

LEASE_GRACE: Final = timedelta(seconds=30)
"""How far a lease lies beyond the attempt's deadline: for clocks, and for a slow record."""
MAX_LEASE: Final = timedelta(hours=24)

LOCAL_GRACE: Final = timedelta(seconds=5)
"""The same of a local attempt. Whoever comes after it may have to wait for its lease."""

_CLAIM_SECONDS: Final = 10.0
"""How long one attempt waits for its claim where attempts are counted; then a later one starts the
call."""
_LATEST_CLAIM_SECONDS: Final = 15.0
"""After which a claim is given back: the last one began in time, and its answer was slow."""
_SLOW_CLAIM: Final = timedelta(seconds=5)
"""How long a claim may take and still be used. Within that, its time is not taken from the tool:
the row says that the attempt may send for so much longer."""
_BUSY_SECONDS: Final = 0.3
"""How long one attempt waits for another action that is at work on the same key, where attempts are
not counted. Then it gives its place on the worker back: many that wait for one lock hold up nobody
else."""
_LOOK_AGAIN_SECONDS: Final = 0.2
"""Between two claims meanwhile."""

Claimed: TypeAlias = Dispatched | LookUp | AlreadyDone | Parked | Accepted
"""How a claim ends: never with *busy*."""


class Claims:
    """Claims for one attempt.

    Args:
        ledger: Where it claims.
        call: The call.
        request: What it claims.
    """

    def __init__(self, ledger: ActionLedger, call: GuardedCall, request: ActionRequest) -> None:
        self._ledger = ledger
        self._call = call
        self._request = request
        self._attempt = _attempt(call)
        self._requested_at = self._claimed_at = call.began

    async def obtain(self) -> Claimed:
        """Claim until it is clear who has the right to call. Safe to repeat.

        Raises:
            ApplicationError: It could not be claimed in time, and nothing was dispatched.
            IdempotencyKeyConflict: The key was used for another action.
            LedgerError: As `ActionLedger.claim`.
        """
        crash_point("before_claim", tool=self._request.tool)
        try:
            claim = await self._claim_when_free()
        except asyncio.CancelledError:
            # The claim has finished, and we know that nothing was sent. If handing it back is not
            # answered, the next attempt finds the row dispatched, which is safe too.
            await self.hand_back(self._request)
            raise
        crash_point("after_claim", tool=self._request.tool)
        call = claim.call if isinstance(claim, LookUp) else claim
        if isinstance(call, Dispatched) and call.taken_over:
            self._call.count(TAKEOVERS)
            self._call.log.info("ledger.action_taken_over", action_key=call.key)
            link(call.lost_trace, "takes over from")
        if self._call.spent() > _LATEST_CLAIM_SECONDS and isinstance(claim, Dispatched):
            await self.hand_back(claim)
            raise self._call.not_started("the ledger took too long")
        return claim

    async def _claim_when_free(self) -> Claimed:
        """Claim; wait for a while for a ledger that is away, and for another action's attempt.

        A claim that was surely not committed is not waited for here: a later attempt starts it.
        """
        perhaps_committed = False
        while True:
            if not perhaps_committed:
                self._requested_at = now()
            try:
                claim = await self._claim(self._attempt_now(), lost=self._attempt.repeats)
                self._claimed_at = now()
            except LedgerUnavailable as err:
                perhaps_committed = perhaps_committed or err.reached
                self._call.log.warning("ledger.unavailable", reason=err.message)
                if not perhaps_committed or self._is_over():
                    raise self._call.not_started(err.message) from err
                await asyncio.sleep(UNAVAILABLE_SECONDS)
                continue
            if not isinstance(claim, Busy):
                return claim
            await self._wait_for(claim.holder, perhaps_committed=perhaps_committed)

    async def claim_anew(self) -> Dispatched | None:
        """Write the row again that this attempt had claimed, and that a failover lost.

        None: another attempt, or a person, has the action now.
        """
        claim = await self._claim(replace(self._attempt_now(), repeats=False), lost=True)
        return claim if isinstance(claim, Dispatched) else None

    async def _claim(self, attempt: Attempt, *, lost: bool) -> Claim:
        """Claim, without waiting; register the run first where the ledger does not have it."""
        try:
            return await self._ledger.claim(self._request, attempt)
        except RunNotRunning as err:
            if err.known:
                raise
        # A failover lost it, and what its attempts wrote may be lost with it: a run of ours is open
        # before it calls. That of another application is opened by its first call.
        lost = lost or self._call.guarded.hand_over is not None
        await open_run_of_caller(self._ledger, self._call.header.run_key, lost=lost)
        return await self._ledger.claim(self._request, attempt)

    def _attempt_now(self) -> Attempt:
        """Return the attempt, with the engine's clock as this process counts it on."""
        lasted = timedelta(seconds=self._call.spent())
        return replace(self._attempt, engine_now=self._attempt.started_at + lasted)

    async def send_after_lookup(self, call: Dispatched) -> Dispatched:
        """Turn a claim to look up into one to call: the action surely never happened."""
        self._requested_at = now()
        call = replace(call, attempt=self._attempt_now(), taken_over=False, key_life=None)
        await self._ledger.send_after_lookup(self._request, call)
        self._claimed_at = now()
        return call

    async def hand_back(self, row: ActionRequest | Dispatched, *, failures: int = 0) -> bool:
        """Make the row an intent again, where this attempt sent nothing; return whether it is.

        Args:
            row: What was claimed, or the claim.
            failures: Tries that the tool has failed so far, this one included.
        """
        with suppress(LedgerUnavailable, StatementRefused):
            return await despite_cancellation(
                self._ledger.hand_back(row, self._attempt, failures=failures)
            )
        return False

    def since_claimed(self) -> float:
        """Return the seconds since the last claim, of those that the row gives the call."""
        return now() - self._claimed_at

    @property
    def is_too_old(self) -> bool:
        """Whether the last claim took too long, or this process was frozen since."""
        return now() - self._requested_at > _SLOW_CLAIM.total_seconds()

    async def _wait_for(self, holder: str | None, *, perhaps_committed: bool) -> None:
        """Wait for a while without a connection; then a later attempt claims."""
        self._call.log.info("ledger.key_busy", holder=holder)
        counted = self._call.guarded.hand_over is None  # by the workflow of another application
        patience = _CLAIM_SECONDS if counted else _BUSY_SECONDS
        if activity.is_worker_shutdown() or self._call.spent() > patience:
            if perhaps_committed:
                await self.hand_back(self._request)
            # Nothing has begun here, and the wait must not use up the time of the call.
            reason = f"{holder or 'an open transaction'} is at work on the same business fact"
            raise self._call.not_started(reason)
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _is_over(self) -> bool:
        """Whether the server will soon give this attempt up."""
        assert self._attempt.deadline is not None
        return self._call.spent() > self._attempt.deadline.total_seconds() + _CLAIM_SECONDS


def _attempt(call: GuardedCall) -> Attempt:
    """Return what the row says of the running attempt.

    From here on the attempt may call, so a note that nothing was called is taken back.
    """
    notes = AttemptNotes.read()
    if notes.uncalled:
        replace(notes, uncalled=0).leave()
    info = activity.info()
    nearest = call.limits.nearest
    bound = info.start_to_close_timeout if nearest is None else timedelta(seconds=nearest)
    grace = LOCAL_GRACE if info.is_local else LEASE_GRACE
    return Attempt(
        started_at=began_at(),
        token=uuid4(),
        lease=min((bound or MAX_LEASE) + grace, MAX_LEASE),
        deadline=min((bound or MAX_LEASE) + _SLOW_CLAIM, MAX_LEASE),
        scheduled_at=info.scheduled_time,
        repeats=call.repeats,
        unordered=info.is_local,
        unrecorded_before=call.adopted,
        trace_parent=trace_parent(),
    )


def _workflow_of(run_key: RunKey) -> str | None:
    """Return the workflow of a run that a caller started; its child, or its undo, may call."""
    return None if first_execution(run_key) is None else run_key.rpartition("/")[0]


async def open_run_of_caller(ledger: ActionLedger, run_key: RunKey, *, lost: bool) -> None:
    """Register the run of the workflow that has started the running activity. Safe to repeat.

    Args:
        ledger: Where it is missing.
        run_key: Of the run.
        lost: It was registered before, or may have been.
    """
    info = activity.info()
    await ledger.runs.open(
        run_key=run_key,
        workflow_id=_workflow_of(run_key) or info.workflow_id or "",
        agent=info.workflow_type or "",
        input_digest="",
        attempt_at=began_at(),
        namespace=info.namespace,
        lost=lost,
    )
