"""Keys of an object that become one when they are read: ``{"1": …, "01": …}`` as `dict[int, str]`.

Whoever gets such a dictionary gets one of the two values, and nobody was told of the other. JSON
with the same key twice is refused for the same reason (`canonical.parse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import core_schema

from .core_schemas import rewritten


def keys_checked(schema: Any) -> Any:
    """Return a schema that refuses keys which become one."""
    return rewritten(schema, _checked)


def _checked(part: dict[str, Any]) -> Any:
    if part.get("type") != "dict":
        return part
    found: Any = part
    ref = found.pop("ref", None)
    return core_schema.no_info_wrap_validator_function(_check, found, ref=ref)


def _check(given: Any, read: Any) -> Any:
    value: Mapping[Any, Any] = read(given)
    if isinstance(given, Mapping) and len(value) < len(given):
        raise ValueError(f"two keys become one: {', '.join(map(repr, _same(given, read)))}")
    return value


def _same(given: Mapping[Any, Any], read: Any) -> Sequence[Any]:
    """Return two keys that become one."""
    seen: dict[Any, Any] = {}
    for key, value in given.items():
        for read_key in read({key: value}):
            if read_key in seen:
                return [seen[read_key], key]
            seen[read_key] = key
    return [*given]
