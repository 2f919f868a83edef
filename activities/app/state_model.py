"""The model of a state: its check, and how states and changes are read and written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from ...canonical import Json, dumps, parse
from ...errors import DefinitionError, StateUnusable, UnrepresentableValue
from ...ledger.result_codec import is_wider, written_whole
from .state import Reducer, State
from .unwritten_fields import check_written
from .validation import explain

S = TypeVar("S", bound=State)


def check_state_model(model: Any, whose: str) -> None:
    """Refuse a state model that cannot work.

    Raises:
        DefinitionError: It is none, or a field has no default, an alias or no JSON form, or is
            not written.
    """
    if not (isinstance(model, type) and issubclass(model, State)):
        raise DefinitionError(f"{whose} has the state {model!r}: derive it from commitline.State")
    name = model.__name__
    for at, found in model.model_fields.items():
        if found.is_required():
            raise DefinitionError(f"{whose}: the field {at!r} of {name} needs a default")
        if found.alias or found.validation_alias or found.serialization_alias:
            raise DefinitionError(f"{whose}: the field {at!r} of {name} may not have an alias")
        if sum(isinstance(one, Reducer) for one in found.metadata) > 1:
            raise DefinitionError(f"{whose}: the field {at!r} of {name} has two reducers")
    try:
        check_written(model.__pydantic_core_schema__, f"{whose}: {name}")
        load(model, written(model()))
    except (ValueError, TypeError, UnrepresentableValue, PydanticUserError) as err:
        raise DefinitionError(f"{whose}: {name} does not survive being stored: {err}") from err


def reducer_of(model: type[State], at: str) -> Reducer | None:
    """Return the reducer of a field; None if it has none."""
    found = model.model_fields[at].metadata
    return next((one for one in found if isinstance(one, Reducer)), None)


def load(model: type[S], stored: Mapping[str, Json]) -> S:
    """Return a state as its tools see it: the stored fields, and the defaults of the others.

    Raises:
        Exception: A stored field does not fit. A validator of the application may raise anything.
    """
    known = {at: stored[at] for at in model.model_fields if at in stored}
    return model.model_validate_json(dumps(known))


def read_state(model: type[S], text: str) -> S:
    """Return a stored state (JSON text) as an instance of its model.

    Raises:
        StateUnusable: It does not fit.
    """
    try:
        return load(model, parse(text))
    except Exception as err:  # a validator may raise anything
        raise StateUnusable(
            f"what the conversation keeps does not fit {model.__name__}: {explain(err)}"
        ) from err


def written(value: State) -> dict[str, Json]:
    """Return a state as JSON data by field, also where a value does not fit its type yet."""
    data = value.model_dump(mode="json", round_trip=True, warnings=False)
    return {at: data[at] for at in type(value).model_fields if at in data}


def check_whole(value: State, at: str) -> None:
    """Refuse a field's value that would be read again as less than it is: as its declared class.

    Raises:
        StateUnusable: It has an object of a subclass in it, with fields of its own.
    """
    adapter = _adapter_of(type(value))
    if not is_wider(getattr(value, at), adapter):
        return
    if written_whole(value, adapter, round_trip=True)[at] != written(value)[at]:
        raise StateUnusable(
            f"{at}: it has an object with fields that the field's type does not have, and they "
            "would be lost; name its class in the type"
        )


@cache
def _adapter_of(model: type[State]) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def field_adapter(model: type[State], at: str) -> TypeAdapter[Any]:
    """Return what reads and writes a *change* of a field: its type without its constraints."""
    kind: Any = model.model_fields[at].annotation
    try:
        return TypeAdapter(kind, config=State.model_config)
    except PydanticUserError:
        return TypeAdapter(kind)  # a model or a dataclass brings its own configuration
