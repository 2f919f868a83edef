"""`Family`: what must be known of one kind of foreign activity to guard the calls in it.

A family reads a call, in the workflow and in the activity alike: which tool, and with which
arguments. What else the payloads hold (ids of a framework, its run's context) changes with a reset
and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from temporalio.converter import PayloadConverter

from ..activities.guard.protocols import Replies
from ..canonical import Json, digest
from ..ledger.action_records import Outcome
from .effect_rule import EffectRule
from .telling import ToldReplies


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, as the plan has it."""

    activity_type: str
    tool: str
    arguments: Json
    """What counts of the activity's arguments."""
    rule: EffectRule | None
    """What repeating it would do; None if nobody has said."""

    @property
    def requested_digest(self) -> str:
        """The digest of the tool and its arguments, and of nothing else."""
        return digest([self.tool, self.arguments])


class Family(Protocol):
    """One kind of foreign activity."""

    def serves(self, activity_type: str) -> bool:
        """Whether activities of this type carry calls of tools."""
        ...

    def knows(self, activity_type: str) -> bool:
        """Whether it is an activity of the framework's own that needs no guard."""
        ...

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall:
        """Read the call, in the workflow or in the activity; equal in both.

        Args:
            activity_type: One that the family serves.
            args: The activity's arguments.
            converter: Of the payloads.
        """
        ...

    def replies(self, args: Sequence[Any]) -> ToldReplies:
        """Return how a workflow gets what its call has instead of a result.

        Args:
            args: The activity's arguments.
        """
        ...

    def arrived(
        self,
        call: ToolCall,
        args: Sequence[Any],
        function: Callable[..., Any],
        converter: PayloadConverter,
    ) -> ArrivedCall:
        """Return the call as its activity makes it.

        Args:
            call: As `tool_call` read it; or with arguments that a person has edited, which the
                call is made with.
            args: The activity's arguments.
            function: The activity.
            converter: Of the payloads.
        """
        ...


class ArrivedCall(Protocol):
    """A call in its activity."""

    @property
    def replies(self) -> Replies:
        """What the workflow gets."""
        ...

    @property
    def ends_when_cancelled(self) -> bool:
        """Whether nothing goes on after a cancelled call has ended (a thread or a server may)."""
        ...

    def effective(self) -> Json:
        """Return the arguments with the function's defaults.

        Raises:
            InvalidArguments: The function cannot be called with them.
        """
        ...

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """Return the arguments by the names that a business key may use."""
        ...

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """Return the activity's arguments, made of stored ones, and to the letter.

        Raises:
            ArgumentsChanged: The function cannot be called with exactly those any more.
        """
        ...

    def checked(self, value: Any) -> Any:
        """Return what the activity returned.

        Raises:
            ReportedFailure: The value says that the tool failed.
            ReportedRefusal: The value says that nothing happened.
        """
        ...

    def refuses(self, error: BaseException) -> bool:
        """Whether an exception means that nothing happened, beside what the rule says."""
        ...

    def outcome(self, value: Any) -> Outcome:
        """Return what is recorded of a value; never raises."""
        ...


class Interrupted(Exception):
    """A framework has interrupted the call, which sent nothing, and makes it again."""


class ReportedFailure(Exception):
    """A framework returned that its tool failed. It may have happened all the same."""


class ReportedRefusal(Exception):
    """A framework returned that its tool refused the call: nothing happened.

    Args:
        kind: The error's type, as it is recorded.
        message: Its text.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
