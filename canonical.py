"""JSON as Commitline reads, writes and compares it.

Everything that crosses Temporal or lies in Postgres is ASCII JSON text: it holds lone
surrogates, NUL, big integers and key order exactly, where ``jsonb`` and pydantic's JSON
parser refuse or change them. What JSON cannot hold faithfully (NaN, infinities, two keys
that become one) is refused here, before anything depends on it.
"""

from __future__ import annotations

import hashlib
import json
import math
from itertools import accumulate
from typing import Any, Final, NoReturn, TypeAlias

from .errors import UnrepresentableValue

Json: TypeAlias = Any
"""What ``json.loads`` returns: dict, list, str, int, float, bool or None."""

MAX_DEPTH: Final = 200
"""Levels of nesting. Python's own limit depends on how deep the caller stands; this does not."""

_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level down, and one level up, as signed bytes."""
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))
_TOO_DEEP: Final = f"nested over {MAX_DEPTH} levels deep"


def parse(text: str) -> Json:
    """Read JSON text strictly.

    Raises:
        UnrepresentableValue: Not JSON, NaN or infinity, a key twice in one object, an
            integer of more than 4,300 digits (Python's own limit), or nested over 200 deep.
    """
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as err:
        reason = _TOO_DEEP if _brackets_too_deep(text) else f"not valid JSON: {err}"
        raise UnrepresentableValue(reason) from err
    if _too_deep(text):
        raise UnrepresentableValue(_TOO_DEEP)
    return value


def dumps(value: Json) -> str:
    """Write ASCII JSON text, keys in the order given; the inverse of `parse`.

    Raises:
        UnrepresentableValue: The value holds NaN, an infinity, keys that are not strings,
            or something that is not plain JSON data.
    """
    return _encode(value, sort_keys=False)


def canonical(value: Json) -> str:
    """Write the one text that equal values share: keys sorted, no white space.

    ``True`` is not ``1`` and ``1.0`` is not ``1``: they are different texts.
    """
    return _encode(value, sort_keys=True)


def digest(value: Json) -> str:
    """Return the SHA-256 of the canonical text, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()


def scrub(text: str, *, limit: int = 500) -> str:
    """Make any text safe for a Temporal summary, failure message or log: printable, UTF-8, capped.

    Lone surrogates and control characters are replaced by ``?``; what is over ``limit``
    characters is cut and marked.
    """
    kept = text if len(text) <= limit else f"{text[: limit - 1]}…"
    if kept.isprintable():  # nearly every text, and looking at each character takes long
        return kept
    clean = kept.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in clean)


def storable(text: str) -> str:
    """Return a text for people as Postgres can hold it; all but a few are it already.

    A NUL and a lone surrogate become ``?``. Not for what identifies something: two texts may
    become one. Nothing else is changed or cut, unlike by `scrub`: it is a record of what was said.
    """
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def _encode(value: Json, *, sort_keys: bool) -> str:
    try:
        _check_plain(value, depth=0)
        return (_SORTING_ENCODER if sort_keys else _ENCODER).encode(value)
    except (TypeError, ValueError, RecursionError) as err:
        raise UnrepresentableValue(f"no JSON form: {err}") from err


def _check_plain(value: Json, *, depth: int) -> None:
    if depth >= MAX_DEPTH and isinstance(value, dict | list | tuple):
        raise UnrepresentableValue(_TOO_DEEP)
    if isinstance(value, dict):
        for key, item in value.items():
            # json.dumps would turn 1 and "1" into the same key.
            if not isinstance(key, str):
                raise UnrepresentableValue(f"an object key is {type(key).__name__}, not a string")
            _check_plain(item, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_plain(item, depth=depth + 1)


def _too_deep(valid: str) -> bool:
    """Whether valid JSON text is nested too deep.

    No step of it loops in Python: a walk over the characters takes far longer than reading
    the JSON does.
    """
    if valid.count("[") + valid.count("{") <= MAX_DEPTH:
        return False
    unescaped = valid.replace("\\\\", "").replace('\\"', "")
    outside_strings = "".join(unescaped.split('"')[::2]).encode("ascii", "ignore")
    steps = memoryview(outside_strings.translate(_STEPS, delete=_NO_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0) > MAX_DEPTH


def _brackets_too_deep(text: str) -> bool:
    """Whether the brackets of a text are nested too deep, whatever else is wrong with it."""
    depth = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif char in "]}":
            depth -= 1
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large a number")
    return number


def _unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


# Made once: `json.dumps` and `json.loads` would make one for each text.
_ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_SORTING_ENCODER: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), sort_keys=True)
_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_keys
)
