"""The user's own activities, each of which is one tool.

So OpenAI Agents, Strands, Google's ADK and genai, deepagents and plain workflows schedule them. The
tool is the activity type. Its arguments are the activity's, as the client's converter writes
them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from temporalio.converter import PayloadConverter

from ..activities.guard.protocols import Replies
from ..canonical import Json
from ..errors import ArgumentsChanged, InvalidArguments
from ..ledger import Outcome
from ..ledger.result_codec import error_text
from .effect_rule import EffectRule
from .family import ToolCall
from .stored_payload import kept_value, payload_of, unordered
from .stored_result import outcome_of
from .telling import FailureReplies


class OwnActivities:
    """See `Family`.

    Args:
        rules: By activity type.
    """

    def __init__(self, rules: Mapping[str, EffectRule]) -> None:
        self._rules = rules

    def serves(self, activity_type: str) -> bool:
        """See `Family`."""
        return activity_type in self._rules

    def knows(self, activity_type: str) -> bool:
        """See `Family`: there are none."""
        return False

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall:
        """See `Family`."""
        arguments = [kept_value(one, converter) for one in args]
        return ToolCall(activity_type, activity_type, arguments, self._rules[activity_type])

    def arrived(
        self,
        call: ToolCall,
        args: Sequence[Any],
        function: Callable[..., Any],
        converter: PayloadConverter,
    ) -> OwnCall:
        """See `Family`."""
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
        self._signature = inspect.signature(function)
        self._types = _types_of(function, self._signature)

    def effective(self) -> list[Json]:
        """See `ArrivedCall`."""
        return self._effective(self._args)

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """See `ArrivedCall`."""
        return dict(zip(self._signature.parameters, arguments, strict=True))

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """See `ArrivedCall`."""
        try:
            types = self._types[: len(arguments)]
            payloads = [payload_of(one) for one in arguments]
            args = self._converter.from_payloads(payloads, types)
            today = self._effective(args)
        except Exception as err:  # newer types may refuse them
            raise ArgumentsChanged(f"{self._tool}: {error_text(err)[:500]}") from err
        if unordered(today) != unordered(arguments):
            raise ArgumentsChanged(
                f"{self._tool} cannot be called with exactly the arguments that are stored"
            )
        return args

    def checked(self, value: Any) -> Any:
        """See `ArrivedCall`: what it returns is its result."""
        return value

    def refuses(self, error: BaseException) -> bool:
        """See `ArrivedCall`: its rule says what it refuses with."""
        return False

    def outcome(self, value: Any) -> Outcome:
        """See `ArrivedCall`."""
        return outcome_of(self._tool, value, self._converter)

    def _effective(self, args: Sequence[Any]) -> list[Json]:
        """Return the arguments as they are kept, the function's defaults among them."""
        try:
            bound = self._signature.bind(*args)
            bound.apply_defaults()
            return [kept_value(one, self._converter) for one in bound.args]
        except Exception as err:
            # Whatever a converter raises, these arguments cannot be kept, and so not be called.
            raise InvalidArguments(f"{self._tool}: {error_text(err)[:500]}") from err


def _types_of(function: Callable[..., Any], signature: inspect.Signature) -> list[Any]:
    hints = typing.get_type_hints(getattr(function, "__func__", function))
    return [hints.get(name, Any) for name in signature.parameters]
