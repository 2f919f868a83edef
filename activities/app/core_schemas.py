"""Pydantic's core schemas: what a walk over one goes into, and one that is made anew from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

NO_SCHEMAS: Final = frozenset({"default", "expected", "metadata", "serialization"})
"""What a schema has that is none, whatever it looks like."""


def rewritten(schema: Any, rewrite: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a schema in which each part was rewritten, those inside of it before itself.

    Args:
        schema: It stays as it is.
        rewrite: Gets each part as a dictionary of its own, and returns what stands in its place.
    """
    if isinstance(schema, Mapping):
        return rewrite(
            {
                name: part if name in NO_SCHEMAS else rewritten(part, rewrite)
                for name, part in schema.items()
            }
        )
    if isinstance(schema, list | tuple):
        return type(schema)([rewritten(part, rewrite) for part in schema])
    return schema
