"""One attempt at a call with an effect: claim it, call it at most once, record how it ended.

    claim  -> done, parked, the relay's     tell what stands; call nothing
           -> dispatched                    call
           -> ask                           ask downstream; call only if it surely never happened
    call   -> returned                      record
           -> asks a person                 pause
           -> anything else                 `aftermath`

A claim may be for another action that holds the same business key and whose attempt is dead.
Then that one is finished first, and the claim made again for its receipt.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from temporalio import activity

from ...errors import IdempotencyKeyConflict
from ...identity import ActionKey
from ...ledger import (
    Action,
    ActionLedger,
    AlreadyDone,
    Dispatched,
    Intended,
    LookUp,
    Outcome,
    Parked,
    Question,
)
from ..app.lookup import NEVER_HAPPENED
from ..app.tool_failure import FailureKind, ToolFailure
from ..contract.activity_failure import again
from ..contract.outcomes import Unrecorded
from ..runner.bounded_call import Abandoned, Returned
from .aftermath import Aftermath
from .calling import Calling, Invoke
from .claiming import Claiming
from .guarded import Ended
from .incoming_call import IncomingCall
from .metrics import count
from .pausing import Pausing, asks
from .preparing import Prepared
from .recording import Recording
from .retrying import delay_after, time_for

_ASK_AGAIN: Final = timedelta(seconds=10)
"""How long between two questions to the downstream system, at most."""


class ActionCall:
    """One attempt at a call with an effect.

    Args:
        ledger: Where it is claimed and recorded.
        call: The call as it came.
        prepared: What it claims, and calls with.
        invoke: Runs the activity.
    """

    def __init__(
        self, ledger: ActionLedger, call: IncomingCall, prepared: Prepared, invoke: Invoke
    ) -> None:
        self._call = call
        self._guarded = call.guarded
        self._request = prepared.request
        self._claiming = Claiming(ledger, call, prepared.request)
        self._calling = Calling(call, prepared, invoke, spent=self._claiming.spent)
        self._recording = Recording(ledger, call, self._claiming)
        self._pausing = Pausing(ledger, call)
        self._aftermath = Aftermath(
            ledger, call, claiming=self._claiming, recording=self._recording
        )

    async def run(self) -> Any:
        """Carry it out, or find out what became of it; return what the workflow gets."""
        while True:
            try:
                claim = await self._claiming.claim()
            except IdempotencyKeyConflict as err:
                self._call.log.info("ledger.key_conflict", existing=err.existing)
                return self._guarded.reply_refused(err, self._request.key)
            if isinstance(claim, AlreadyDone | Parked | Intended):
                return self._tell_found(claim)
            if isinstance(claim, LookUp):
                row, ended = claim.call, await self._ask(claim)
            else:
                row, ended = claim, await self._make(claim)
            if row.settles_for is None:
                return self._tell(row.key, ended)
            # That was another action's row; now claim again and get its receipt.

    # --- the call -------------------------------------------------------------------------

    async def _make(self, claim: Dispatched, *, made_before: bool = False) -> Ended:
        """Call, and record how it ended.

        Args:
            claim: By which it is called.
            made_before: It was called before, surely without effect.
        """
        left = self._calling.seconds_left(claim.key_life)
        late = self._claiming.is_too_old
        if late or (left is not None and left <= 0):
            return await self._aftermath.not_called(claim, late=late)
        context = self._calling.context(
            claim.key,
            claim.idempotency_key,
            taken_over=claim.taken_over or made_before,
            asked=claim.asked,
        )
        end = await self._calling.call(
            context,
            claim.args,
            key_life=claim.key_life,
            on_late=lambda late_end: self._recording.late(claim, late_end),
        )
        if isinstance(end.how, Returned):
            return await self._recording.returned(claim, end.how)
        if asks(end):
            return await self._pausing.pause(end, context, claim)
        abandoned = isinstance(end.how, Abandoned)
        if end.stopped_by == "caller":
            return await self._aftermath.stopped(claim, over=not abandoned)
        failure = self._calling.failure(end)
        return await self._aftermath.failed(claim, failure, abandoned=abandoned)

    # --- asking downstream ----------------------------------------------------------------

    async def _ask(self, claim: LookUp) -> Ended:
        """Ask whether an earlier attempt had its effect; call only if it surely had none."""
        call = claim.call
        context = self._calling.context(call.key, call.idempotency_key, taken_over=True)
        end = await self._calling.ask(context, call.args)
        if end.stopped_by == "caller":
            return await self._aftermath.stopped(call, over=False)
        if not isinstance(end.how, Returned):
            failure = self._calling.failure(end)
            delay = delay_after(self._call, failure, failed=activity.info().attempt)
            return await self._ask_again(call, failure, delay)
        if end.how.value is NEVER_HAPPENED:
            return await self._not_found(claim)
        self._call.log.info("ledger.action_found", action_key=call.key)
        return await self._recording.record(call, self._guarded.encode(end.how.value))

    async def _not_found(self, claim: LookUp) -> Ended:
        """Call what never happened; ask again where an attempt may still be on its way there."""
        call = claim.call
        left = claim.settles_in - timedelta(seconds=self._claiming.spent())
        if left > timedelta():
            told = f"not found; that counts in {left.total_seconds():.1f} s"
            failure = ToolFailure(FailureKind.TRANSIENT, "NotFoundYet", told)
            delay = min(left + timedelta(seconds=0.1), _ASK_AGAIN)
            return await self._ask_again(call, failure, delay)
        if self._request.lookup_only or call.failures >= self._call.tries:
            told = f"tried {call.failures} times, and it never happened, as was asked"
            return await self._recording.record(call, _never(told))
        self._call.log.info("ledger.action_never_happened", action_key=call.key)
        never = await self._claiming.send_after_lookup(call)
        return await self._make(never, made_before=True)

    async def _ask_again(self, call: Dispatched, failure: ToolFailure, delay: timedelta) -> Ended:
        if failure.kind is not FailureKind.OTHER and time_for(self._call, delay):
            raise again(failure.type, failure.text, delay=delay)
        reason = f"asked what became of it: {failure.text}"
        return await self._recording.park(call, reason, over=False)

    # --- the answer -----------------------------------------------------------------------

    def _tell(self, key: ActionKey, ended: Ended) -> Any:
        if isinstance(ended, Unrecorded):
            return self._guarded.reply_unrecorded(ended)
        if isinstance(ended, Outcome):
            limit = self._call.header.content_limit
            return self._guarded.reply_done(key, ended, None, limit)
        if isinstance(ended, Question):
            return self._guarded.reply_asked(ended)
        if ended.recorded is not None:
            return self._tell_done(ended)
        return self._guarded.reply_unknown(ended)

    def _tell_found(self, claim: AlreadyDone | Parked | Intended) -> Any:
        match claim:
            case AlreadyDone(action):
                return self._tell_done(action)
            case Parked(action):
                return self._tell_unknown(action)
            case Intended(action):
                return self._tell_accepted(action)

    def _tell_done(self, action: Action) -> Any:
        count("commitline_replays", action.tool)
        self._call.log.info(
            "ledger.action_replayed", action_key=action.key, duplicate_of=action.duplicate_of
        )
        assert action.recorded is not None, "agent_actions_done_is_complete"
        return self._guarded.reply_done(
            action.key, action.recorded, action.duplicate_of, self._call.header.content_limit
        )

    def _tell_unknown(self, action: Action) -> Any:
        self._call.log.warning(
            "ledger.action_unknown", action_key=action.key, reason=action.parked_reason
        )
        return self._guarded.reply_unknown(action)

    def _tell_accepted(self, action: Action) -> Any:
        self._call.log.info("ledger.action_intended", action_key=action.key, state=action.state)
        conversation = self._request.thread_id
        ours = conversation is not None and action.thread_id == conversation
        own = ours or action.run_key == self._call.header.run_key
        return self._guarded.reply_accepted(action, own=own)


def _never(told: str) -> Outcome:
    return Outcome.error(kind="NeverHappened", message=told, effect_possible=False)
