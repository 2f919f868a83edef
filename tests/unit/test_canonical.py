"""JSON that comes back as it was given, and one text for equal values."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitline import canonical as canonical_module
from commitline.canonical import MAX_DEPTH, Json, canonical, digest, dumps, parse, scrub, storable
from commitline.errors import UnrepresentableValue

AWKWARD: tuple[Json, ...] = (
    "\ud83d",
    "\udc00\ud83d",
    "a\x00b",
    "é 🎉",
    2.561422288066971e16,
    -0.0,
    5e-324,
    10**400,
    -(10**400),
    {"b": 1, "a": {"": [None, True, 1, 1.0]}},
)

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(AWKWARD)
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def exactly(value: Json) -> str:
    """A text that tells ``1`` from ``True`` and ``1.0``, ``0.0`` from ``-0.0``, and key orders."""
    return repr(value)


def nested(levels: int, leaf: Json) -> Json:
    """``leaf`` in so many lists; without one, the innermost list is empty."""
    value = leaf
    for _ in range(levels):
        value = [] if value is None else [value]
    return value


@given(trees)
def test_what_is_written_is_read_back_exactly(value: Json) -> None:
    text = dumps(value)

    assert text.isascii()
    assert exactly(parse(text)) == exactly(value)


@given(trees)
def test_canonical_text_is_that_of_the_value_read_back(value: Json) -> None:
    text = canonical(value)

    assert canonical(parse(text)) == text
    assert parse(text) == value


@given(trees, trees)
def test_two_values_share_a_canonical_text_only_if_json_cannot_tell_them_apart(
    one: Json, other: Json
) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (canonical(one) == canonical(other)) == same
    assert (digest(one) == digest(other)) == same


def test_keys_keep_their_order_except_in_canonical_text() -> None:
    value = {"b": [1, {"z": 1, "y": 2}], "a": "é"}

    assert dumps(value) == '{"b":[1,{"z":1,"y":2}],"a":"\\u00e9"}'
    assert canonical(value) == '{"a":"\\u00e9","b":[1,{"y":2,"z":1}]}'


def test_true_is_not_one_and_one_is_not_one_point_zero() -> None:
    texts_of = [canonical({"f": value}) for value in (True, 1, 1.0, "1")]

    assert texts_of == ['{"f":true}', '{"f":1}', '{"f":1.0}', '{"f":"1"}']
    assert len({digest({"f": value}) for value in (True, 1, 1.0, "1")}) == 4


def test_a_digest_is_the_sha256_of_the_canonical_text() -> None:
    assert digest({"b": 1, "a": 2}) == (
        "d3626ac30a87e6f7a6428233b3c68299976865fa5508e4267c5415c76af7a772"
    )


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [-math.inf],
        {1: "a", "1": "b"},
        [({1: "a", "1": "b"},)],
        {None: 1},
        {True: 1},
        {("a",): 1},
        {1, 2},
        b"bytes",
        object(),
        10**5_000,
        "x".join,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_hold_is_refused_rather_than_changed(value: object) -> None:
    for write in (dumps, canonical):
        with pytest.raises(UnrepresentableValue):
            write(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("{'a': 1}", "Expecting property name"),
        ('{"a": 1', "Expecting ',' delimiter"),
        ('{"a": 1} x', "Extra data"),
        ('"a\x00b"', "Invalid control character"),
        ("NaN", "NaN is not a JSON number"),
        ("[Infinity]", "Infinity is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ('{"a": 1, "a": 1}', "a key stands twice in one object"),
        ('[{"b": {"\\u0061": 1, "a": 1}}]', "a key stands twice in one object"),
        ("9" * 5_000, "Exceeds the limit"),
    ],
    ids=lambda value: value[:20],
)
def test_text_that_is_not_strict_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnrepresentableValue, match=reason):
        parse(text)


@pytest.mark.parametrize("leaf", [None, 1, "[[[", {}], ids=["empty", "number", "text", "object"])
def test_what_may_be_written_may_be_read_at_any_depth(leaf: Json) -> None:
    for levels in range(MAX_DEPTH - 2, MAX_DEPTH + 3):
        try:
            text = dumps(nested(levels, leaf))
        except UnrepresentableValue:
            text = None
        if text is not None:
            assert parse(text) == nested(levels, leaf)
        assert (text is not None) == (levels + (leaf == {}) <= MAX_DEPTH)


def test_depth_is_refused_far_beyond_pythons_own_limit_too() -> None:
    for levels in (5_000, 200_000):
        with pytest.raises(UnrepresentableValue, match="nested over 200 levels deep"):
            parse("[" * levels + "]" * levels)
    with pytest.raises(UnrepresentableValue, match="nested over 200 levels deep"):
        dumps(nested(5_000, 1))


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Json] = []
    value.append(value)

    with pytest.raises(UnrepresentableValue):
        dumps(value)


def test_brackets_in_text_do_not_count_as_depth() -> None:
    text = dumps(['\\"' + "[{" * 300])

    assert parse(text) == ['\\"' + "[{" * 300]


def refused_after_a_walk(text: str, limit: int) -> str | None:
    """Why a text is refused, found slowly: a walk over its characters, then the JSON itself."""
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
            if depth > limit:
                return "nested over 200 levels deep"
        elif char in "]}":
            depth -= 1
    try:
        json.loads(text)
    except ValueError as err:
        return f"not valid JSON: {err}"
    return None


def refused(text: str) -> str | None:
    try:
        parse(text)
    except UnrepresentableValue as err:
        return err.message
    return None


valid_texts = st.recursive(
    st.none() | st.text('[]{}"\\a\ud83d', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('["\\'), inner, max_size=2),
).flatmap(lambda value: st.sampled_from([json.dumps(value), json.dumps(value, ensure_ascii=False)]))
any_texts = st.text('[]{}"\\,1a ', max_size=24)


@settings(max_examples=500)
@given(valid_texts | any_texts | st.tuples(valid_texts, any_texts).map("".join))
@example('\\"[[[[')
@example('["\\\\",[[[1]]]]')
@example('["\\\\\\"[",[[1]]]')
def test_depth_is_found_as_by_a_walk_over_the_characters(text: str) -> None:
    limit = 3  # low, so that short texts are over it
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(canonical_module, "MAX_DEPTH", limit)

        assert refused(text) == refused_after_a_walk(text, limit)


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("charge order 4821", "charge order 4821"),
        ("größer 🎉", "größer 🎉"),
        ("half \ud83d of a pair", "half ? of a pair"),
        ("bell \x07, nul \x00, escape \x1b[31m", "bell ?, nul ?, escape ?[31m"),
        ("line\n\tindented", "line\n\tindented"),
        ("x" * 501, "x" * 499 + "…"),
    ],
    ids=["plain", "unicode", "surrogate", "control", "white space", "long"],
)
def test_text_for_people_is_printable_and_short(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (
            "not now\n\t\x1b[31m caf\u00e9\u00a0! \U0001f389",
            "not now\n\t\x1b[31m caf\u00e9\u00a0! \U0001f389",
        ),
        ("a\x00b", "a?b"),
        ("caf\udce9", "caf?"),
        ("x" * 9_000, "x" * 9_000),
    ],
    ids=["what it can hold", "nul", "surrogate", "long"],
)
def test_text_for_people_is_stored_as_it_was_said_where_postgres_can(
    text: str, stored: str
) -> None:
    assert storable(text) == stored
    assert storable(stored) == stored


@given(texts)
def test_scrubbed_text_is_always_utf8(text: str) -> None:
    assert len(scrub(text, limit=5).encode("utf-8").decode("utf-8")) <= 5
