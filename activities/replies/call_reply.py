"""What the model is told about a call: exactly one reply, whatever happened.

Three statuses. ``ok``: it happened. ``error``: it did not happen, or, said so, it happened
and its answer could not be kept. ``unknown``: it may have happened. Never "failed" for
something that may stand. A reply is made of what is recorded and nothing else, so a replay
reads the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ...canonical import dumps, parse
from ...errors import ActionError, IdempotencyKeyConflict, NodeTimeout
from ...identity import within_run
from ...ledger.question_rules import Question
from ...ledger.records import Action, Outcome
from ..contract.outcomes import Unrecorded
from ..contract.reply import Asked, Reply
from ..contract.sizes import MAX_CONTENT
from ..contract.state_changes import Conflict, Dropped
from ..contract.wire import to_text

MAX_NOTICE: Final = 16 * 1024
"""Characters of a result that is told by a notice."""
FOR_EVER: Final = 10 * 365 * 86_400.0
"""Seconds for which a person is waited for, where there is no limit."""
_SHORT: Final = 500
_LISTED_OF_A_CALL: Final = 20
_LISTED: Final = 200
_BESIDE: Final = 400
"""Characters of what is said beside a beginning."""
_CUT: Final = 300
"""Characters of a text that is left of what does not fit."""
_WRAPPING: Final = 2_000
"""Characters of what is said about a result beside it."""
_HEAD: Final = 8_000
"""Characters of a larger one that the model reads."""


def unrecorded(ended: Unrecorded) -> Reply:
    """Hand over how a call ended, for the run to record."""
    return Reply("unknown", None, ended.key, unrecorded=ended)


def asked(question: Question) -> Reply:
    """Hand over what a tool asks midway, for the run to wait for."""
    if question.state == "expired":
        return done(None, question.not_executed)  # of a call without a row
    seconds = wait_seconds(question) if question.state == "waiting" else 0.0
    return Reply("unknown", None, asked=Asked(question.number, question.message, seconds))


def wait_seconds(question: Question) -> float:
    """Return how long a question may wait, in seconds: Temporal wants a number."""
    left = question.seconds_left
    return FOR_EVER if left is None else max(left, 0.001)


def told(action: Action, *, limit: int = MAX_CONTENT) -> Reply:
    """Tell what is known of an action that has ended, is parked, or is the relay's to send."""
    if action.recorded is not None:
        return done(action.key, action.recorded, duplicate_of=action.duplicate_of, limit=limit)
    if action.relayed and not action.parked:
        return accepted(action)
    return unknown(action)


def accepted(action: Action, *, own: bool = True) -> Reply:
    """Tell that an action will be carried out, and how to hear how it ended.

    Nothing in it depends on what became of the action: a replay reads the same.

    Args:
        action: The relay's to send, or under way.
        own: It is of this conversation, and not of somebody who asked for the same before.
    """
    note = _ACCEPTED if own else _ACCEPTED_BEFORE
    told = {"accepted": True, "action": action.key, "state": "pending", "note": note}
    return Reply("ok", told, action.key, existing=not own, accepted=True)


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


def state(action: Action) -> dict[str, Any]:
    """Tell how an action stands that the model asks about; JSON data."""
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
    """Tell a recorded outcome; ``duplicate_of`` names the action whose receipt it is."""
    reply = _done(key, outcome, duplicate_of, limit)
    if outcome.state_changes is None or duplicate_of is not None:
        return reply
    return replace(reply, changes=parse(outcome.state_changes))


def _done(key: str | None, outcome: Outcome, duplicate_of: str | None, limit: int) -> Reply:
    possible = outcome.effect_possible
    if outcome.kind == "error":
        told = _error(outcome.value, possible)
        if duplicate_of is not None:
            told["error"]["existing_action"] = duplicate_of
        return Reply("error", told, key, duplicate_of is not None, effect_possible=possible)
    content = _bounded(outcome, duplicate_of or key, limit)
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
    """Tell that it may have happened, why that is not known, and who settles it."""
    content = {
        "unknown": {
            "message": "This may or may not have happened. Do not assume either.",
            "reason": action.parked_reason,
            "action": action.duplicate_of or action.key,
            "settled_by": "an operator, who looks at the downstream system",
            "asking_again": "will not repeat it while this is unknown",
        }
    }
    return Reply("unknown", content, action.key)


def notice(action: Action) -> str:
    """Tell the model what became of what it was told is unknown, is accepted, or stands."""
    if action.undone_by is not None:
        return (
            f"[notice] The call of {action.tool} at {action.position} was undone afterwards, by "
            f"{action.undone_by}: what it did does not stand any more."
        )
    by = f"by {action.decided_by}" if action.decided_by else "by its own late answer"
    outcome = action.recorded
    assert outcome is not None, "only what is settled is told"
    if outcome.effect_possible:
        answer = dumps(_bounded(outcome, action.key, MAX_NOTICE))
        became = f"it happened. Its {'result' if outcome.kind == 'ok' else 'error'}: {answer}"
    elif action.relayed:
        became = f"it did NOT happen. Its error: {dumps(_bounded(outcome, action.key, MAX_NOTICE))}"
    else:
        became = "it did NOT happen."
    if action.relayed:
        settled = f", settled {by}" if action.decided_by else ""
        return (
            f"[notice] The call of {action.tool} at {action.position}, which was accepted as "
            f"{action.key}, has ended{settled}: {became}"
        )
    return (
        f"[notice] The call of {action.tool} at {action.position}, which was unknown, has been "
        f"settled {by}: {became}"
    )


