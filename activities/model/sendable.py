"""Names, arguments and texts in a form that every provider accepts."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ...canonical import Json, dumps, parse
from ...errors import UnrepresentableValue

PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What every provider takes as a name, and as an id unless it demands a form of its own."""


def sendable_name(name: str) -> str:
    """Return a name that every provider takes: a model may call a tool by an impossible name."""
    return name if PLAIN_NAME.fullmatch(name) else re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"


def sendable_arguments(arguments: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return arguments that every provider accepts: a JSON object without NaN and infinities.

    The model reads malformed arguments as it wrote them, under the key that pydantic-ai uses.
    pydantic-ai itself would let NaN and infinities through, which break the request.
    """
    if not arguments:
        return arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        value = parse(text)
        dumps(value)  # 1e999 is read as an infinity
    except UnrepresentableValue:
        value = None
    if not isinstance(value, dict):
        return {"INVALID_JSON": encodable(text)}
    clean: dict[str, Any] = encodable(value)
    return arguments if clean == value else clean


def encodable(value: Json) -> Any:
    """Return JSON data without lone surrogates, which UTF-8 cannot hold; for the wire only."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [encodable(item) for item in value]
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    return value
