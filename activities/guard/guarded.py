"""What the guard knows of an activity type that it is put around.

The guard's rules are the same for an agent's tools and for any other activity. What differs is
here: how arguments and results are written, what an exception means, how an outcome is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from temporalio.exceptions import ApplicationError

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
        """What repeating it would do."""
        ...

    @property
    def tries(self) -> int:
        """How often the tool may fail a call."""
        ...

    @property
    def can_look_up(self) -> bool:
        """Whether the downstream system can be asked what became of a call."""
        ...

    @property
    def settles_after(self) -> timedelta:
        """How long after a call its effect may still be invisible to who asks."""
        ...

    @property
    def surely_ends(self) -> bool:
        """Whether a call that was cancelled and ended is really over (no thread goes on)."""
        ...

    @property
    def takes_state(self) -> bool:
        """Whether a call is given the state of its conversation."""
        ...

    def check_state(self, given: GivenState) -> None:
        """Refuse a state that a call cannot be given. Raises StateUnusable."""
        ...

    @property
    def may_interrupt(self) -> bool:
        """Whether it can ask a person midway."""
        ...

    @property
    def answer_expires(self) -> timedelta | None:
        """How long such a question waits; None is for ever."""
        ...

    def limits(self, header: ActionHeader) -> CallLimits:
        """Return what the running attempt may take."""
        ...

    def failure(self, error: BaseException) -> ToolFailure:
        """Say what an exception of it means."""
        ...

    def prepare(self, args: Sequence[Any], header: ActionHeader) -> ActionRequest:
        """Validate and fix the arguments. Raises ActionError: told, and nothing is written."""
        ...

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """Return the activity's arguments, made from the stored text."""
        ...

    async def ask(self, context: ToolContext, request_args: str) -> Any:
        """Ask the downstream system: the result, or `NEVER_HAPPENED`."""
        ...

    def encode(self, value: Any) -> Outcome:
        """Return the outcome of a call that returned ``value``; never raises."""
        ...

    def reply_done(
        self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None
    ) -> Any:
        """Return, or raise, what the workflow gets for a recorded outcome.

        Of a result that is over the limit (characters) it may get a view.
        """
        ...

    def reply_raised(self, failure: ToolFailure, error: BaseException | None) -> Any:
        """Return, or raise, what the workflow gets for a READ that failed."""
        ...

    def reply_unknown(self, action: Action) -> Any:
        """Return, or raise, what the workflow gets for an unknown outcome."""
        ...

    def reply_accepted(self, action: Action, *, own: bool) -> Any:
        """Return what the workflow gets for an action that the relay carries out.

        The same whatever became of it since. ``own``: it is of this conversation.
        """
        ...

    def reply_refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> Any:
        """Return, or raise, what the workflow gets for a call that was never made."""
        ...

    def records_later(self, unrecorded: Unrecorded) -> bool:
        """Whether the workflow can record how a call ended, where its attempt cannot."""
        ...

    def reply_unrecorded(self, unrecorded: Unrecorded) -> Any:
        """Return what has the workflow record it."""
        ...

    def reply_asked(self, question: Question) -> Any:
        """Return what has the workflow wait for an answer, and call again."""
        ...

    def not_started(self, reason: str) -> ApplicationError:
        """Return the failure of a call that could not be dispatched."""
        ...


Ended: TypeAlias = Outcome | Action | Unrecorded | Question
"""How a call ended: the outcome that stands, its row (parked, or known after all), what the
workflow is to record, or what it asks a person first."""
