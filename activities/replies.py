"""What the model is told about a call: exactly one reply, whatever happened.

Three statuses. ``ok``: it happened. ``error``: it did not happen, or, said so, it happened
and its answer could not be kept. ``unknown``: it may have happened. Never "failed" for
something that may stand. A reply is made of what is recorded and nothing else, so a replay
reads the same bytes.
"""

from __future__ import annotations

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
"""Characters of a result that travel. The whole stays in the ledger."""
_HEAD: Final = 8_000


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


def done(key: str | None, outcome: Outcome, *, duplicate_of: str | None = None) -> Reply:
    """Tell a recorded outcome; ``duplicate_of`` names the action whose receipt it is."""
    possible = outcome.effect_possible
    if outcome.kind == "error":
        told = _error(outcome.value, possible)
        if duplicate_of is not None:
            told["error"]["existing_action"] = duplicate_of
        return Reply("error", told, key, duplicate_of is not None, effect_possible=possible)
    content = _bounded(outcome, duplicate_of or key)
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
        answer = dumps(_bounded(outcome, action.key))
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


def node_timed_out() -> Reply:
    """Tell that a call's time was up before anything was sent."""
    return not_run(NodeTimeout.__name__, f"not carried out in time [{NodeTimeout.code}]")


def _error(error: dict[str, Any], effect_possible: bool) -> dict[str, Any]:
    return {"error": {**error, "effect": "happened" if effect_possible else "none"}}


def _bounded(outcome: Outcome, key: str | None) -> Any:
    if len(outcome.result) <= MAX_CONTENT:
        return outcome.value
    return {
        "truncated": True,
        "characters": len(outcome.result),
        "whole_value": f"in the ledger, as the result of {key}" if key else "not kept: a read",
        "head": outcome.result[:_HEAD],
    }


def content_text(reply: Reply) -> str:
    """Return a reply's content as the JSON text that the model reads."""
    # Not `dumps`: a result as deep as may be kept lies a level deeper in what wraps it.
    return to_text(reply.content)
