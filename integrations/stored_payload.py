"""Temporal payloads as JSON data: how arguments and results of foreign activities are kept.

Plain JSON is kept as itself. Everything else (bytes, protobuf, NaN) is kept as the payload's
metadata and its data in base64, so that what is called later, or replied, is made of the payload
that the first attempt had.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter

from ..canonical import Json, canonical, dumps, parse
from ..errors import UnrepresentableValue

_JSON: Final = {"encoding": b"json/plain"}
_PAYLOAD: Final = "$payload"
"""The one key of the object that stands for a payload which is not plain JSON."""


def kept(payload: Payload) -> Json:
    """Return a payload as JSON data."""
    metadata = dict(payload.metadata)
    if metadata == {"encoding": b"binary/null"}:
        return None
    if metadata == _JSON:
        try:
            value = parse(payload.data.decode("utf-8"))
            if value is not None and not (isinstance(value, dict) and _PAYLOAD in value):
                return value
        except (UnrepresentableValue, UnicodeDecodeError):
            pass  # JSON that is none in our sense, such as NaN
    named = {name: text.decode("latin-1") for name, text in sorted(metadata.items())}
    return {_PAYLOAD: {"metadata": named, "data": base64.b64encode(payload.data).decode("ascii")}}


def payload_of(data: Json) -> Payload:
    """Return the payload that `kept` kept."""
    if data is None:
        return Payload(metadata={"encoding": b"binary/null"})
    if isinstance(data, dict) and _PAYLOAD in data:
        inner = data[_PAYLOAD]
        metadata = {name: text.encode("latin-1") for name, text in inner["metadata"].items()}
        return Payload(metadata=metadata, data=base64.b64decode(inner["data"]))
    return Payload(metadata=_JSON, data=dumps(data).encode("ascii"))


def kept_value(value: Any, converter: PayloadConverter) -> Json:
    """Return a value as JSON data, as its converter writes it.

    Raises:
        Exception: Whatever a converter raises that cannot write it.
    """
    return kept(converter.to_payload(value))


def arguments_of(data: Json, converter: PayloadConverter) -> dict[str, Any]:
    """Return the named arguments that `kept_value` kept."""
    arguments: dict[str, Any] = converter.from_payload(payload_of(data), dict)
    return arguments


def unordered(data: Json) -> Json:
    """Return what is kept for comparison: a converter may write a set in any order."""
    if isinstance(data, dict):
        if _PAYLOAD in data:
            return _PAYLOAD  # not JSON: equal values may have several forms
        return {name: unordered(value) for name, value in data.items()}
    if isinstance(data, list):
        return sorted(map(unordered, data), key=canonical)
    return data
