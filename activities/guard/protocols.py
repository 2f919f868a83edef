"""What the guard must know of an activity type: small protocols, each implemented whole.

The guard's rules are the same for an agent's tools and for any other activity. What differs is
here: how arguments and results are written, what an exception means, what the workflow gets.
What only some activities can do is a protocol of its own, and None where they cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

from ...errors import ActionError, IdempotencyKeyConflict
from ...ledger import Action, ActionRequest, Effect, Outcome, Question
from ..app.state_copy import GivenState
from ..app.tool_context import ToolContext
from ..app.tool_failure import ToolFailure
from ..contract.action_header import ActionHeader
from ..contract.deadlines import CallLimits
from ..contract.outcomes import Unrecorded


class Guarded(Protocol):
    """An activity type under guard."""

    @property
    def name(self) -> str:
        """The activity type."""
        ...

    @property
    def effect(self) -> Effect:
        """What repeating a call would do."""
        ...

    @property
    def tries(self) -> int:
        """How often the activity may fail one call, all attempts together."""
        ...

    @property
    def ends_when_cancelled(self) -> bool:
        """Whether nothing goes on after a cancelled call has ended (a thread may)."""
        ...

    @property
    def runs_apart(self) -> bool:
        """Whether it runs apart from the worker's event loop.

        There the runner knows which calls their cancellation has reached.
        """
        ...

    @property
    def replies(self) -> Replies:
        """What the workflow gets."""
        ...

    @property
    def lookup(self) -> Lookup | None:
        """How the downstream system is asked what became of a call; None where it cannot be."""
        ...

    @property
    def state(self) -> SharedState | None:
        """The check of the conversation's state; None where a call gets no state."""
        ...

    @property
    def questions(self) -> Questions | None:
        """How a call puts a question to a person; None where it cannot."""
        ...

    @property
    def hand_over(self) -> HandOver | None:
        """How the workflow records an outcome later; None where the workflow cannot."""
        ...

    def limits(self, header: ActionHeader) -> CallLimits:
        """Return how long the running attempt may take."""
        ...

    def failure(self, error: BaseException) -> ToolFailure:
        """Say what an exception of the activity means."""
        ...

    def request(self, args: Sequence[Any], header: ActionHeader) -> ActionRequest:
        """Validate the arguments, fix defaults and keys; return what is claimed.

        Raises:
            ActionError: The call cannot be made with these arguments. Nothing is written.
        """
        ...

    def undo_args(self, undone: Action) -> str:
        """Return the arguments with which a call of it undoes another action, as JSON text.

        Raises:
            UnrepresentableValue: They have no JSON form.
        """
        ...

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """Return the activity's arguments, made from the stored text, and to the letter.

        Raises:
            ArgumentsChanged: It cannot be called with exactly those any more. A tool says so
                itself, where its function is called or looks up.
        """
        ...

    def encode(self, value: Any) -> Outcome:
        """Return the outcome of a call that returned ``value``; never raises."""
        ...


class Replies(Protocol):
    """What the workflow gets of a call. Each method returns it, or raises it as a failure."""

    def done(self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None) -> Any:
        """Reply with a recorded outcome.

        Args:
            key: The call's own action; empty for a READ that has none.
            outcome: What is recorded.
            duplicate_of: The action whose receipt this is, where another one did it.
            limit: Characters of the result that travel; None is the default.
        """
        ...

    def raised(self, failure: ToolFailure, error: BaseException | None) -> Any:
        """Reply with the failure of a READ."""
        ...

    def unknown(self, action: Action) -> Any:
        """Reply that the call may or may not have happened."""
        ...

    def accepted(self, action: Action, *, own: bool) -> Any:
        """Reply that the relay carries the action out.

        The same whatever becomes of it, so that a replay reads the same.

        Args:
            action: The action.
            own: It belongs to this conversation.
        """
        ...

    def refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> Any:
        """Reply that nothing was called, and why."""
        ...


class Lookup(Protocol):
    """How the downstream system is asked what became of a call."""

    @property
    def settles_after(self) -> timedelta:
        """How long after a call its effect may still be invisible to a lookup."""
        ...

    async def find(self, context: ToolContext, request_args: str) -> Any:
        """Return what the call returned, or `NEVER_HAPPENED`."""
        ...


class SharedState(Protocol):
    """A call that gets a copy of its conversation's state."""

    def check(self, given: GivenState) -> None:
        """Refuse a state that the call cannot get.

        Raises:
            StateUnusable: It does not fit.
        """
        ...


class Questions(Protocol):
    """A call that may put a question to a person, and is made again with the answer."""

    @property
    def expires_after(self) -> timedelta | None:
        """How long a question waits for its answer; None is for ever."""
        ...

    def reply(self, question: Question) -> Any:
        """Return what makes the workflow wait for the answer, and call again."""
        ...


class HandOver(Protocol):
    """A workflow that records how a call ended where its own attempt cannot."""

    def fits(self, unrecorded: Unrecorded) -> bool:
        """Whether the workflow's history can carry it."""
        ...

    def reply(self, unrecorded: Unrecorded) -> Any:
        """Return what makes the workflow record it."""
        ...
