"""What an agent of another framework is told of a call that has no plain result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Literal, NoReturn, TypeAlias

from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from ..activities.app.tool_failure import ToolFailure
from ..activities.contract.reply import Reply
from ..activities.guard.protocols import Replies
from ..activities.replies import call_reply
from ..canonical import Json, dumps, parse, scrub
from ..errors import ActionError, IdempotencyKeyConflict
from ..ledger import Action, Outcome
from .stored_payload import payload_of

Telling: TypeAlias = Literal["failure", "text", "data"]
"""How a workflow is told of a call without a result: by a failure, or as the call's result."""
OUTCOME_UNKNOWN: Final = "OutcomeUnknown"
"""The failure's type when a call may have happened and a person has to settle it."""
ACTION_ACCEPTED: Final = "ActionAccepted"
"""The failure's type when the relay carries the action out."""
_TOLD: Final = "commitline_told"
"""The key of what is told, in the details of a failure."""


def told(reply: Reply) -> dict[str, Json]:
    """Return what a model reads of a reply that is no plain result, as JSON data."""
    content = reply.content if isinstance(reply.content, dict) else {"result": reply.content}
    inner = content.get(reply.status)
    return {"status": reply.status, **(inner if isinstance(inner, dict) else content)}


def told_by(failure: BaseException) -> dict[str, Json] | None:
    """Return what a failed activity tells of its call; None if it is no failure of the guard's."""
    cause = failure.cause if isinstance(failure, ActivityError) else failure
    if not isinstance(cause, ApplicationError):
        return None
    for detail in cause.details:
        if isinstance(detail, dict) and isinstance(detail.get(_TOLD), str):
            read: dict[str, Json] = parse(detail[_TOLD])
            return read
    return None


class ToldReplies(Replies, ABC):
    """The result's own payload; or what is told instead of it, as a framework takes it."""

    @abstractmethod
    def tell(self, reply: Reply) -> Any:
        """Return, or raise, what the workflow gets of a reply that is no plain result."""

    def done(self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None) -> Any:
        """See `Replies`. A receipt is the result: the ledger says who called first."""
        if outcome.kind == "ok":
            return RawValue(payload_of(outcome.value))
        return self.tell(call_reply.done(key or None, outcome, duplicate_of=duplicate_of))

    def raised(self, failure: ToolFailure, error: BaseException | None) -> Any:
        """See `Replies`: the failure of a READ, which had no effect."""
        return self.tell(call_reply.done(None, failure.without_effect))

    def unknown(self, action: Action) -> Any:
        """See `Replies`."""
        return self.tell(call_reply.unknown(action))

    def accepted(self, action: Action, *, own: bool) -> Any:
        """See `Replies`."""
        return self.tell(call_reply.accepted(action, own=own))

    def refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> Any:
        """See `Replies`."""
        return self.tell(call_reply.refused(error, key=key or None))


class FailureReplies(ToldReplies):
    """A failure whose ``type`` says which, and whose details say what is told.

    None of the failures is retried: the outcome is recorded, and asking again would read it again.
    """

    def raised(self, failure: ToolFailure, error: BaseException | None) -> NoReturn:
        """See `Replies`: a READ's own failure, retried as the workflow's policy says."""
        raise error or ApplicationError(failure.text, type=failure.type)

    def tell(self, reply: Reply) -> NoReturn:
        """See `ToldReplies`."""
        content = reply.content
        if "error" in content:
            kind, text = content["error"]["type"], content["error"]["message"]
        elif reply.accepted:
            kind, text = ACTION_ACCEPTED, content["note"]
        else:
            kind, text = OUTCOME_UNKNOWN, _unknown_text(content["unknown"])
        raise ApplicationError(
            scrub(text, limit=1_000),
            reply.action_key or "",
            {_TOLD: dumps(told(reply))},
            type=kind,
            non_retryable=True,
        )


def _unknown_text(unknown: dict[str, str]) -> str:
    return (
        f"{unknown['action']} may or may not have happened: {unknown['reason']}; it is settled by "
        f"{unknown['settled_by']}, and asking again {unknown['asking_again']}"
    )
