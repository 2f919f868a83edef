"""Keys of an object that become one when they are read: ``{"1": …, "01": …}`` as `dict[int, str]`.

Whoever gets such a dictionary gets one of the two values, and nobody was told of the other. JSON
with the same key twice is refused for the same reason (`canonical.parse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import SchemaValidator, core_schema

from .core_schemas import rewritten


def validator_of(schema: Any) -> SchemaValidator | None:
    """Return a validator of pydantic's that refuses keys which become one.

    None where no dictionary is read, and so the one that pydantic made will do.
    """
    checked = rewritten(schema, _checked)
    # A nested model would bring the validator that it has already.
    return None if checked == schema else SchemaValidator(checked, _use_prebuilt=False)


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
