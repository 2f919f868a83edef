"""MCP tools as frameworks schedule them: one activity type for each server (`mcp_wire`).

A tool's effect is what the application says; else it is sent at most once. What has no result is
told as an MCP result that is an error, which says what is known: frameworks take an exception for
"please try again".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from temporalio.common import RawValue
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError

from ..activities.app.tool_context import current
from ..activities.contract.reply import Reply
from ..activities.guard.protocols import Replies
from ..canonical import Json, dumps, parse
from ..errors import UnrepresentableValue
from ..ledger import Outcome
from ..ledger.action_records import Effect
from .effect_rule import EffectRule, effect
from .family import ReportedFailure, ReportedRefusal, ToolCall
from .mcp_wire import MCPRequest, asks_confirmation, error_in, for_this_call, operation
from .stored_payload import arguments_of, kept_value, payload_of
from .stored_result import outcome_of
from .telling import ToldReplies, told

_FACTORY: Final = "$factory_argument"
"""The key under which stored arguments have what chose the server's client."""
_ASKS: Final = "google_adk.ConfirmationRequested"
"""The name of what a call of ADK ends with that asks a person to confirm it."""
_AT_MOST_ONCE: Final = effect(Effect.AT_MOST_ONCE)
_BEFORE_ANY_TOOL: Final = (-32700, -32600, -32601)
"""JSON-RPC errors that come before any tool runs: parse error, invalid request, no such method."""


@dataclass(frozen=True)
class MCPEffects:
    """What the calls of one MCP server do. Made by `mcp_effects`."""

    tools: Mapping[str, EffectRule] = field(default_factory=dict)
    otherwise: EffectRule = _AT_MOST_ONCE
    key_in_meta: str | None = None
    errors_refuse: bool = False
    trust_hints: bool = False

    def rule(self, tool: str) -> EffectRule:
        """Return the rule of a tool."""
        return self.tools.get(tool, self.otherwise)


def mcp_effects(
    *,
    tools: Mapping[str, EffectRule] | None = None,
    otherwise: EffectRule = _AT_MOST_ONCE,
    key_in_meta: str | None = None,
    errors_refuse: bool = False,
    trust_hints: bool = False,
) -> MCPEffects:
    """Say what repeating the calls of an MCP server would do.

    Args:
        tools: By the tool's name on the server.
        otherwise: Of its other tools; by default they are sent at most once.
        key_in_meta: The name under which the server takes an idempotency key in ``_meta``, such as
            ``"com.example/idempotency-key"``; None where it takes none.
        errors_refuse: A result with ``isError`` means that nothing happened. By default it may
            have happened: the call is unknown.
        trust_hints: Whether the server's own annotations count for tools that are not in
            ``tools``: ``readOnlyHint`` is a ``READ``, ``idempotentHint`` an ``IDEMPOTENT`` tool.
            They are hints of whoever wrote the server. They are read where the workflow lists
            the tools (OpenAI Agents, ``temporalio-mcp``, pydantic-ai); the other frameworks drop
            them.
    """
    return MCPEffects(dict(tools or {}), otherwise, key_in_meta, errors_refuse, trust_hints)


def hinted_rule(annotations: Any) -> EffectRule | None:
    """Return what the annotations of a tool say of repeating it; None where they say nothing.

    Args:
        annotations: ``readOnlyHint`` is a ``READ``, ``idempotentHint`` an ``IDEMPOTENT`` call,
            whose repeat with the same arguments has no more effect. Others say nothing of it.
    """
    hints = annotations if isinstance(annotations, Mapping) else {}
    if hints.get("readOnlyHint") is True:
        return effect(Effect.READ)
    if hints.get("idempotentHint") is True:
        return effect(Effect.IDEMPOTENT)
    return None


