"""The user's own activities, each of which is one tool.

So OpenAI Agents, Strands, Google's ADK and genai, deepagents and plain workflows schedule them. The
tool is the activity type. Its arguments are the activity's, as the client's converter writes
them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from temporalio.converter import PayloadConverter

from ..activities.guard.protocols import Replies
from ..canonical import Json
from ..ledger import Outcome
from .activity_signature import ActivitySignature
from .effect_rule import EffectRule
from .family import ToolCall
from .stored_payload import kept_value
from .stored_result import outcome_of
from .telling import FailureReplies, ToldReplies

_READS: Final = re.compile(
    r"gemini_(files_download|interactions_get(_streamed)?|agents_(get|list))"
)
_UNASKED: Final = re.compile(
    r"gemini_(files_(upload|register)|file_search_stores_upload"
    r"|interactions_(create(_streamed)?|delete|cancel)|agents_(create|delete))"
)
"""Activities that genai's plugin registers whether they are used or not: a call needs a rule, and
the worker needs none."""


class OwnActivities:
    """See `Family`.

    Args:
        rules: By activity type.
    """

    def __init__(self, rules: Mapping[str, EffectRule]) -> None:
        self._rules = rules

    def serves(self, activity_type: str) -> bool:
        """See `Family`."""
        return activity_type in self._rules or _UNASKED.fullmatch(activity_type) is not None

    def knows(self, activity_type: str) -> bool:
        """See `Family`: what Gemini's SDK only reads."""
        return _READS.fullmatch(activity_type) is not None

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall:
        """See `Family`."""
        arguments = [kept_value(one, converter) for one in args]
        return ToolCall(activity_type, activity_type, arguments, self._rules.get(activity_type))

    def replies(self, args: Sequence[Any]) -> ToldReplies:
        """See `Family`."""
        return FailureReplies()

    def arrived(
        self,
        call: ToolCall,
        args: Sequence[Any],
        function: Callable[..., Any],
        converter: PayloadConverter,
    ) -> OwnCall:
        """See `Family`."""
        if call.arguments != [kept_value(one, converter) for one in args]:
            # A person has edited them.
            args = ActivitySignature(call.tool, function, converter).to_the_letter(call.arguments)
        return OwnCall(call.tool, args, function, converter)


class OwnCall:
    """See `ArrivedCall`."""

    replies: Replies = FailureReplies()

    def __init__(
        self,
        tool: str,
        args: Sequence[Any],
        function: Callable[..., Any],
        converter: PayloadConverter,
    ) -> None:
        self._tool = tool
        self._args = args
        self.ends_when_cancelled = inspect.iscoroutinefunction(function)
        self._converter = converter
        self._signature = ActivitySignature(tool, function, converter)

    def effective(self) -> list[Json]:
        """See `ArrivedCall`."""
        return self._signature.effective(self._args)

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """See `ArrivedCall`."""
        return self._signature.named(arguments)

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """See `ArrivedCall`."""
        return self._signature.to_the_letter(arguments)

    def checked(self, value: Any) -> Any:
        """See `ArrivedCall`: what it returns is its result."""
        return value

    def refuses(self, error: BaseException) -> bool:
        """See `ArrivedCall`: its rule says what it refuses with."""
        return False

    def outcome(self, value: Any) -> Outcome:
        """See `ArrivedCall`."""
        return outcome_of(self._tool, value, self._converter)
