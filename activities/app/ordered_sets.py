"""Sets in one order, as JSON: two processes write equal sets as the same text.

Python orders a set of texts anew in each process. Arguments are compared by what is written: by
their digest, and by whether a tool takes today what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import SchemaSerializer, core_schema

from ...canonical import canonical

_NO_SCHEMAS: Final = frozenset({"default", "expected", "metadata", "serialization"})
"""What a schema has that is none, whatever it looks like."""


def serializer_of(schema: Any) -> SchemaSerializer | None:
    """Return a serializer of pydantic's that writes each set in one order.

    None where there is no set, and so the one that pydantic made will do.
    """
    ordered = _ordered(schema)
    # A nested model would bring the serializer that it has already.
    return None if ordered == schema else SchemaSerializer(ordered, _use_prebuilt=False)


def _ordered(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        found: Any = {
            name: part if name in _NO_SCHEMAS else _ordered(part) for name, part in schema.items()
        }
        if found.get("type") in ("set", "frozenset") and "serialization" not in found:
            found["serialization"] = core_schema.wrap_serializer_function_ser_schema(
                _in_order, when_used="json"
            )
        return found
    if isinstance(schema, list | tuple):
        return type(schema)([_ordered(part) for part in schema])
    return schema


def _in_order(value: Any, write: Any) -> Any:
    return sorted(write(value), key=canonical)
