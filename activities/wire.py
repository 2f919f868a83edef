"""How our own values cross Temporal: ASCII JSON, whatever converter the client has.

The pydantic converter raises on a lone surrogate, for ever in an activity and worse in a
workflow task. So the values of our workflow and activities are encoded here and travel as
`RawValue`, which every converter passes through; a payload codec (encryption) still applies.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar, cast

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import value_to_type

T = TypeVar("T")

_METADATA = {"encoding": b"json/plain"}


def to_text(value: Any) -> str:
    """Return a dataclass, or plain JSON data, as ASCII JSON text."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def from_text(kind: type[T], text: str) -> T:
    """Return the value of type ``kind`` that `to_text` wrote.

    Raises:
        TypeError: The text holds something else.
    """
    return from_plain(kind, json.loads(text))


def from_plain(kind: type[T], plain: Any) -> T:
    """Return the value of type ``kind`` whose JSON data this is."""
    return cast("T", value_to_type(kind, plain))


def pack(value: Any) -> RawValue:
    """Encode a value for Temporal."""
    return pack_text(to_text(value))


def pack_text(text: str) -> RawValue:
    """Wrap JSON text for Temporal."""
    return RawValue(Payload(metadata=_METADATA, data=text.encode("ascii")))


def unpack(kind: type[T], raw: RawValue) -> T:
    """Decode what `pack` encoded."""
    return from_text(kind, raw_text(raw))


def raw_text(raw: RawValue) -> str:
    """Return the JSON text of a packed value."""
    return raw.payload.data.decode("ascii")