def refused(error: ActionError | IdempotencyKeyConflict, *, key: str | None = None) -> Reply:
    """Tell an error without effect: nothing was called."""
    content = _error({"type": type(error).__name__, "message": error.message}, False)
    if isinstance(error, IdempotencyKeyConflict):
        content["error"]["existing_action"] = error.existing
        content["error"]["existing_action_stands"] = True
    return Reply("error", content, key, effect_possible=False)


def not_run(kind: str, message: str) -> Reply:
    """Tell that a call was not even tried: unknown tool, malformed or truncated arguments."""
    told = _error({"type": kind, "message": message}, False)
    return Reply("error", told, effect_possible=False)


def not_carried_out() -> Reply:
    """Tell that a call of another run left no trace, and that none comes any more."""
    return not_run(
        "NotCarriedOut",
        "its run ended before it was carried out, or it only reads and its answer was not kept; "
        "call it again if it is still needed",
    )


def lost() -> Reply:
    """Tell that nothing is known of a call."""
    content = {"unknown": {"message": "This may or may not have happened; its record is gone."}}
    return Reply("unknown", content)


def sub_agent_answered(output: str, *, structured: bool, limit: int = MAX_CONTENT) -> Reply:
    """Tell what a sub-agent answered: a text, or the JSON text of its structured output."""
    result = output if structured else dumps(output)
    return Reply("ok", _bounded(Outcome.ok(result), None, limit))


def sub_agent_failed(reason: str, standing: Sequence[Action]) -> Reply:
    """Tell that a sub-agent gave no answer, and which of its actions stand, or may."""
    message = f"the agent gave no answer: {reason}"
    told = _error({"type": "SubAgentFailed", "message": message}, bool(standing))
    if standing:
        told["error"]["actions"] = "These took effect, or may have, and stand:\n" + "\n".join(
            _listed(standing, _LISTED_OF_A_CALL)
        )
    return Reply("error", told, effect_possible=bool(standing))


def stands(action: Action) -> bool:
    """Whether an action took effect, or may have."""
    return action.state in ("unknown", "dispatched") or bool(action.effect_possible)


def left_standing(actions: Sequence[Action]) -> list[Action]:
    """Return those that took effect, or may have, without what was undone and what undid it."""
    undid = {one.undone_by for one in actions}
    return [
        one for one in actions if stands(one) and one.undone_by is None and one.key not in undid
    ]


def forked(actions: Sequence[Action]) -> str:
    """Tell the model what it had done on the way that was taken back."""
    lines = _listed(actions, _LISTED)
    return (
        "[notice] You are asked again from here. What you did after this point was taken out of "
        "the conversation, but these actions took effect, or may have, and stand unless it says "
        "otherwise:\n" + ("\n".join(lines) or "- none")
    )


def _listed(actions: Sequence[Action], most: int) -> list[str]:
    """Return a line for each of them, and one for each tool of what is too many."""
    lines = [
        f"- {action.tool} at {within_run(action.run_key, action.position)} "
        f"with {_short(action.args)}: {_became(action)}"
        for action in actions[:most]
    ]
    more = Counter(action.tool for action in actions[most:])
    return lines + [f"- {tool}: {count} more of these" for tool, count in more.items()]


def state_conflict(found: Conflict) -> str:
    """Tell the model that two of its calls gave a field of the state different values."""
    return (
        f"[notice] Two calls of one message changed {found.field!r} of the shared state "
        f"differently: {found.earlier} to {_short(dumps(found.value))}, {found.later} to "
        f"{_short(dumps(found.stands))}. The later call's value stands; correct it if it should "
        "not."
    )


def state_dropped(found: Dropped) -> str:
    """Tell the model that what a call changed in the state does not count."""
    changed = f" ({', '.join(found.fields)})" if found.fields else ""
    return (
        f"[notice] What the call at {found.position} changed in the shared state{changed} was "
        f"dropped, and the state is without it: {found.why}. The call's own result stands."
    )


def _became(action: Action) -> str:
    outcome = action.recorded
    if outcome is None:
        return "UNKNOWN: it may or may not have happened"
    if action.undone_by is not None:
        return f"it happened, and was UNDONE afterwards by {action.undone_by}"
    return f"it happened; its {'result' if outcome.kind == 'ok' else 'error'}: " + _short(
        outcome.result
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def node_timed_out() -> Reply:
    """Tell that a call's time was up before anything was sent."""
    return not_run(NodeTimeout.__name__, f"not carried out in time [{NodeTimeout.code}]")


def _error(error: dict[str, Any], effect_possible: bool) -> dict[str, Any]:
    return {"error": {**error, "effect": "happened" if effect_possible else "none"}}


def _bounded(outcome: Outcome, key: str | None, limit: int) -> Any:
    if len(outcome.result) <= limit:
        return outcome.value
    return {
        "truncated": True,
        "characters": len(outcome.result),
        "whole_value": f"in the ledger, as the result of {key}" if key else "not kept",
        "head": _head(outcome.result, limit),
    }


def _head(text: str, limit: int) -> str:
    """Return the beginning of a result, as much as travels: it is escaped twice on its way."""
    head = text[: min(_HEAD, limit // 2)]
    while head and len(to_text(to_text(head))) > limit - _BESIDE:
        head = head[: len(head) * 3 // 4]
    return head


def content_text(reply: Reply, *, limit: int = MAX_CONTENT) -> str:
    """Return a reply's content as the JSON text that the model reads.

    Where it is far over the limit (characters), as an error's text may make it, its texts are
    cut; whether there was an effect, and whose row answers for it, stays said.
    """
    # Not `dumps`: a result as deep as may be kept lies a level deeper in what wraps it.
    text = to_text(reply.content)
    if len(text) <= limit + _WRAPPING:
        return text
    return to_text(_cut(reply.content))


def _cut(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _cut(item) for name, item in content.items()}
    if isinstance(content, str) and len(content) > _CUT:
        return f"{content[:_CUT]}…"
    return content
