"""The reply to a call: what the model reads of it. Each call gets exactly one.

A reply has one of three statuses. ``ok``: the action happened. ``error``: it did not happen;
or it happened and its result could not be kept, and then the reply says so. ``unknown``: it may
have happened. A reply never says "failed" of an action that may stand.

A reply is made from what is recorded and from nothing else, so a replay reads the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ...canonical import Json, dumps, parse
from ...errors import ActionError, ArgumentsChanged, EndedByOperator, IdempotencyKeyConflict
from ...ledger.action_records import Action, Outcome
from ...ledger.question_rules import Question
from ..contract.deadlines import wait_seconds
from ..contract.outcomes import Unrecorded
from ..contract.reply import CallQuestion, Reply
from ..contract.sizes import MAX_CONTENT
from .reply_content import bounded
from .standing_actions import listed

_MAX_LISTED: Final = 20
"""Actions of a sub-agent that a reply lists one by one."""


def unrecorded(ended: Unrecorded) -> Reply:
    """Hand over how a call ended, for the run to record."""
    return Reply("unknown", None, ended.key, unrecorded=ended)


def question(asked: Question) -> Reply:
    """Hand over the question of a tool, for the run to wait for its answer."""
    if asked.state == "expired":
        return done(None, asked.not_executed)  # of a call without a row
    seconds = wait_seconds(asked.seconds_left) if asked.state == "waiting" else 0.0
    return Reply("unknown", None, question=CallQuestion(asked.number, asked.message, seconds))


def of_action(action: Action, *, limit: int = MAX_CONTENT) -> Reply:
    """Reply with what is known of an action: it has ended, is parked, or the relay sends it."""
    if action.recorded is not None:
        return done(action.key, action.recorded, duplicate_of=action.duplicate_of, limit=limit)
    if action.relayed and not action.parked:
        return accepted(action)
    return unknown(action)


def accepted(action: Action, *, own: bool = True) -> Reply:
    """Reply that the relay will carry an action out, and how the model learns how it ended.

    Nothing in the reply depends on what becomes of the action, so a replay reads the same.

    Args:
        action: One that the relay is going to send, or is sending.
        own: Whether the action is of this conversation. False: another one asked for the same
            before.
    """
    note = _ACCEPTED if own else _ACCEPTED_BEFORE
    content = {"accepted": True, "action": action.key, "state": "pending", "note": note}
    return Reply("ok", content, action.key, existing=not own, accepted=True)


_ACCEPTED: Final = (
    "NOT done yet: it was accepted, and is carried out apart from this conversation. It may still "
    "fail. Do not say that it happened, and do not call it again. A notice tells how it ended; "
    "action_state tells how it stands."
)
_ACCEPTED_BEFORE: Final = (
    "NOT done yet: the same was asked for before, elsewhere, and is under way; it is not done "
    "twice. It may still fail. Do not say that it happened. Call this again later to learn how it "
    "ended."
)


def action_state(action: Action) -> dict[str, Any]:
    """Return the result of the tool `action_state`, as JSON data."""
    about = {"action": action.key, "tool": action.tool}
    if action.undone_by is not None:
        note = f"It happened, and was UNDONE afterwards by {action.undone_by}: it does not stand."
        return {**about, "state": "undone", "note": note}
    if action.recorded is not None:
        content = action.recorded.value
        if action.recorded.kind == "error":
            return {**about, "state": "error", **_error(content, action.recorded.effect_possible)}
        return {**about, "state": "ok", "result": content}
    if action.parked:
        return {**about, "state": "unknown", **unknown(action).content}
    return {**about, "state": "pending", "note": "NOT done yet. It may still fail."}


def done(
    key: str | None,
    outcome: Outcome,
    *,
    duplicate_of: str | None = None,
    limit: int = MAX_CONTENT,
) -> Reply:
    """Reply with a recorded outcome.

    Args:
        key: The row that answers for the call; None if it has none.
        outcome: What is recorded.
        duplicate_of: The action that did it before, and whose outcome this is.
        limit: Characters of a result that may travel.
    """
    reply = _done(key, outcome, duplicate_of, limit)
    if outcome.state_changes is None or duplicate_of is not None:
        return reply
    return replace(reply, changes=parse(outcome.state_changes))


def _done(key: str | None, outcome: Outcome, duplicate_of: str | None, limit: int) -> Reply:
    possible = outcome.effect_possible
    if outcome.kind == "error":
        error = _error(outcome.value, possible)
        if duplicate_of is not None:
            error["error"]["existing_action"] = duplicate_of
        return Reply("error", error, key, duplicate_of is not None, effect_possible=possible)
    content = bounded(outcome, duplicate_of or key, limit)
    if duplicate_of is not None:
        content = {
            "existing": True,
            "action": duplicate_of,
            "note": "This had already been done by that action; it was not done again.",
            "result": content,
        }
    partial = len(outcome.result) > limit
    return Reply("ok", content, key, existing=duplicate_of is not None, partial=partial)


def unknown(action: Action) -> Reply:
    """Reply that an action may have happened, why that is not known, and who settles it."""
    return unknown_at(action.duplicate_of or action.key, action.parked_reason, key=action.key)


def unknown_at(action: str, reason: str | None, *, key: str | None = None) -> Reply:
    """Reply the same of a call whose row was not read.

    Args:
        action: What is unknown.
        reason: Why.
        key: The row that answers for the call; None if it may have none.
    """
    content = {
        "unknown": {
            "message": "This may or may not have happened. Do not assume either.",
            "reason": reason,
            "action": action,
            "settled_by": "an operator, who looks at the downstream system",
            "asking_again": "will not repeat it while this is unknown",
        }
    }
    return Reply("unknown", content, key)


def refused(error: ActionError | IdempotencyKeyConflict, *, key: str | None = None) -> Reply:
    """Reply with an error without effect: nothing was called."""
    content = _error({"type": type(error).__name__, "message": error.message}, False)
    if isinstance(error, IdempotencyKeyConflict):
        content["error"]["existing_action"] = error.existing
        content["error"]["existing_action_stands"] = True
    judge_again = isinstance(error, ArgumentsChanged)
    return Reply("error", content, key, effect_possible=False, judge_again=judge_again)


def not_run(kind: str, message: str) -> Reply:
    """Reply that a call was not even tried: unknown tool, malformed or truncated arguments."""
    content = _error({"type": kind, "message": message}, False)
    return Reply("error", content, effect_possible=False)


def not_carried_out() -> Reply:
    """Reply that a call of an earlier run was not carried out, and will not be."""
    return not_run(
        "NotCarriedOut",
        "its run ended before it was carried out, or it only reads and its answer was not kept; "
        "call it again if it is still needed",
    )


def result_lost(beginning: Json) -> Reply:
    """Reply with the beginning of a result whose whole the ledger has lost."""
    note = "It happened. A failover of the database lost its record; this is left of its result."
    return Reply("ok", {"note": note, "result": beginning})


def record_lost() -> Reply:
    """Reply that nothing is known of a call: its record is gone."""
    content = {"unknown": {"message": "This may or may not have happened; its record is gone."}}
    return Reply("unknown", content)


def sub_agent_answered(output: str, *, structured: bool, limit: int = MAX_CONTENT) -> Reply:
    """Reply with the answer of a sub-agent: a text, or the JSON text of a structured output."""
    result = output if structured else dumps(output)
    return Reply("ok", bounded(Outcome.ok(result), None, limit))


def sub_agent_failed(reason: str, standing: Sequence[Action]) -> Reply:
    """Reply that a sub-agent gave no answer, and which of its actions stand, or may."""
    message = f"the agent gave no answer: {reason}"
    content = _error({"type": "SubAgentFailed", "message": message}, bool(standing))
    if standing:
        content["error"]["actions"] = "These took effect, or may have, and stand:\n" + "\n".join(
            listed(standing, _MAX_LISTED)
        )
    return Reply("error", content, effect_possible=bool(standing))


def ended_by_operator() -> Reply:
    """Reply that a call was ended from outside before anything was sent."""
    kind = EndedByOperator
    return not_run(kind.__name__, f"not carried out: an operator ended it [{kind.code}]")


def _error(error: dict[str, Any], effect_possible: bool) -> dict[str, Any]:
    return {"error": {**error, "effect": "happened" if effect_possible else "none"}}
