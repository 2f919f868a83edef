"""Fields that are read and never written: whatever is given for one is lost, without a word.

Arguments, states and outputs are stored as their types write them, and are read again from that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from ...errors import DefinitionError
from .core_schemas import NO_SCHEMAS


def check_written(schema: Any, whose: str) -> None:
    """Refuse a type of which not all is written.

    Args:
        schema: pydantic's core schema of the type.
        whose: Names the type in the message.

    Raises:
        DefinitionError: The message names the field.
    """
    for why in _unwritten(schema):
        raise DefinitionError(f"{whose} {why}, and what is given for it would be lost")


def _unwritten(schema: Any, name: str = "") -> Iterator[str]:
    """Yield, in words, what of a schema is not written; ``name`` is that of the field."""
    if isinstance(schema, list | tuple):
        for part in schema:
            yield from _unwritten(part)
    if not isinstance(schema, Mapping):
        return
    if schema.get("serialization_exclude") is True:
        called = schema.get("validation_alias") or schema.get("name") or name
        yield f"has the field {called!r} with exclude=True"
    if schema.get("type") == "model" and schema["cls"] is BaseModel:
        yield "has a BaseModel, which has no fields of its own (name the model that is meant)"
    for key, part in schema.items():
        if key not in NO_SCHEMAS:
            yield from _unwritten(part, key)
