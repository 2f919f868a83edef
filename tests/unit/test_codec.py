"""A result becomes JSON text once; one that cannot costs an error outcome, never a re-run."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import io
import math
from collections.abc import Callable, Generator, Iterable
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, TypeAdapter

from commitline.canonical import MAX_DEPTH, Json, parse
from commitline.ledger.action_records import Outcome
from commitline.ledger.result_codec import encode_error, encode_result, error_text


class Receipt(BaseModel):
    order_id: str
    total: Decimal
    at: dt.date


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal


class CardReceipt(Receipt):
    last4: str
    lines: list[Any] = []


@dataclasses.dataclass
class GiftLine(Line):
    message: str = ""


class Basket(BaseModel):
    cents: Annotated[Decimal, PlainSerializer(lambda value: int(value * 100))]
    lines: list[Line] = []
    seal: str = Field(default="secret", exclude=True)


class Colour(enum.Enum):
    RED = "red"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def two_items() -> Generator[int, None, None]:
    yield 1
    yield 2


def two_bytes() -> Generator[bytes, None, None]:
    yield b"a"
    yield b"\xff"


def breaks_off() -> Generator[int, None, None]:
    yield 1
    raise ValueError("broke off")


def nested(levels: int) -> Json:
    value: Json = []
    for _ in range(levels - 1):
        value = [value]
    return value


def adapter_of(declared: Any) -> TypeAdapter[Any]:
    """As a tool's declared return type is kept; a model brings its own configuration."""
    if isinstance(declared, type) and (
        issubclass(declared, BaseModel) or dataclasses.is_dataclass(declared)
    ):
        return TypeAdapter(declared)
    return TypeAdapter(declared, config=ConfigDict(ser_json_bytes="base64"))


FITTING: list[tuple[str, Callable[[], Any], Any, str]] = [
    ("datetime", lambda: dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC), dt.datetime,
     '"2026-03-01T12:30:00Z"'),
    ("naive datetime", lambda: dt.datetime(2026, 3, 1, 12, 30, 0, 5), dt.datetime,
     '"2026-03-01T12:30:00.000005"'),
    ("date", lambda: dt.date(2026, 3, 1), dt.date, '"2026-03-01"'),
    ("Decimal", lambda: Decimal("1.10"), Decimal, '"1.10"'),
    ("UUID", lambda: UUID(int=1), UUID, '"00000000-0000-0000-0000-000000000001"'),
    ("bytes", lambda: b"\xff\x00", bytes, '"_wA="'),
    ("set", lambda: {1}, set[int], "[1]"),
    ("dataclass", lambda: Line("a", Decimal("1.10")), Line, '{"sku":"a","price":"1.10"}'),
    ("pydantic model", lambda: Receipt(order_id="1", total=Decimal("1.10"), at=dt.date(2026, 3, 1)),
     Receipt, '{"order_id":"1","total":"1.10","at":"2026-03-01"}'),
    ("list of models", lambda: [Line("a", Decimal(1))], list[Line], '[{"sku":"a","price":"1"}]'),
    ("enum", lambda: Colour.RED, Colour, '"red"'),
    ("None", lambda: None, None, "null"),
    ("empty text", lambda: "", str, '""'),
    ("empty list", list, list[int], "[]"),
    ("tuple", lambda: (1, "a"), tuple[int, str], '[1,"a"]'),
    ("generator", two_items, Generator[int, None, None], "[1,2]"),
    ("generator of bytes", two_bytes, Iterable[bytes], '["YQ==","_w=="]'),
    ("text beyond ASCII", lambda: "é\x00\ud83d", str, '"\\u00e9\\u0000\\ud83d"'),
    ("lone surrogate in a model", lambda: Line("\ud83d", Decimal(1)), Line,
     '{"sku":"\\ud83d","price":"1"}'),
    ("float", lambda: 2.561422288066971e16, float, "2.561422288066971e+16"),
    ("big integer", lambda: 10**30, int, "1000000000000000000000000000000"),
    ("key order", lambda: {"b": 1, "a": 2}, dict[str, int], '{"b":1,"a":2}'),
    ("deepest list", lambda: nested(MAX_DEPTH), list[Any], "[" * 200 + "]" * 200),
]  # fmt: skip

UNFIT: list[tuple[str, Callable[[], Any], Any, str]] = [
    ("nan", lambda: math.nan, float, "float"),
    ("inf", lambda: math.inf, float, "float"),
    ("nan inside", lambda: {"rate": -math.inf}, dict[str, float], "dict"),
    ("a class", lambda: dict, Any, "type"),
    ("lambda", lambda: lambda: 1, Any, "function"),
    ("open file", lambda: io.StringIO("line 1\nline 2\n"), Any, "StringIO"),
    ("open file inside", lambda: {"log": io.StringIO("line 1\n")}, dict[str, Any], "dict"),
    ("5,000-deep list", lambda: nested(5_000), list[Any], "list"),
    ("one level too deep", lambda: nested(MAX_DEPTH + 1), list[Any], "list"),
    ("int of 5,000 digits", lambda: 10**4_999, int, "int"),
    ("repr raises", Unprintable, Any, "Unprintable"),
    ("generator raises", breaks_off, Generator[int, None, None], "generator"),
    ("keys that collapse", lambda: {1: "a", "1": "b"}, Any, "dict"),
    ("keys that collapse inside", lambda: ({1: "a", "1": "b"},), Any, "tuple"),
]


