"""One attempt at one guarded call, from the claim to the reply.

    request   refused                       reply that nothing was called
              a READ                        `read_attempt`
    claim     done, parked, the relay's     reply with what stands; call nothing
              dispatched                    call
              to look up                    ask the downstream system; call only if the action
                                            surely never happened
    call      and what follows from its end `outcome`
    row       what follows is written       `row`
    reply     made of what stands

A claim may be of another action that holds the same business key and whose attempt is dead. Then
that action is finished first, and the claim is made again for its receipt.

Safe to repeat from any point: a retry finds the row, and does what `ledger.claim_rules` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from temporalio import activity

from ...errors import ActionError, IdempotencyKeyConflict
from ...identity import ActionKey
from ...ledger import (
    Accepted,
    Action,
    ActionLedger,
    AlreadyDone,
    Dispatched,
    Effect,
    LookUp,
    Outcome,
    Parked,
    Question,
)
from ...logs import logged_with
from ...metrics import REPLAYS
from ...traces import OUTCOME, RESULT, link, note, note_content, tool_call
from ..app.never_happened import NEVER_HAPPENED
from ..app.tool_failure import FailureKind, ToolFailure
from ..contract.activity_failure import again
from ..contract.outcomes import Unrecorded
from ..runner.bounded_call import Returned
from .claim_request import Prepared, RequestReader
from .claims import Claims
from .guarded_call import GuardedCall
from .invocation import Invocation, Invoke, failure_of
from .outcome import Stopped, Unknown, judge_end
from .read_attempt import ReadAttempt
from .retry import delay_after, time_for
from .row import ClaimedRow, Ended

_LOOKUP_EVERY: Final = timedelta(seconds=10)
"""How long between two lookups, at most."""


async def attempt(
    ledger: ActionLedger, call: GuardedCall, invoke: Invoke, args: Sequence[Any]
) -> Any:
    """Make one attempt at a call; return, or raise, what the workflow gets.

    Args:
        ledger: Where the call is claimed and recorded.
        call: The call.
        invoke: Runs the activity.
        args: The arguments that the workflow gave.
    """
    named = call.named
    with (
        tool_call(
            named["tool"],
            run=named["run_key"],
            action=named["action_key"],
            effect=call.guarded.effect.value,
            attempt=named["attempt"],
        ),
        logged_with(**named),  # also what libraries and the tool log
    ):
        return await _attempt(ledger, call, invoke, args)


async def _attempt(
    ledger: ActionLedger, call: GuardedCall, invoke: Invoke, args: Sequence[Any]
) -> Any:
    reader = RequestReader(ledger, call)
    prepared = await reader.read(args)
    if isinstance(prepared, ActionError):
        call.log.info("tool.call_refused", code=prepared.code)
        note({OUTCOME: "refused"}, failed=prepared.code)
        return call.guarded.replies.refused(prepared, "")
    if call.guarded.effect is Effect.READ:
        begun = await reader.begun_before()
        if begun is None:
            return await ReadAttempt(ledger, call, prepared, invoke).run()
        # A worker with older code took it for something else: its row counts.
        prepared = replace(prepared, request=begun)
    return await ActionAttempt(ledger, call, prepared, invoke).run()


class ActionAttempt:
    """One attempt at a call with an effect.

    Args:
        ledger: Where the call is claimed and recorded.
        call: The call.
        prepared: What it claims, and calls with.
        invoke: Runs the activity.
    """

    def __init__(
        self, ledger: ActionLedger, call: GuardedCall, prepared: Prepared, invoke: Invoke
    ) -> None:
        self._ledger = ledger
        self._call = call
        self._replies = call.guarded.replies
        self._request = prepared.request
        self._claims = Claims(ledger, call, prepared.request)
        self._invocation = Invocation(call, prepared, invoke, spent=self._claims.since_claimed)

    async def run(self) -> Any:
        """Carry the call out, or find out what became of it; return what the workflow gets."""
        while True:
            try:
                claim = await self._claims.obtain()
            except IdempotencyKeyConflict as err:
                self._call.log.info("ledger.key_conflict", existing=err.existing)
                note({OUTCOME: "refused"}, failed=err.code)
                return self._replies.refused(err, self._request.key)
            match claim:
                case AlreadyDone(action):
                    return self._reply_done(action)
                case Parked(action):
                    return self._reply_unknown(action)
                case Accepted(action):
                    return self._reply_accepted(action)
                case LookUp():
                    dispatched, ended = claim.call, await self._look_up(claim)
                case Dispatched():
                    dispatched, ended = claim, await self._make(claim)
            if dispatched.settles_for is None:
                return self._reply(dispatched.key, ended)
            # That was another action's row; now claim again and get its receipt.

    async def _make(self, claim: Dispatched, *, called_before: bool = False) -> Ended:
        """Call the tool once, and write down how the call ended.

        Args:
            claim: The claim that allows the call.
            called_before: An earlier attempt called it, surely without effect.
        """
        row = self._claimed_row(claim)
        taken_over = claim.taken_over or called_before
        context = self._invocation.context(claim, taken_over=taken_over)
        end = await self._invocation.run_claimed(
            claim, context, too_old=self._claims.is_too_old, on_late=row.record_late
        )
        try:
            return await row.write(judge_end(self._call, claim, end, context))
        finally:
            self._invocation.count(end)

    def _claimed_row(self, claim: Dispatched) -> ClaimedRow:
        return ClaimedRow(self._ledger, self._call, self._claims, claim)

    # --- the lookup -------------------------------------------------------------------------

    async def _look_up(self, claim: LookUp) -> Ended:
        """Ask whether an earlier attempt had its effect; call only if it surely had none."""
        call = claim.call
        context = self._invocation.context(call, taken_over=True)
        end = await self._invocation.look_up(context, call.args)
        if end.stopped_by == "caller":
            return await self._claimed_row(call).write(Stopped(over=False))
        if not isinstance(end.how, Returned):
            failure = failure_of(self._call, end)
            delay = delay_after(self._call, failure, failed=activity.info().attempt)
            return await self._look_up_again(call, failure, delay)
        if end.how.value is NEVER_HAPPENED:
            return await self._not_found(claim)
        self._call.log.info("ledger.action_found", action_key=call.key)
        return await self._claimed_row(call).record(self._call.guarded.encode(end.how.value))

    async def _not_found(self, claim: LookUp) -> Ended:
        """Call what never happened; look up again where an attempt may still be on its way."""
        call = claim.call
        left = claim.settles_in - timedelta(seconds=self._claims.since_claimed())
        if left > timedelta():
            text = f"not found; that counts in {left.total_seconds():.1f} s"
            failure = ToolFailure(FailureKind.TRANSIENT, "NotFoundYet", text)
            delay = min(left + timedelta(seconds=0.1), _LOOKUP_EVERY)
            return await self._look_up_again(call, failure, delay)
        if self._request.lookup_only or call.failures >= self._call.tries:
            text = f"tried {call.failures} times, and it never happened, as was asked"
            never = Outcome.error(kind="NeverHappened", message=text, effect_possible=False)
            return await self._claimed_row(call).record(never)
        self._call.log.info("ledger.action_never_happened", action_key=call.key)
        return await self._make(await self._claims.send_after_lookup(call), called_before=True)

    async def _look_up_again(
        self, call: Dispatched, failure: ToolFailure, delay: timedelta
    ) -> Ended:
        worth_it = failure.kind not in (FailureKind.OTHER, FailureKind.REFUSED)
        if worth_it and time_for(self._call, delay):
            raise again(failure.type, failure.text, delay=delay)
        reason = f"asked what became of it: {failure.text}"
        return await self._claimed_row(call).park(Unknown(reason, over=False))

    # --- the reply --------------------------------------------------------------------------

    def _reply(self, key: ActionKey, ended: Ended) -> Any:
        guarded = self._call.guarded
        match ended:
            case Outcome():
                _note_outcome(ended)
                return self._replies.done(key, ended, None, self._call.header.content_limit)
            case Unrecorded():
                note({OUTCOME: ended.outcome or "unknown"}, failed="unrecorded")
                assert guarded.hand_over is not None, "by which it was handed over"
                return guarded.hand_over.reply(ended)
            case Question():
                note({OUTCOME: "question"})
                assert guarded.questions is not None, "by which it was asked"
                return guarded.questions.reply(ended)
            case Action():
                known = ended.recorded is not None
                return self._reply_done(ended) if known else self._reply_parked(ended)

    def _reply_done(self, action: Action) -> Any:
        self._call.count(REPLAYS)
        self._call.log.info(
            "ledger.action_replayed", action_key=action.key, duplicate_of=action.duplicate_of
        )
        assert action.recorded is not None, "agent_actions_done_is_complete"
        link(action.trace_parent, "returns the outcome of")
        _note_outcome(action.recorded)
        return self._replies.done(
            action.key, action.recorded, action.duplicate_of, self._call.header.content_limit
        )

    def _reply_unknown(self, action: Action) -> Any:
        self._call.log.warning(
            "ledger.action_unknown", action_key=action.key, reason=action.parked_reason
        )
        return self._reply_parked(action)

    def _reply_parked(self, action: Action) -> Any:
        link(action.trace_parent, "takes over from")
        note({OUTCOME: "unknown"}, failed="unknown")
        return self._replies.unknown(action)

    def _reply_accepted(self, action: Action) -> Any:
        note({OUTCOME: "accepted"})
        self._call.log.info("ledger.action_intended", action_key=action.key, state=action.state)
        conversation = self._request.thread_id
        ours = conversation is not None and action.thread_id == conversation
        own = ours or action.run_key == self._call.header.run_key
        return self._replies.accepted(action, own=own)


def _note_outcome(outcome: Outcome) -> None:
    """Have the span of the attempt say what stands."""
    note({OUTCOME: outcome.kind}, failed="" if outcome.kind == "ok" else outcome.kind)
    note_content({RESULT: outcome.result})