class MCP:
    """See `Family`.

    Args:
        servers: What the calls of each server do, by the server's name.
    """

    def __init__(self, servers: Mapping[str, MCPEffects]) -> None:
        self._servers = servers

    def serves(self, activity_type: str) -> bool:
        """See `Family`."""
        found = operation(activity_type, self._servers)
        return found is not None and found[1] == "call-tool"

    def knows(self, activity_type: str) -> bool:
        """See `Family`: lists, prompts and resources."""
        found = operation(activity_type, self._servers)
        return found is not None and found[1] != "call-tool"

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall:
        """See `Family`."""
        found = operation(activity_type, self._servers)
        assert found is not None, "as for `serves`"
        request, server = MCPRequest(args), found[0]
        tool, arguments = request.tool, kept_value(request.arguments, converter)
        if request.get("factory_argument") is not None:
            # Another tenant's, say: the same call elsewhere is another call.
            chosen = kept_value(request.get("factory_argument"), converter)
            arguments = {_FACTORY: chosen, "arguments": arguments}
        return ToolCall(
            activity_type, f"{server}.{tool}", arguments, self._effects(server).rule(tool)
        )

    def replies(self, args: Sequence[Any]) -> ToldReplies:
        """See `Family`."""
        return MCPResults(MCPRequest(args))

    def arrived(
        self,
        call: ToolCall,
        args: Sequence[Any],
        function: Callable[..., Any],
        converter: PayloadConverter,
    ) -> MCPCall:
        """See `Family`."""
        found = operation(call.activity_type, self._servers)
        assert found is not None, "as for `serves`"
        return MCPCall(call, args, converter, self._effects(found[0]))

    def _effects(self, server: str) -> MCPEffects:
        return self._servers.get(server, MCPEffects())


class MCPResults(ToldReplies):
    """Results of MCP tools."""

    def __init__(
        self, request: MCPRequest, converter: PayloadConverter = PayloadConverter.default
    ) -> None:
        self._request = request
        self._converter = converter

    def done(self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None) -> Any:
        """See `Replies`. What asks for a confirmation is handed on as it was."""
        if outcome.kind == "error" and outcome.value["type"] == _ASKS:
            with suppress(UnrepresentableValue):  # it was too long to be kept whole
                wire = parse(outcome.value["message"])
                return RawValue(payload_of(for_this_call(wire, self._request)))
        return super().done(key, outcome, duplicate_of, limit)

    def tell(self, reply: Reply) -> RawValue:
        """See `ToldReplies`."""
        result = self._request.error_result(dumps(told(reply)), self._converter)
        return RawValue(payload_of(result))


class MCPCall:
    """See `ArrivedCall`."""

    def __init__(
        self,
        call: ToolCall,
        args: Sequence[Any],
        converter: PayloadConverter,
        effects: MCPEffects,
    ) -> None:
        self._call = call
        self._request = MCPRequest(args)
        self._converter = converter
        self._effects = effects
        self.replies: Replies = MCPResults(self._request, converter)

    @property
    def ends_when_cancelled(self) -> bool:
        """See `ArrivedCall`: the server goes on."""
        return False

    def effective(self) -> Json:
        """See `ArrivedCall`: the server validates them."""
        return self._call.arguments

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """See `ArrivedCall`."""
        return arguments_by_name(arguments)

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """See `ArrivedCall`."""
        given, chosen = _split(arguments)
        request = self._request
        changes: dict[str, Any] = {"arguments": arguments_of(given, self._converter)}
        if chosen is not None:
            changes["factory_argument"] = self._converter.from_payload(payload_of(chosen))
        if self._effects.key_in_meta is not None and request.takes_meta:
            key = {self._effects.key_in_meta: current().idempotency_key}
            changes["meta"] = {**(request.get("meta") or {}), **key}
        return request.changed(**changes)

    def checked(self, value: Any) -> Any:
        """See `ArrivedCall`: an error of a tool may come before its effect, or after it."""
        if asks_confirmation(value):
            # The confirmed call is another one: it has the next position, and the key is free.
            raise ReportedRefusal(_ASKS, dumps(kept_value(value, self._converter)))
        error = error_in(value)
        if error is None:
            return value
        if error.rejected or (self._effects.errors_refuse and error.by_server):
            raise ReportedRefusal("ToolRefused", error.text)
        raise ReportedFailure(error.text)

    def refuses(self, error: BaseException) -> bool:
        """See `ArrivedCall`: errors that come before any tool runs."""
        if not isinstance(error, ApplicationError) or error.type != "MCPProtocolError":
            return False
        return bool(error.details) and error.details[0] in _BEFORE_ANY_TOOL

    def outcome(self, value: Any) -> Outcome:
        """See `ArrivedCall`."""
        return outcome_of(self._call.tool, value, self._converter)


def arguments_by_name(stored: Json) -> dict[str, Json]:
    """Return the arguments of a stored call by name, without what chose the client."""
    given = _split(stored)[0]
    return given if isinstance(given, dict) else {}


def _split(stored: Json) -> tuple[Json, Json]:
    """Return the arguments, and what chose the client; None where nothing did."""
    if isinstance(stored, dict) and _FACTORY in stored:
        return stored["arguments"], stored[_FACTORY]
    return stored, None
