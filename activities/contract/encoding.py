"""How our own values cross Temporal: as ASCII JSON, whatever converter the client has.

The pydantic converter raises on a lone surrogate: an activity then fails again and again, and so
does a workflow task. So the values of our workflows and activities are encoded here, and travel
as `RawValue`, which every converter lets through. A payload codec (encryption) still applies.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DefaultPayloadConverter

from ...canonical import scrub
from ...errors import PayloadUnreadable

T = TypeVar("T")

_METADATA = {"encoding": b"json/plain"}
_READABLE: Final = frozenset(DefaultPayloadConverter().converters)
"""The encodings that the SDK's own converter reads. Any other is a codec's."""


def to_text(value: Any) -> str:
    """Return a dataclass, or plain JSON data, as ASCII JSON text."""
    return _ENCODER.encode(value)


def from_text(kind: type[T], text: str) -> T:
    """Return the value of type ``kind`` that `to_text` wrote.

    Raises:
        pydantic.ValidationError: The text holds something else.
    """
    return from_plain(kind, json.loads(text))


def from_plain(kind: type[T], plain: Any) -> T:
    """Return the value of type ``kind`` whose JSON data this is."""
    adapter: TypeAdapter[Any] = _adapter(cast("Any", kind))
    return cast("T", adapter.validate_python(plain))


def pack(value: Any) -> RawValue:
    """Encode a value for Temporal."""
    return pack_text(to_text(value))


def pack_text(text: str) -> RawValue:
    """Wrap JSON text for Temporal."""
    return RawValue(Payload(metadata=_METADATA, data=text.encode("ascii")))


def unpack(kind: type[T], raw: RawValue) -> T:
    """Decode what `pack` encoded.

    Raises:
        PayloadUnreadable: A codec that this process lacks has encoded it.
        pydantic.ValidationError: It holds something else.
    """
    return from_text(kind, raw_text(raw))


def raw_text(raw: RawValue) -> str:
    """Return the JSON text of a packed value.

    Raises:
        PayloadUnreadable: A codec that this process lacks has encoded it.
    """
    encoding = raw.payload.metadata.get("encoding", b"")
    if encoding not in _READABLE:
        raise unreadable(encoding.decode("ascii", "replace"))
    return raw.payload.data.decode("ascii")


def unreadable(encoding: str) -> PayloadUnreadable:
    """Return the error of a payload that no codec of this process has decoded."""
    return PayloadUnreadable(f"a payload is encoded as {scrub(encoding, limit=100)!r}")


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass for the encoder; ``asdict`` would first copy everything.

    An empty field whose default is empty too is left out. Most fields of a message are, and
    messages travel often.
    """
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} does not cross Temporal")
    empty = _empty(type(value))
    return {
        name: item
        for name, item in vars(value).items()
        if name not in empty or type(item) is not type(empty[name]) or item != empty[name]
    }


@cache
def _empty(kind: type) -> dict[str, Any]:
    """Return the fields whose default is None, "", [], 0 or False, or holds nothing else."""
    made = {
        f.name: f.default_factory() if callable(f.default_factory) else f.default
        for f in fields(kind)
    }
    return {name: item for name, item in made.items() if _is_empty(item)}


def _is_empty(value: Any) -> bool:
    if is_dataclass(value) and not isinstance(value, type):
        return not _fields(value)
    return value in (None, "", [], 0)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of a type. The SDK's ``value_to_type`` would make one for every value."""
    return TypeAdapter(kind)


_ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_fields)
"""Made once: `json.dumps` would make one for each value."""
