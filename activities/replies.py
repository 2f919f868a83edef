"""What the model is told about a call: exactly one reply, whatever happened.

Three statuses. ``ok``: it happened. ``error``: it did not happen, or, said so, it happened
and its answer could not be kept. ``unknown``: it may have happened. Never "failed" for
something that may stand. A reply is made of what is recorded and nothing else, so a replay
reads the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from ..canonical import dumps
from ..errors import ActionError, IdempotencyKeyConflict, NodeTimeout
from ..identity import ActionKey
from ..ledger.actions import Action, Outcome, OutcomeKind
from ..ledger.claims import Dispatched, Owned
from .conversation import OutcomeStatus
from .wire import to_text

MAX_CONTENT: Final = 256 * 1024
"""Characters of a result that travel, unless a worker is set otherwise. The whole stays in the
ledger."""
MAX_TURN: Final = 768 * 1024
"""Characters that the results of one message's calls travel with, together. They are input of
the next model call, and Temporal wedges a workflow task over 2 MiB."""
MAX_NOTICE: Final = 16 * 1024
"""Characters of a result that is told by a notice."""
_SHORT: Final = 500
_LISTED: Final = 200
_BESIDE: Final = 400
"""Characters of what is said beside a beginning."""
_CUT: Final = 300
"""Characters of a text that is left of what does not fit."""
_WRAPPING: Final = 2_000
"""Characters of what is said about a result beside it."""
_HEAD: Final = 8_000
"""Characters of a larger one that the model reads."""


@dataclass(frozen=True)
class Unrecorded:
    """How a call ended, on its way into the ledger by way of the workflow's history."""

    key: str
    token: str
    domain_key: str | None
    outcome: OutcomeKind | None = None
    """``ok`` or ``error``; None where it is unknown how it ended."""
    result: str = "null"
    effect_possible: bool = True
    reason: str = ""
    """Why it is unknown."""
    over: bool = True
    """Whether the tool has ended, where it is unknown how."""
    content_limit: int = MAX_CONTENT
    """Characters of the result that the model is told."""

    @property
    def owned(self) -> Owned:
        """By which it is recorded."""
        return Owned(ActionKey(self.key), UUID(self.token), self.domain_key)

    @property
    def known(self) -> Outcome | None:
        """The outcome; None where it is unknown."""
        if self.outcome is None:
            return None
        return Outcome(self.outcome, self.result, effect_possible=self.effect_possible)

    @classmethod
    def of(cls, claim: Dispatched, outcome: Outcome) -> Unrecorded:
        """Hand over an outcome."""
        return cls(
            claim.key,
            str(claim.token),
            claim.domain_key,
            outcome.kind,
            outcome.result,
            outcome.effect_possible,
        )

    @classmethod
    def unknown(cls, claim: Dispatched, reason: str, *, over: bool) -> Unrecorded:
        """Hand over that it is unknown."""
        return cls(claim.key, str(claim.token), claim.domain_key, reason=reason, over=over)


@dataclass(frozen=True)
class Reply:
    """The answer to one call, as it goes through Temporal to the model."""

    status: OutcomeStatus
    content: Any
    """JSON data."""
    action_key: str | None = None
    """The row that answers for it, if it has one."""
    existing: bool = False
    """Another action had done it before; this one did not do it again."""
    effect_possible: bool = True
    """Whether the outside world may have changed."""
    unrecorded: Unrecorded | None = None
    """How the call ended, where the ledger did not take it: the run records it before it goes
    on, and tells what *stands*."""


def unrecorded(ended: Unrecorded) -> Reply:
    """Hand over how a call ended, for the run to record."""
    return Reply("unknown", None, ended.key, unrecorded=ended)


def share_of(calls: int, *, limit: int = MAX_CONTENT) -> int:
    """Return how much of each result travels, where a message has so many calls."""
    return min(limit, MAX_TURN // max(calls, 1))


def told(action: Action, *, limit: int = MAX_CONTENT) -> Reply:
    """Tell what is known of an action that has ended or is parked."""
    if action.recorded is not None:
        return done(action.key, action.recorded, duplicate_of=action.duplicate_of, limit=limit)
    return unknown(action)


def done(
    key: str | None,
    outcome: Outcome,
    *,
    duplicate_of: str | None = None,
    limit: int = MAX_CONTENT,
) -> Reply:
    """Tell a recorded outcome; ``duplicate_of`` names the action whose receipt it is."""
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
    return Reply("ok", content, key, existing=duplicate_of is not None)


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
    """Tell the model what became of an action that it was told is unknown."""
    by = f"by {action.decided_by}" if action.decided_by else "by its own late answer"
    outcome = action.recorded
    assert outcome is not None, "only what is settled is told"
    if outcome.effect_possible:
        answer = dumps(_bounded(outcome, action.key, MAX_NOTICE))
        became = f"it happened. Its {'result' if outcome.kind == 'ok' else 'error'}: {answer}"
    else:
        became = "it did NOT happen."
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


def forked(actions: Sequence[Action]) -> str:
    """Tell the model what it had done on the way that was taken back."""
    lines = [
        f"- {action.tool} at {action.position} with {_short(action.args)}: {_became(action)}"
        for action in actions[:_LISTED]
    ]
    if len(actions) > _LISTED:
        more = Counter(action.tool for action in actions[_LISTED:])
        lines += [f"- {tool}: {count} more of these" for tool, count in more.items()]
    return (
        "[notice] You are asked again from here. What you did after this point was taken out of "
        "the conversation, but these actions took effect, or may have, and stand:\n"
        + ("\n".join(lines) or "- none")
    )


def _became(action: Action) -> str:
    outcome = action.recorded
    if outcome is None:
        return "UNKNOWN: it may or may not have happened"
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
