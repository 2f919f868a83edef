"""Whether two values are the same in what is stored of them."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, RootModel

_BY_FIELDS: Final = (BaseModel.__eq__, RootModel.__eq__)


def are_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; the private attributes of pydantic's models do not count.

    Those are not stored: each instance makes its own, such as a random id or a lock.
    """
    if one == other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, BaseModel):
        by_fields = type(one).__eq__ in _BY_FIELDS
        return by_fields and are_same(_fields_of(one), _fields_of(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(are_same, one, other))
    return False


def _fields_of(model: BaseModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields} | {
        f"extra {name}": value for name, value in (model.model_extra or {}).items()
    }
