"""pydantic-ai's toolsets on Temporal: many tools share a type, and each call names its own.

A tool says its rule in its metadata, which travels with every call. What a call has no result for
is told as a result of the tool, never as a failed tool or as a request to try again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio.common import RawValue
from temporalio.converter import PayloadConverter

from ..activities.contract.reply import Reply
from ..activities.guard.protocols import Replies
from ..canonical import Json, dumps, parse
from ..ledger import Outcome
from .effect_rule import EffectRule, rule_in
from .family import ReportedFailure, ToolCall
from .stored_payload import kept_value, payload_of
from .stored_result import outcome_of
from .telling import ToldReplies, told

_CALL: Final = re.compile(r"agent__.+__(toolset|mcp_server|dynamic_toolset)__.+__call_tool")
_OWN: Final = re.compile(r"agent__.+")
_WITHOUT_EFFECT: Final = {
    "approval_required": "pydantic_ai.ApprovalRequired",
    "call_deferred": "pydantic_ai.CallDeferred",
    "validation_error": "pydantic_ai.ValidationError",
}
"""Kinds of results that say that nothing happened, beside ``model_retry``, and their names."""
_MODEL_RETRY: Final = "pydantic_ai.ModelRetry"
_FAILURES: Final = ("tool_failed", "run_cancelled")
"""Kinds of results that say that the tool failed. It may have happened."""


class PydanticAI:
    """See `Family`.

    Args:
        rules: By tool, for tools whose metadata has no rule.
    """

    def __init__(self, rules: Mapping[str, EffectRule]) -> None:
        self._rules = rules

    def serves(self, activity_type: str) -> bool:
        """See `Family`."""
        return _CALL.fullmatch(activity_type) is not None

    def knows(self, activity_type: str) -> bool:
        """See `Family`: model requests and lists of tools."""
        return _OWN.fullmatch(activity_type) is not None and not self.serves(activity_type)

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall:
        """See `Family`."""
        call = args[0]
        metadata = None if call.tool_def is None else call.tool_def.metadata
        rule = rule_in(metadata) or self._rules.get(call.name)
        return ToolCall(activity_type, call.name, kept_value(call.tool_args, converter), rule)

    def arrived(
        self,
        call: ToolCall,
        args: Sequence[Any],
        function: Callable[..., Any],
        converter: PayloadConverter,
    ) -> PydanticAICall:
        """See `Family`."""
        return PydanticAICall(call, args, converter)


class PydanticAICall:
    """See `ArrivedCall`.

    Args:
        call: The call.
        args: The activity's arguments: the call's, and the dependencies.
        converter: Of the payloads.
    """

    def __init__(self, call: ToolCall, args: Sequence[Any], converter: PayloadConverter) -> None:
        self._call = call
        self._args = args
        self._converter = converter
        # Of an MCP server a lost connection is a ``model_retry`` too.
        self._is_mcp = "__mcp_server__" in call.activity_type
        self.replies: Replies = ToolReturns()

    def effective(self) -> Json:
        """See `ArrivedCall`: pydantic-ai has validated them in the workflow."""
        return self._call.arguments

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """See `ArrivedCall`."""
        return arguments if isinstance(arguments, dict) else {}

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """See `ArrivedCall`: pydantic-ai validates them once more, when it calls the tool."""
        return [replace(self._args[0], tool_args=arguments), *self._args[1:]]

    def checked(self, value: Any) -> Any:
        """See `ArrivedCall`."""
        kind = getattr(value, "kind", None)
        if kind in _FAILURES or (kind == "model_retry" and self._is_mcp):
            raise ReportedFailure(str(getattr(value, "message", kind)))
        return value

    def refuses(self, error: BaseException) -> bool:
        """See `ArrivedCall`: what a tool refuses with is a result here."""
        return False

    def outcome(self, value: Any) -> Outcome:
        """See `ArrivedCall`."""
        kind = getattr(value, "kind", None)
        if kind == "model_retry":
            return Outcome.error(kind=_MODEL_RETRY, message=value.message, effect_possible=False)
        if kind in _WITHOUT_EFFECT:
            # The resumed call is another one: it has the next position, and the key is free.
            text = dumps(kept_value(value, self._converter))
            return Outcome.error(kind=_WITHOUT_EFFECT[kind], message=text, effect_possible=False)
        return outcome_of(self._call.tool, value, self._converter)


class ToolReturns(ToldReplies):
    """The results that pydantic-ai's workflow half takes from its activities."""

    def done(self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None) -> Any:
        """See `Replies`."""
        if outcome.kind == "error":
            kind, message = outcome.value["type"], outcome.value["message"]
            if kind == _MODEL_RETRY:
                return RawValue(payload_of({"kind": "model_retry", "message": message}))
            if kind in _WITHOUT_EFFECT.values():
                return RawValue(payload_of(parse(message)))
        return super().done(key, outcome, duplicate_of, limit)

    def tell(self, reply: Reply) -> RawValue:
        """See `ToldReplies`."""
        return RawValue(payload_of({"kind": "tool_return", "result": told(reply)}))
