"""One call, until it is settled: its outcome is recorded, or it is surely unknown.

run the activity -> the attempt could not record the outcome: have it recorded
                 -> an operator ended it: settle the call from the ledger
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from temporalio.common import RawValue

from ..activities.contract.action_header import ActionHeader
from ..activities.contract.approvals import NOT_EXECUTED, REJECTIONS
from ..activities.contract.deadlines import CallLimits
from ..activities.contract.encoding import pack_text
from ..activities.contract.outcomes import (
    RECORD_OUTCOME,
    SETTLE_ENDED,
    SettleEnded,
    Unrecorded,
)
from ..activities.contract.reply import Reply
from ..activities.contract.sizes import MAX_CONTENT
from ..activities.contract.undo import UndoStep
from ..activities.replies import call_reply
from ..identity import ActionKey, Position, action_key
from .action_headers import Surroundings, surroundings, this_run
from .activity_calls import (
    ENDED_BY_OPERATORS,
    despite_cancellation,
    raise_if_cancelled,
    run_activity,
    run_ledger_activity,
)
from .progress import CallProgress, CallState

_MAX_WAITS: Final = 60
"""How often a call may wait to be started that no run planned. Nothing can stop an undo, so nothing
may keep it for ever: it skips what could not begin for half an hour, and a later undo can try it.
An action of the relay is due again later."""


async def settled_reply(
    activity: str,
    arguments: RawValue | None,
    *,
    at: Position,
    key: ActionKey | None,
    limits: CallLimits,
    heartbeat_seconds: float,
    summary: str,
    local: bool = False,
) -> Reply:
    """Make a call; return its reply when its outcome is recorded, or when it is surely unknown.

    Args:
        activity: The tool.
        arguments: Its JSON; None where its activity takes none.
        at: The call's position.
        key: Its action; None for a READ, which has none.
        limits: Its deadlines.
        heartbeat_seconds: How soon Temporal notices a dead worker.
        summary: For the UI.
        local: Try it as a local activity first.
    """
    limit, ended = content_share(), 0
    surroundings.set(replace(surroundings.get(), limits=limits))
    while True:
        raise_if_cancelled()
        reply = await run_activity(
            Reply,
            activity,
            arguments,
            at=at,
            limits=limits,
            heartbeat_seconds=heartbeat_seconds,
            summary=summary,
            local=local,
        )
        if reply is not None:
            if reply.unrecorded is None:
                return reply.with_key(key or action_key(this_run(), at))
            return await _record(replace(reply.unrecorded, content_limit=limit))
        ended += 1
        if key is not None:
            found = await _standing(SettleEnded(key, limit), at)
            if found.action_key is not None:
                return found
        if ended == ENDED_BY_OPERATORS:
            return call_reply.ended_by_operator()


async def step_reply(step: UndoStep, header: ActionHeader, *, heartbeat_seconds: float) -> Reply:
    """Make a call that no run planned: one of an undo, or of the relay.

    Args:
        step: The call.
        header: Its own; `UndoStep.header`.
        heartbeat_seconds: How soon Temporal notices a dead worker.

    Raises:
        ActivityError: It could not begin for half an hour, among others.
    """
    header = replace(header, max_waits=_MAX_WAITS)
    surroundings.set(
        Surroundings(calls_tools=True, header=header, content_limit=header.content_limit)
    )
    try:
        return await settled_reply(
            step.tool,
            None if step.bare else pack_text("{}"),  # the guard has them from the ledger
            at=header.position,
            key=action_key(header.run_key, header.position),
            limits=step.limits,
            heartbeat_seconds=heartbeat_seconds,
            summary=step.summary,
        )
    finally:
        surroundings.set(Surroundings())


def content_share() -> int:
    """Return how many characters of a result travel."""
    return surroundings.get().content_limit or MAX_CONTENT


def state_of(reply: Reply) -> CallState:
    """Return the state that people see of a call with this reply."""
    if reply.accepted:
        return "accepted"
    if reply.status == "ok":
        return "existing" if reply.existing else "ok"
    if _rejection(reply):
        return "rejected"
    return "happened" if reply.status == "error" and reply.effect_possible else reply.status


def show_end(call: CallProgress, reply: Reply) -> None:
    """Show how a call ended: its state, and who rejected it."""
    call.state, call.why = state_of(reply), _rejection(reply)


def _rejection(reply: Reply) -> str:
    """Return who rejected a call, and why; or that nobody approved it in time."""
    if reply.status != "error" or reply.effect_possible or not isinstance(reply.content, dict):
        return ""
    error = reply.content.get("error")
    if not isinstance(error, dict) or error.get("type") not in REJECTIONS:
        return ""
    return str(error.get("message", "")).removeprefix(NOT_EXECUTED)


async def _record(ended: Unrecorded) -> Reply:
    """Have an outcome recorded that its attempt could not; return the reply that stands."""
    recording = run_ledger_activity(Reply, RECORD_OUTCOME, ended, "Record how a call ended")
    return await despite_cancellation(recording)


async def _standing(ended: SettleEnded, at: Position) -> Reply:
    """Return the reply to a call that an operator ended, as the ledger has it."""
    settling = run_ledger_activity(Reply, SETTLE_ENDED, ended, f"What became of {at}?")
    return await despite_cancellation(settling)
