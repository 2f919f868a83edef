"""What became of a call whose activity the server gave up: the ledger says it.

An attempt may be at work still. If it has dispatched the call, the call is unknown, and the attempt
settles it when it ends. If none has, this takes the claim, so that none will.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from temporalio import activity

from ..activities.contract.activity_failure import NOT_STARTED, again
from ..activities.guard.claims import open_run_of_caller
from ..activities.replies import call_reply
from ..activities.runner.clock import began_at
from ..canonical import digest, parse
from ..errors import RunNotRunning
from ..identity import action_key
from ..ledger import (
    Action,
    ActionLedger,
    ActionRequest,
    AlreadyDone,
    Attempt,
    Claim,
    Dispatched,
    HeldClaim,
    Outcome,
    Parked,
)
from .call_messages import SettleCall, SettledCall


async def settle_given_up(ledger: ActionLedger, request: SettleCall) -> SettledCall:
    """Return how a call ended, or that it is unknown. Safe to repeat.

    Raises:
        ApplicationError: Its row is in use; tried again.
        LedgerUnavailable: No answer within the deadline; tried again.
    """
    key = action_key(request.run_key, request.position)
    found = await ledger.get(key)
    if found is not None and found.state == "dispatched":
        assert found.claim_token is not None, "agent_actions_dispatch_is_complete"
        holder = HeldClaim(found.key, found.claim_token, found.domain_key)
        return _settled(await ledger.park(holder, request.why, over=False))
    if found is not None and found.state != "intent":
        return _settled(found)
    try:
        claim = await _claim(ledger, request)
    except RunNotRunning:
        return SettledCall(reply=call_reply.not_run("GivenUp", _nothing_sent(request)))
    match claim:
        case AlreadyDone(action) | Parked(action):
            return _settled(action)
        case Dispatched() if claim.taken_over:
            return _settled(await ledger.park(claim, request.why, over=False))
        case Dispatched():
            text = _nothing_sent(request)
            never = Outcome.error(kind="GivenUp", message=text, effect_possible=False)
            return SettledCall(await ledger.record(claim, never), key=key)
    raise again(NOT_STARTED, f"{key} is in use", delay=timedelta(seconds=1))


async def _claim(ledger: ActionLedger, request: SettleCall) -> Claim:
    """Claim the call as a later attempt than all that the server has given up."""
    wanted = ActionRequest(
        run_key=request.run_key,
        position=request.position,
        tool=request.tool,
        args=request.arguments,
        effect=request.effect,
        requested_digest=request.requested_digest,
        effective_digest=digest(parse(request.arguments)),
        thread_id=request.run_key,
    )
    bound = activity.info().start_to_close_timeout or timedelta(seconds=15)
    attempt = Attempt(began_at(), uuid4(), bound, repeats=True)
    try:
        return await ledger.claim(wanted, attempt)
    except RunNotRunning as err:
        if err.known:
            raise
    await open_run_of_caller(ledger, request.run_key, lost=True)
    return await ledger.claim(wanted, attempt)


def _settled(found: Action) -> SettledCall:
    if found.recorded is None:
        return SettledCall(reply=call_reply.of_action(found), key=found.key)
    return SettledCall(found.recorded, key=found.key, duplicate_of=found.duplicate_of)


def _nothing_sent(request: SettleCall) -> str:
    return f"nothing was sent until {request.why}"
