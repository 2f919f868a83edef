"""What MCP calls look like on their way: each framework has activities and messages of its own.

    temporalio.mcp.<server>.call-tool   temporalio-mcp, and OpenAI Agents by it
    <server>-call-tool[-v2]             OpenAI Agents' older servers, Strands, ADK, genai

Names of the second kind could be anybody's, so they count only for servers that are named. No
package of a framework is imported: its messages are read by the names of their fields.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from temporalio.converter import PayloadConverter

from ..canonical import Json
from .stored_payload import kept_value

_NATIVE: Final = re.compile(r"temporalio\.mcp\.(?P<server>.+)\.(?P<operation>[a-z-]+)")
_OTHERS: Final = re.compile(
    r"(?P<server>.+)-"
    r"(?P<operation>call-tool|list-tools|list-prompts|get-prompt|server-session)(-v2)?"
)


def operation(activity_type: str, servers: Collection[str]) -> tuple[str, str] | None:
    """Return the server and the operation of an activity; None if it is none of an MCP server.

    Args:
        activity_type: The activity's type.
        servers: The servers that are named.
    """
    found = _NATIVE.fullmatch(activity_type)
    if found is None:
        found = _OTHERS.fullmatch(activity_type)
        if found is None or found["server"] not in servers:
            return None
    return found["server"], found["operation"]


class MCPRequest:
    """The arguments of an activity that calls an MCP tool.

    Args:
        args: The activity's arguments: one message, or a name and arguments.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        self._args = args
        self._message = args[0]

    @property
    def tool(self) -> str:
        """The tool's name on its server."""
        if isinstance(self._message, str):
            return self._message
        return str(self.get("name") or self.get("tool_name"))

    @property
    def arguments(self) -> Any:
        """The tool's arguments."""
        given = self._args[1] if isinstance(self._message, str) else self.get("arguments")
        return given or {}

    def get(self, name: str) -> Any:
        """Return a field of the message; None where it has none."""
        if isinstance(self._message, Mapping):
            return self._message.get(name)
        return getattr(self._message, name, None)

    @property
    def takes_meta(self) -> bool:
        """Whether ``_meta`` of a call can be given."""
        return isinstance(self._message, Mapping) or hasattr(self._message, "meta")

    def changed(self, **changes: Any) -> Sequence[Any]:
        """Return the activity's arguments with other fields in the message."""
        message, rest = self._message, self._args[1:]
        if isinstance(message, str):
            return [message, changes["arguments"], *self._args[2:]]
        if isinstance(message, Mapping):
            return [{**message, **changes}, *rest]
        if hasattr(message, "model_copy"):
            return [message.model_copy(update=changes), *rest]
        return [dataclasses.replace(message, **changes), *rest]

    def error_result(self, text: str, converter: PayloadConverter) -> Json:
        """Return a result that is an error, as the framework's workflow half takes it."""
        if self.get("tool_use_id") is not None:  # Strands
            use = {"toolUseId": str(self.get("tool_use_id"))}
            return {"status": "error", **use, "content": [{"text": text}]}
        result: Json = {"content": [{"type": "text", "text": text}], "isError": True}
        if self.get("tool_context") is not None:  # ADK
            context = kept_value(self.get("tool_context"), converter)
            return {"result": result, "tool_context": context}
        return result


@dataclasses.dataclass(frozen=True)
class ReportedError:
    """An error that a framework returned as the result of an MCP tool."""

    text: str
    by_server: bool
    """The server said so. Otherwise it may be a connection that was lost."""
    rejected: bool = False
    """A person has rejected the call, as ADK has it: nothing was sent."""


def error_in(value: Any) -> ReportedError | None:
    """Return the error that a result is; None of a result."""
    rejected = False
    if _is_adk(value):
        said = getattr(value.tool_context, "tool_confirmation", None)
        rejected = said is not None and not said.confirmed
        value = value.result
    result = value.model_dump() if hasattr(value, "model_dump") else value
    if not isinstance(result, Mapping):
        return None
    by_server = bool(result.get("isError") or result.get("is_error"))
    swallowed = result.get("status") == "error" or set(result) == {"error"}
    if not by_server and not swallowed:
        return None
    parts = result.get("content") or []
    texts = [str(one["text"]) for one in parts if isinstance(one, Mapping) and one.get("text")]
    text = " ".join(texts) or str(result.get("error") or "the tool reported an error")
    return ReportedError(text, by_server, rejected and not by_server)


def asks_confirmation(value: Any) -> bool:
    """Whether a result of ADK asks a person to confirm the call: nothing was sent."""
    if not _is_adk(value):
        return False
    actions = getattr(value.tool_context, "event_actions", None)
    asked = getattr(actions, "requested_tool_confirmations", ())
    return getattr(value.tool_context, "function_call_id", None) in asked


def for_this_call(wire: Json, request: MCPRequest) -> Json:
    """Return a recorded result of ADK as that of this request: a reset gives the call another id.

    Args:
        wire: The result, as it was kept.
        request: The activity's arguments.
    """
    recorded = wire["tool_context"]
    today = getattr(request.get("tool_context"), "function_call_id", None)
    return {**wire, "tool_context": _renamed(recorded, recorded["function_call_id"], today)}


def _renamed(data: Json, old: str, new: str | None) -> Json:
    """Replace an id where it is a whole key, or a whole value."""
    if isinstance(data, dict):
        return {
            new if new and name == old else name: _renamed(one, old, new)
            for name, one in data.items()
        }
    return new if new and data == old else data


def _is_adk(value: Any) -> bool:
    return hasattr(value, "tool_context") and hasattr(value, "result")
