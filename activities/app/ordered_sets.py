"""Sets in one order, as JSON: two processes write equal sets as the same text.

Python orders a set of texts anew in each process. Arguments are compared by what is written: by
their digest, and by whether a tool takes today what was stored.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import SchemaSerializer, core_schema

from ...canonical import canonical
from .core_schemas import rewritten


def serializer_of(schema: Any) -> SchemaSerializer | None:
    """Return a serializer of pydantic's that writes each set in one order.

    None where there is no set, and so the one that pydantic made will do.
    """
    ordered = rewritten(schema, _ordered)
    # A nested model would bring the serializer that it has already.
    return None if ordered == schema else SchemaSerializer(ordered, _use_prebuilt=False)


def _ordered(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") in ("set", "frozenset") and "serialization" not in part:
        part["serialization"] = core_schema.wrap_serializer_function_ser_schema(
            _in_order, when_used="json"
        )
    return part


def _in_order(value: Any, write: Any) -> Any:
    return sorted(write(value), key=canonical)
