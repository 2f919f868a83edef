"""One codec for live and replay: what the model reads now is what it reads after a crash.

A returned value becomes JSON text once, by pydantic's JSON mode and the tool's declared
return type, and from then on only that text exists: recorded, sent through Temporal, shown
to the model. A value that has no JSON form becomes, once, a recorded error that names tool
and type; the effect stands, and the tool is not run again because its answer was odd.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..canonical import dumps
from ..errors import UnrepresentableValue
from ..redaction import redact
from .action_records import Outcome

MAX_ERROR_TEXT: Final = 4_000
"""Characters of an exception's text that are kept."""


def encode_result(tool: str, value: Any, adapter: TypeAdapter[Any] | None) -> Outcome:
    """Return the outcome of a call that returned ``value``.

    Args:
        tool: Named in the error.
        value: Whatever the tool returned; ``None``, ``""`` and ``[]`` are results.
        adapter: Of the declared return type; None where there is none.
    """
    try:
        return Outcome.ok(_encode(value, adapter))
    except UnrepresentableValue as err:
        return Outcome.error(
            kind="UnrepresentableResult",
            message=(
                f"{tool} ran, and its effect stands, but its result of type "
                f"{type(value).__qualname__} could not be kept ({err.message})"
            ),
            effect_possible=True,
        )


def encode_error(error: BaseException, *, effect_possible: bool) -> Outcome:
    """Return the outcome of a call that raised: class and text, kept once."""
    return Outcome.error(
        kind=type(error).__name__, message=error_text(error), effect_possible=effect_possible
    )


def error_text(error: BaseException) -> str:
    """Return an exception's text, capped and redacted; never raises, whatever ``__str__`` does."""
    try:
        text = str(getattr(error, "message", None) or error)[: 2 * MAX_ERROR_TEXT]
        text = redact(text)[:MAX_ERROR_TEXT]  # a key that is cut has no shape any more
    except Exception:
        text = ""
    return text or f"{type(error).__name__} without a message"


def _encode(value: Any, adapter: TypeAdapter[Any] | None) -> str:
    try:
        plain = dumps(value)
    except Exception:
        plain = None  # not plain data; a subclass of dict may raise anything on the way
    if adapter is None and plain is not None:
        # Plain data goes as it is: pydantic would refuse a lone surrogate, which JSON holds.
        return plain
    try:
        _refuse_lossy(value)
        if isinstance(value, Iterator):
            value = list(value)  # it can be read only once, and may be encoded twice
            _refuse_lossy(value)
        return dumps(_jsonable(value, adapter))
    except Exception as err:
        # Whatever a foreign __repr__, serializer or generator raises, it is one tool's fault.
        if plain is not None:
            return plain
        if isinstance(err, UnrepresentableValue):
            raise
        raise UnrepresentableValue(f"no JSON form: {error_text(err)[:200]}") from err


def _refuse_lossy(value: Any) -> None:
    """Refuse what pydantic would write down as something else, without a word.

    Keys that become one text lose an entry, and an open file becomes a list of its lines.
    """
    if isinstance(value, io.IOBase):
        raise UnrepresentableValue(f"a {type(value).__name__} is no data")
    if isinstance(value, Mapping):
        texts = {next(iter(to_jsonable_python({key: None}))) for key in value}
        if len(texts) != len(value):
            raise UnrepresentableValue("two keys of one object become the same text")
    for item in _inside(value):
        _refuse_lossy(item)


def _inside(value: Any) -> Iterable[Any]:
    """Return what a container, a model or a dataclass holds."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, BaseModel) or is_dataclass(value):
        return vars(value).values() if hasattr(value, "__dict__") else ()
    return ()


def _jsonable(value: Any, adapter: TypeAdapter[Any] | None) -> Any:
    if adapter is None:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants")
    try:
        return written_whole(value, adapter)
    except (PydanticSerializationError, UnicodeDecodeError):
        # Bytes that are no text: the same value, its bytes as base64.
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants")


def written_whole(value: Any, adapter: TypeAdapter[Any], *, round_trip: bool = False) -> Any:
    """Return a value as JSON data: as its declared type writes it, and what that would leave out.

    Args:
        value: Fits the type, or nearly so.
        adapter: Of the declared type. Keep it: what is found of it is kept by it.
        round_trip: Without what is computed.
    """
    declared = adapter.dump_python(value, mode="json", warnings="none", round_trip=round_trip)
    if not is_wider(value, adapter):
        return declared
    wide = adapter.dump_python(
        value, mode="json", warnings="none", round_trip=round_trip, serialize_as_any=True
    )
    return _with_what_is_left_out(declared, wide)


def is_wider(value: Any, adapter: TypeAdapter[Any]) -> bool:
    """Whether a value has a model or a dataclass in it that the declared type does not name.

    A subclass of the declared one: by the declared type pydantic would write its own fields only,
    and of ``-> BaseModel`` none.
    """
    return _is_wider(value, _classes_of(adapter))


def _is_wider(value: Any, declared: frozenset[type]) -> bool:
    is_model = isinstance(value, BaseModel) or is_dataclass(value)
    if is_model and type(value) not in declared:
        return True
    return any(_is_wider(item, declared) for item in _inside(value))


def _with_what_is_left_out(declared: Any, wide: Any) -> Any:
    """Return JSON as the declared type writes it, and the fields that only the value has."""
    if isinstance(declared, dict) and isinstance(wide, dict):
        both = {
            key: _with_what_is_left_out(one, wide[key]) if key in wide else one
            for key, one in declared.items()
        }
        return both | {key: one for key, one in wide.items() if key not in declared}
    if isinstance(declared, list) and isinstance(wide, list) and len(declared) == len(wide):
        return [_with_what_is_left_out(*pair) for pair in zip(declared, wide, strict=True)]
    return declared


@lru_cache(maxsize=1_000)
def _classes_of(adapter: TypeAdapter[Any]) -> frozenset[type]:
    """Return the models and dataclasses that a declared type names, at any depth."""
    found: set[type] = set()
    left: list[Any] = [adapter.core_schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("cls"), type):
                found.add(part["cls"])
            left.extend(part.values())
        elif isinstance(part, list | tuple):
            left.extend(part)
    return frozenset(found)
