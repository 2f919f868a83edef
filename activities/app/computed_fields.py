"""Computed fields in what is read: they are written with a model, and are none of its arguments.

What a call returned is kept with them, and may be an argument later: of the call that undoes it, of
a plan's step, or of a call that a model copies it into. A type that forbids extra fields would
refuse what it has written itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel
from pydantic_core import core_schema

from .core_schemas import rewritten


def computed_left_out(schema: Any) -> Any:
    """Return a schema in which models that forbid extra fields leave their computed ones out."""
    return rewritten(schema, _leaving_out)


def _leaving_out(part: dict[str, Any]) -> Any:
    kind = part.get("cls")
    if part.get("type") != "model" or not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return part
    fields = kind.model_computed_fields
    if not fields or kind.model_config.get("extra") != "forbid":
        return part
    names = frozenset({*fields, *(one.alias for one in fields.values() if one.alias)})
    found: Any = part
    ref = found.pop("ref", None)
    return core_schema.no_info_before_validator_function(partial(_without, names), found, ref=ref)


def _without(names: frozenset[str], given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    return {name: value for name, value in given.items() if name not in names}