CARD = CardReceipt(order_id="1", total=Decimal("1.10"), at=dt.date(2026, 3, 1), last4="4242")
CARD_JSON = '{"order_id":"1","total":"1.10","at":"2026-03-01","last4":"4242","lines":[]}'
GIFT_JSON = '{"sku":"a","price":"1.10","message":"hi"}'


@pytest.mark.parametrize(
    ("declared", "value", "text"),
    [
        (Receipt, CARD, CARD_JSON),
        (BaseModel, CARD, CARD_JSON),
        (list[Receipt], [CARD], f"[{CARD_JSON}]"),
        (dict[str, Receipt] | None, {"one": CARD}, f'{{"one":{CARD_JSON}}}'),
        (Line, GiftLine("a", Decimal("1.10"), "hi"), GIFT_JSON),
        (
            Basket,
            Basket(cents=Decimal("1.10"), lines=[GiftLine("a", Decimal("1.10"), "hi")]),
            f'{{"cents":110,"lines":[{GIFT_JSON}]}}',
        ),
    ],
)
def test_the_fields_of_a_subclass_are_kept_where_its_base_is_declared(
    declared: Any, value: Any, text: str
) -> None:
    outcome = encode_result("charge_card", value, adapter_of(declared))

    assert outcome == Outcome("ok", text, effect_possible=True)


@pytest.mark.parametrize("typed", [False, True], ids=["undeclared", "declared"])
@pytest.mark.parametrize(
    ("make", "declared", "text"), [case[1:] for case in FITTING], ids=[case[0] for case in FITTING]
)
def test_a_result_is_kept_as_one_text(
    make: Callable[[], Any], declared: Any, text: str, *, typed: bool
) -> None:
    outcome = encode_result("charge_card", make(), adapter_of(declared) if typed else None)

    assert outcome == Outcome("ok", text, effect_possible=True)
    assert outcome.value == parse(text)


@pytest.mark.parametrize("typed", [False, True], ids=["undeclared", "declared"])
@pytest.mark.parametrize(
    ("make", "declared", "named"), [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT]
)
def test_a_result_without_json_form_is_an_error_that_names_tool_and_type_and_keeps_the_effect(
    make: Callable[[], Any], declared: Any, named: str, *, typed: bool
) -> None:
    outcome = encode_result("charge_card", make(), adapter_of(declared) if typed else None)

    assert outcome.kind == "error"
    assert outcome.effect_possible
    assert outcome.value["type"] == "UnrepresentableResult"
    assert outcome.value["message"].startswith(
        f"charge_card ran, and its effect stands, but its result of type {named} could not be kept"
    )
    assert len(outcome.result) < 1_000


def test_the_declared_type_decides_what_is_kept() -> None:
    declared = TypeAdapter(dict[str, Decimal])

    outcome = encode_result("t", {"total": Decimal("1.10")}, declared)

    assert outcome.result == '{"total":"1.10"}'


@pytest.mark.parametrize("value", ["text", {"order_id": 1}, [1, 2]])
def test_plain_data_of_another_than_the_declared_type_is_kept_as_it_is(value: Json) -> None:
    outcome = encode_result("t", value, TypeAdapter(Receipt))

    assert outcome == Outcome.ok(encode_result("t", value, None).result)


def test_bytes_are_one_text_whether_they_happen_to_be_utf8_or_not() -> None:
    declared = adapter_of(bytes)

    texts = [encode_result("t", value, declared).result for value in (b"ok", b"\xff\x00")]

    assert texts == ['"b2s="', '"_wA="']


class NeedsTwo(Exception):
    """As HTTP clients have it: it cannot be made again from its arguments."""

    def __init__(self, status: int, detail: str) -> None:
        self.status = status
        self.detail = detail
        super().__init__(f"{status}: {detail}")


class TextRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class OddMessage(Exception):
    message = Unprintable()


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ValueError("card declined"), '{"type":"ValueError","message":"card declined"}'),
        (NeedsTwo(502, "bad gateway"), '{"type":"NeedsTwo","message":"502: bad gateway"}'),
        (Exception(), '{"type":"Exception","message":"Exception without a message"}'),
        (TextRaises(), '{"type":"TextRaises","message":"TextRaises without a message"}'),
        (OddMessage(), '{"type":"OddMessage","message":"OddMessage without a message"}'),
        (ValueError("\ud83d\x00é"), '{"type":"ValueError","message":"\\ud83d\\u0000\\u00e9"}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_is_kept_as_class_and_text_and_never_raises_itself(
    error: Exception, result: str
) -> None:
    outcome = encode_error(error, effect_possible=False)

    assert outcome == Outcome("error", result, effect_possible=False)


def test_the_text_of_an_exception_is_capped() -> None:
    assert error_text(ValueError("x" * 5_000)) == "x" * 4_000


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)
anything = st.recursive(
    plain
    | st.floats()
    | st.binary(max_size=4)
    | st.dates()
    | st.decimals()
    | st.uuids()
    | st.sampled_from([Colour.RED, dict, object()]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(texts | st.integers(0, 2) | st.sampled_from("012"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(plain)
def test_plain_data_comes_back_exactly(value: Json) -> None:
    outcome = encode_result("t", value, None)

    assert outcome.kind == "ok"
    assert repr(outcome.value) == repr(value)


@given(anything)
def test_whatever_a_tool_returns_there_is_an_outcome_and_it_can_be_read(value: Any) -> None:
    outcome = encode_result("t", value, None)

    assert outcome.result.isascii()
    assert outcome.effect_possible
    assert parse(outcome.result) == outcome.value
