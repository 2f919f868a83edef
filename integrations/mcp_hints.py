"""What MCP servers say of their tools: hints, which count only where the application trusts them.

A server's list of tools is an activity's result, and so it is history: the workflow reads the hints
there, the same on every replay. They travel in a header to the activity, which never sees the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.worker import StartActivityInput

from ..activities.contract.encoding import pack, unpack
from ..ledger.action_records import Effect
from .effect_rule import EffectRule, effect
from .family import ToolCall
from .mcp import hinted_rule
from .rules import Rules

HINT_HEADER: Final = "commitline-hint"


def hinted(call: ToolCall, headers: Mapping[str, Payload]) -> ToolCall:
    """Return the call with the rule that its workflow has read in a list of tools."""
    if HINT_HEADER not in headers:
        return call
    return replace(call, rule=effect(Effect(unpack(str, RawValue(headers[HINT_HEADER])))))


class MCPHints:
    """The hints that one workflow has read.

    Args:
        rules: Which servers are trusted.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._known: dict[str, EffectRule] = {}

    def watch(self, activity_type: str, handle: workflow.ActivityHandle[Any]) -> None:
        """Read the hints in the result of an activity that lists a trusted server's tools."""
        server = self._rules.lists_tools_of(activity_type)
        if server is not None:
            handle.add_done_callback(partial(self._read, server))

    def applied(self, call: ToolCall, input: StartActivityInput) -> ToolCall:
        """Return the call with its hint, if that counts; its activity gets it in a header."""
        rule = self._known.get(call.tool)
        if rule is None or not self._rules.believes(call):
            return call
        input.headers = {**input.headers, HINT_HEADER: pack(rule.effect.value).payload}
        return replace(call, rule=rule)

    def _read(self, server: str, handle: workflow.ActivityHandle[Any]) -> None:
        if handle.cancelled() or handle.exception() is not None:
            return
        result = handle.result()
        tools = result.get("tools") if isinstance(result, Mapping) else result
        for one in tools if isinstance(tools, list) else getattr(tools, "tools", ()):
            read = one if isinstance(one, Mapping) else getattr(one, "model_dump", dict)()
            rule = hinted_rule(_camel(read.get("annotations")))
            if rule is not None and isinstance(read.get("name"), str):
                self._known[f"{server}.{read['name']}"] = rule
            else:
                self._known.pop(f"{server}.{read.get('name')}", None)


def _camel(annotations: Any) -> Any:
    """Return annotations by the names of the protocol; some SDKs have others in Python."""
    if not isinstance(annotations, Mapping):
        return annotations
    names = {"read_only_hint": "readOnlyHint", "idempotent_hint": "idempotentHint"}
    return {names.get(str(name), str(name)): value for name, value in annotations.items()}
