"""The signature of a tool's function, as the pydantic model that checks its arguments.

The fields of the model have neutral names, and the parameters are their aliases: a parameter may
have a name that pydantic keeps for itself.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from ...canonical import dumps
from ...errors import DefinitionError
from .ordered_sets import serializer_of
from .state import State
from .state_model import check_state_model
from .tool_context import ToolContext
from .unwritten_fields import check_written
from .validation import explain
from .validator import validator_of

_FROM_VALIDATORS: Final = frozenset({"value_error", "assertion_error"})
"""The kinds of pydantic's errors that a validator of the application raised."""


@dataclass(frozen=True)
class FilledIn:
    """The parameters that the worker fills in, and that the model does not see."""

    context: str | None = None
    """The name of the parameter that gets the `ToolContext`; None if there is none."""
    state: str | None = None
    """The name of the parameter that gets the state; None if there is none."""
    state_model: type[State] | None = None
    """The type of that parameter."""


def arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], FilledIn]:
    """Return the model of a function's arguments, and the parameters that the worker fills in.

    Raises:
        DefinitionError: A parameter cannot be given by name, or has no JSON form.
    """
    hints = _hints_of(function, name)
    filled_in = FilledIn()
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(f"the tool {name!r} may not have *{parameter.name} or '/'")
        annotation = hints.get(parameter.name, Any)
        kind = _bare(annotation)
        if kind is ToolContext:
            filled_in = replace(filled_in, context=parameter.name)
        elif isinstance(kind, type) and issubclass(kind, State):
            if filled_in.state is not None:
                raise DefinitionError(f"the tool {name!r} takes the state twice")
            check_state_model(kind, f"the tool {name!r}")
            filled_in = replace(filled_in, state=parameter.name, state_model=kind)
        elif (hidden := _filled_in_inside(kind)) is not None:
            # The model would be shown it, and could write whatever it likes.
            raise DefinitionError(
                f"the tool {name!r} has a {hidden} inside the type of {parameter.name!r}: only a "
                f"parameter of the type {hidden} itself is filled in"
            )
        else:
            fields[f"argument_{index}"] = _field(annotation, parameter)
    return _model(name, fields), filled_in


def returns_of(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    """Return what writes a result as JSON, by the annotation of the function; None: as it comes."""
    annotation = _hints_of(function, function.__name__).get("return", Any)
    if annotation is Any:
        return None
    # A model brings its own configuration and takes no other; a plain type takes ours.
    for config in (ConfigDict(ser_json_bytes="base64"), None):
        try:
            return TypeAdapter(annotation, config=config)
        except PydanticUserError:
            continue
    return None  # pydantic has no schema for that type


def may_return_none(function: Callable[..., Any]) -> bool:
    """Whether None is a result of the function, as far as its annotation says."""
    annotation = _hints_of(function, function.__name__).get("return", Any)
    return annotation in (Any, None, type(None)) or type(None) in typing.get_args(annotation)


def _bare(annotation: Any) -> Any:
    """Return a type without what `Annotated` says of it."""
    return typing.get_args(annotation)[0] if _is_annotated(annotation) else annotation


def _is_annotated(annotation: Any) -> bool:
    return typing.get_origin(annotation) is Annotated


def _filled_in_inside(annotation: Any) -> str | None:
    """Return the name of a type inside another one that a worker would fill in by itself."""
    for part in typing.get_args(annotation):
        if isinstance(part, type) and issubclass(part, ToolContext | State):
            return part.__name__
        if (found := _filled_in_inside(part)) is not None:
            return found
    return None


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    try:
        model: type[BaseModel] = create_model(
            name,
            __config__=ConfigDict(
                extra="forbid",
                validate_default=True,
                serialize_by_alias=True,
                ser_json_bytes="base64",
                val_json_bytes="base64",
            ),
            **fields,
        )
        if '"writeOnly"' in dumps(model.model_json_schema()):
            # pydantic's SecretStr would be stored, and handed to the tool, as asterisks.
            raise DefinitionError(f"the tool {name!r} has a secret parameter: not supported yet")
        check_written(model.__pydantic_core_schema__, f"the tool {name!r}")
        _check_defaults(name, model)
        model.__pydantic_validator__ = (
            validator_of(model.__pydantic_core_schema__) or model.__pydantic_validator__
        )
        model.__pydantic_serializer__ = (
            serializer_of(model.__pydantic_core_schema__) or model.__pydantic_serializer__
        )
    except (PydanticUserError, TypeError) as err:
        raise DefinitionError(f"the tool {name!r} has a parameter without JSON: {err}") from err
    return model


def _check_defaults(name: str, model: type[BaseModel]) -> None:
    """Refuse a default that the parameter's own type refuses: no call without it could be made."""
    for field in model.model_fields.values():
        if refusal := _refusal_of_default(field):
            raise DefinitionError(
                f"the tool {name!r} has a default that does not fit its parameter's type: "
                f"{explain(refusal, whole=field.alias or '')}; one that may be None has that in "
                "its type (int | None = None)"
            ) from refusal


def _refusal_of_default(field: FieldInfo) -> ValidationError | None:
    """Return why a type refuses its default for good; None if it does not.

    No factory is called, and what a validator of the application says may change until the call.
    """
    if field.is_required() or field.default_factory is not None:
        return None
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    try:
        TypeAdapter(kind).validate_python(field.get_default())
    except ValidationError as err:
        return err if {one["type"] for one in err.errors()} - _FROM_VALIDATORS else None
    except Exception:  # a validator may raise anything
        return None
    return None


def _field(annotation: Any, parameter: inspect.Parameter) -> tuple[Any, Any]:
    """Return annotation and field, the parameter's name being the field's alias."""
    default = parameter.default
    if isinstance(default, FieldInfo):
        # `x: int = Field(gt=0, default_factory=…)`: its constraints belong to the annotation.
        constrained = Annotated[annotation, default]
        if default.default_factory is not None:
            return constrained, Field(default_factory=default.default_factory, alias=parameter.name)
        return constrained, Field(default.default, alias=parameter.name)
    return annotation, Field(... if default is parameter.empty else default, alias=parameter.name)


def _hints_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as err:
        raise DefinitionError(f"the tool {name!r} has an annotation not found: {err}") from err
