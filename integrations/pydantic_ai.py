"""pydantic-ai's toolsets on Temporal: many tools share a type, and each call names its own.

A tool says its rule in its metadata, which travels with every call. What a call has no result for
is told as a result of the tool, never as a failed tool or as a request to try again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from temporalio.common import RawValue
from temporalio.converter import PayloadConverter

from ..activities.contract.reply import Reply
from ..activities.guard.protocols import Replies
from ..canonical import Json, dumps, parse
from ..errors import DefinitionError, UnrepresentableValue
from ..ledger import Outcome
from .effect_rule import EffectRule, rule_in
from .family import ReportedFailure, ReportedRefusal, ToolCall
from .mcp import MCPEffects, hinted_rule
from .stored_payload import arguments_of, kept_value, payload_of
from .stored_result import outcome_of
from .telling import ToldReplies, told

_CALL: Final = re.compile(r"agent__.+__(toolset|mcp_server|dynamic_toolset)__.+__call_tool")
_SERVER: Final = re.compile(r"agent__.+__mcp_server__(?P<server>.+)__call_tool")
_OWN: Final = re.compile(
    r"agent__.+__(model_(request|request_stream|cancel_suspended_response|compact_messages)"
    r"|event_stream_handler|get_tools|get_instructions|validate_args)"
)
"""Its other activities, but for durable operations of capabilities, which may have effects."""
_TIMED_OUT: Final = re.compile(r"Timed out after .* seconds?\.?")
"""What pydantic-ai has a tool say, as a ``model_retry``, whose time-out has passed."""
_WITHOUT_EFFECT: Final = {
    "approval_required": "pydantic_ai.ApprovalRequired",
    "call_deferred": "pydantic_ai.CallDeferred",
}
"""Kinds of results that say that nothing happened, beside ``model_retry``, and their names."""
_MODEL_RETRY: Final = "pydantic_ai.ModelRetry"
_FAILURES: Final = ("tool_failed", "run_cancelled", "validation_error")
"""Kinds of results that say that the tool failed. It may have happened. What a tool validates after
its effect is a ``validation_error`` too: the call's own arguments were validated before."""


class PydanticAI:
    """See `Family`.

    Args:
        rules: By tool, for tools whose metadata has no rule.
        servers: What the calls of MCP servers do, by the id of the toolset.
    """

    def __init__(
        self,
        rules: Mapping[str, EffectRule],
        servers: Mapping[str, MCPEffects] | None = None,
    ) -> None:
        self._rules = rules
        self._servers = servers or {}

    def serves(self, activity_type: str) -> bool:
        """See `Family`."""
        return _CALL.fullmatch(activity_type) is not None

    def knows(self, activity_type: str) -> bool:
        """See `Family`: model requests and lists of tools."""
        return _OWN.fullmatch(activity_type) is not None

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall:
        """See `Family`."""
        call = args[0]
        metadata = None if call.tool_def is None else call.tool_def.metadata
        try:
            rule = rule_in(metadata) or self._rules.get(call.name)
            rule = rule or self._server_rule(activity_type, call.name, metadata)
        except DefinitionError:
            rule = None  # answered as a tool without a rule; here it would fail the workflow task
        return ToolCall(activity_type, call.name, kept_value(call.tool_args, converter), rule)

    def replies(self, args: Sequence[Any]) -> ToldReplies:
        """See `Family`."""
        return ToolReturns()

    def _server_rule(
        self, activity_type: str, tool: str, metadata: Mapping[str, Any] | None
    ) -> EffectRule | None:
        found = _SERVER.fullmatch(activity_type)
        effects = None if found is None else self._servers.get(found["server"])
        if effects is None:
            return None
        if tool not in effects.tools and effects.trust_hints:
            return hinted_rule((metadata or {}).get("annotations")) or effects.otherwise
        return effects.rule(tool)

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
        # Of an MCP server a lost connection is a ``model_retry`` too; a dynamic toolset may be one.
        self._says_retry = "__toolset__" in call.activity_type
        self.replies: Replies = ToolReturns()

    @property
    def ends_when_cancelled(self) -> bool:
        """See `ArrivedCall`: a plain function goes on in its thread."""
        return False

    def effective(self) -> Json:
        """See `ArrivedCall`: pydantic-ai has validated them in the workflow."""
        return self._call.arguments

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """See `ArrivedCall`."""
        return arguments if isinstance(arguments, dict) else {}

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """See `ArrivedCall`: pydantic-ai validates them once more, when it calls the tool."""
        given = arguments_of(arguments, self._converter)
        return [replace(self._args[0], tool_args=given), *self._args[1:]]

    def checked(self, value: Any) -> Any:
        """See `ArrivedCall`."""
        kind = getattr(value, "kind", None)
        if kind in _WITHOUT_EFFECT:
            # The resumed call is another one: it has the next position, and the key is free.
            wire = dumps(kept_value(value, self._converter))
            raise ReportedRefusal(_WITHOUT_EFFECT[kind], wire)
        if kind == "model_retry":
            if self._says_retry and not _TIMED_OUT.fullmatch(value.message):
                raise ReportedRefusal(_MODEL_RETRY, value.message)
            raise ReportedFailure(value.message)
        if kind in _FAILURES:
            raise ReportedFailure(str(getattr(value, "message", kind)))
        return value

    def refuses(self, error: BaseException) -> bool:
        """See `ArrivedCall`: what a tool refuses with is a result here."""
        return False

    def outcome(self, value: Any) -> Outcome:
        """See `ArrivedCall`."""
        return outcome_of(self._call.tool, value, self._converter)


def plain_result(stored: Json) -> Json:
    """Return what a tool returned, out of the result that pydantic-ai's activity returns."""
    if isinstance(stored, dict) and stored.get("kind") == "tool_return":
        return stored.get("result")
    return stored


class ToolReturns(ToldReplies):
    """The results that pydantic-ai's workflow half takes from its activities."""

    def done(self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None) -> Any:
        """See `Replies`."""
        if outcome.kind == "error":
            kind, message = outcome.value["type"], outcome.value["message"]
            if kind == _MODEL_RETRY:
                return RawValue(payload_of({"kind": "model_retry", "message": message}))
            if kind in _WITHOUT_EFFECT.values():
                with suppress(UnrepresentableValue):  # it was too long to be kept whole
                    return RawValue(payload_of(parse(message)))
        return super().done(key, outcome, duplicate_of, limit)

    def tell(self, reply: Reply) -> RawValue:
        """See `ToldReplies`."""
        return RawValue(payload_of({"kind": "tool_return", "result": told(reply)}))
