"""deepagents' own activities: one type for all tools, and one for what a backend does.

A tool of `tool_as_activity` is its own name; a backend's operation is ``backend.<op>``. Neither
says what a repeat would do, so both need a rule in the plugin's ``effects``; only a backend's
reading operations do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from temporalio.common import RawValue
from temporalio.converter import PayloadConverter

from ..activities.contract.reply import Reply
from ..activities.guard.protocols import Replies
from ..canonical import Json, dumps
from ..ledger import Outcome
from ..ledger.action_records import Effect
from .effect_rule import EffectRule, effect
from .family import ToolCall
from .stored_payload import arguments_of, kept_value, payload_of
from .stored_result import outcome_of
from .telling import FailureReplies, ToldReplies, told

_TOOL: Final = "deepagents.invoke_tool"
_BACKEND: Final = "deepagents.backend_op"
_READS: Final = frozenset({"ls", "ls_info", "read", "read_file", "grep", "grep_raw", "glob"})
_READ: Final = effect(Effect.READ)


class DeepAgents:
    """See `Family`.

    Args:
        rules: By tool.
    """

    def __init__(self, rules: Mapping[str, EffectRule]) -> None:
        self._rules = rules

    def serves(self, activity_type: str) -> bool:
        """See `Family`."""
        return activity_type in (_TOOL, _BACKEND)

    def knows(self, activity_type: str) -> bool:
        """See `Family`: there are no others but model requests."""
        return False

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall:
        """See `Family`."""
        message = args[0]
        if activity_type == _TOOL:
            tool, given = str(message.tool_name), message.args
        else:
            tool = f"backend.{message.op}"
            given = {
                "args": message.args,
                "kwargs": message.kwargs,
                "backend": [message.backend_ref, message.backend_factory, message.factory_argument],
            }
        rule = self._rules.get(tool)
        if rule is None and activity_type == _BACKEND and message.op.removeprefix("a") in _READS:
            rule = _READ
        return ToolCall(activity_type, tool, kept_value(given, converter), rule)

    def replies(self, args: Sequence[Any]) -> ToldReplies:
        """See `Family`."""
        return ToolMessages() if hasattr(args[0], "tool_name") else FailureReplies()

    def arrived(
        self,
        call: ToolCall,
        args: Sequence[Any],
        function: Callable[..., Any],
        converter: PayloadConverter,
    ) -> DeepAgentsCall:
        """See `Family`."""
        return DeepAgentsCall(call, args, converter)


class ToolMessages(ToldReplies):
    """What deepagents' workflow half takes for the result of a tool."""

    def tell(self, reply: Reply) -> RawValue:
        """See `ToldReplies`."""
        return RawValue(payload_of({"message": dumps(told(reply))}))


class DeepAgentsCall:
    """See `ArrivedCall`."""

    ends_when_cancelled = False
    """A plain function goes on in its thread."""

    def __init__(self, call: ToolCall, args: Sequence[Any], converter: PayloadConverter) -> None:
        self._call = call
        self._args = args
        self._converter = converter
        self.replies: Replies = ToolMessages() if call.activity_type == _TOOL else FailureReplies()

    def effective(self) -> Json:
        """See `ArrivedCall`: the tool validates them."""
        return self._call.arguments

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """See `ArrivedCall`."""
        return arguments if isinstance(arguments, dict) else {}

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """See `ArrivedCall`."""
        given = arguments_of(arguments, self._converter)
        if self._call.activity_type == _TOOL:
            changes: dict[str, Any] = {"args": given}
        else:
            ref, factory, argument = given["backend"]
            changes = {
                "args": given["args"],
                "kwargs": given["kwargs"],
                "backend_ref": ref,
                "backend_factory": factory,
                "factory_argument": argument,
            }
        return [dataclasses.replace(self._args[0], **changes), *self._args[1:]]

    def checked(self, value: Any) -> Any:
        """See `ArrivedCall`: what a tool raises is raised."""
        return value

    def refuses(self, error: BaseException) -> bool:
        """See `ArrivedCall`: its rule says what it refuses with."""
        return False

    def outcome(self, value: Any) -> Outcome:
        """See `ArrivedCall`."""
        return outcome_of(self._call.tool, value, self._converter)
