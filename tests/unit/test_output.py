"""Structured output: the schema that the model is given, and the check of what it hands in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    computed_field,
    field_validator,
)
from typing_extensions import TypeAliasType, TypedDict

from commitline.activities.app.output_type import OutputType
from commitline.activities.contract.conversation import Completion, RunResult, ToolCall, Usage
from commitline.activities.contract.final_result import FINAL_RESULT, output_tool
from commitline.canonical import dumps
from commitline.errors import DefinitionError


class Line(BaseModel):
    sku: str
    quantity: int = 1


class Order(BaseModel):
    customer: str
    lines: list[Line] = Field(default_factory=list)


class Node(BaseModel):
    name: str
    children: list[Node] = Field(default_factory=list)


class Aliased(BaseModel):
    full_name: str = Field(alias="fullName")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    cents: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def euros(self) -> int:
        return self.cents // 100


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    due: date


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: int
    when: date
    tags: tuple[str, ...] = field(default=())


class Movie(TypedDict, total=False):
    title: str
    year: int


Tree = TypeAliasType("Tree", "list[Tree]")


def call(arguments: Any, *, name: str = FINAL_RESULT, problem: str | None = None) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall("call_1", name, text, problem)


def concluded(kind: Any, arguments: Any) -> Completion:
    return OutputType(kind).conclude(Completion(calls=[call(arguments)]))


def problem_of(kind: Any, arguments: Any) -> str:
    """What is told of an output that does not fit."""
    found = concluded(kind, arguments)
    assert found.output is None
    assert found.calls[0].arguments == call(arguments).arguments
    assert found.calls[0].problem is not None
    return found.calls[0].problem


# --- the schema --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Order, Point, Movie, Aliased, dict[str, int]])
def test_what_is_an_object_is_asked_for_as_it_is(kind: Any) -> None:
    schema = OutputType(kind).schema

    assert schema["type"] == "object"
    assert "value" not in schema.get("properties", {})


@pytest.mark.parametrize(
    ("kind", "inner"),
    [
        (str, {"type": "string"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (None, {"type": "null"}),
        (Any, {}),
    ],
    ids=str,
)
def test_what_is_no_object_goes_into_one(kind: Any, inner: dict[str, Any]) -> None:
    assert OutputType(kind).schema == {
        "type": "object",
        "properties": {"value": inner},
        "required": ["value"],
    }


def test_definitions_stay_where_their_references_point() -> None:
    for kind in (Order, list[Order], Order | Line, RootModel[list[Order]]):
        schema = OutputType(kind).schema
        text = json.dumps(schema)

        assert schema["type"] == "object"
        assert set(schema["$defs"]) >= {"Line"}
        assert text.count('"$defs"') == 1
        for reference in _references(schema):
            name = reference.removeprefix("#/$defs/")
            assert name in schema["$defs"], reference


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [found for one in schema for found in _references(one)]
    if not isinstance(schema, dict):
        return []
    inner = [found for one in schema.values() for found in _references(one)]
    return [*inner, *([schema["$ref"]] if "$ref" in schema else [])]


def test_a_type_that_holds_itself_is_asked_for_as_an_object() -> None:
    schema = OutputType(Node).schema

    # Providers refuse parameters that do not say so at the top.
    assert schema["type"] == "object"
    assert set(schema["properties"]) == {"name", "children"}
    assert [name in schema["$defs"] for name in ("Node",)] == [True]


def test_a_list_that_holds_itself_goes_into_an_object() -> None:
    schema = OutputType(Tree).schema

    assert schema["type"] == "object"
    assert set(schema["properties"]) == {"value"}
    assert concluded(Tree, {"value": [[], [[]]]}).output == "[[],[[]]]"


@pytest.mark.parametrize(
    "kind",
    [5, Callable[[int], int], type, "Nope", list["Nope"], Order(customer="x")],  # type: ignore[name-defined]  # noqa: F821
    ids=["a number", "a function", "type", "a name", "a name inside", "a value"],
)
def test_a_type_that_cannot_be_checked_or_described_is_refused_when_it_is_defined(
    kind: Any,
) -> None:
    with pytest.raises(DefinitionError, match="output_type"):
        OutputType(kind)


class Sealed(BaseModel):
    note: str = Field("", exclude=True)


@pytest.mark.parametrize("kind", [BaseModel, list[BaseModel], Sealed, dict[str, Sealed]])
def test_a_type_of_which_not_all_would_be_recorded_is_refused(kind: Any) -> None:
    with pytest.raises(DefinitionError, match="would be lost"):
        OutputType(kind)


def test_the_model_hands_its_output_in_by_a_tool_with_that_schema() -> None:
    schema = OutputType(Order).schema
    tool = output_tool(schema)

    assert (tool.name, tool.parameters) == ("final_result", schema)
    assert tool.description


# --- what fits ---------------------------------------------------------------------------

FITTING: Final[list[tuple[Any, Any, Any]]] = [
    (Order, {"customer": "ada", "lines": [{"sku": "a"}]}, Order),
    (Point, {"x": 1, "when": "2026-03-01", "tags": ["a"]}, Point(1, date(2026, 3, 1), ("a",))),
    (Movie, {"title": "Heat"}, {"title": "Heat"}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Node, {"name": "a", "children": [{"name": "b"}]}, Node),
    (list[int], {"value": [1, 2]}, [1, 2]),
    (set[int], {"value": [1, 1]}, {1}),
    (tuple[int, str], {"value": [1, "a"]}, (1, "a")),
    (str, {"value": ""}, ""),
    (str, {"value": "a\x00b"}, "a\x00b"),
    (bool, {"value": False}, False),
    (float, {"value": 2.561422288066971e16}, 2.561422288066971e16),
    (int, {"value": 10**400}, 10**400),
    (Decimal, {"value": "1.10"}, Decimal("1.10")),
    (Literal["a", "b"], {"value": "b"}, "b"),
    (Colour, {"value": "red"}, Colour.RED),
    (int | None, {"value": None}, None),
    (Order | Line, {"value": {"sku": "a"}}, Line(sku="a")),
    (RootModel[list[int]], {"value": [1]}, RootModel[list[int]]([1])),
    (Aliased, {"fullName": "Ada"}, Aliased),
    (Computed, {"cents": 4900}, Computed),
    (Strict, {"due": "2026-03-01"}, Strict),
]


@pytest.mark.parametrize(
    ("kind", "given", "value"), FITTING, ids=[f"{kind}" for kind, _, _ in FITTING]
)
def test_what_fits_is_recorded_as_json_and_read_back_as_its_type(
    kind: Any, given: Any, value: Any
) -> None:
    found = concluded(kind, given)

    assert found.calls == [call(given)]
    assert found.output is not None
    data = RunResult(found.output, 1).data(kind)
    if isinstance(value, type):
        assert isinstance(data, value)
        assert data == TypeAdapter(kind).validate_json(json.dumps(given))
    else:
        assert (type(data), data) == (type(value), value)
    # What was recorded fits again, however often it is read.
    again = {"value": json.loads(found.output)} if "value" in given else json.loads(found.output)
    assert concluded(kind, again).output == found.output


def test_what_the_type_fills_in_is_recorded() -> None:
    found = concluded(Order, {"customer": "ada", "lines": [{"sku": "a"}], "unasked": 1})

    assert found.output == '{"customer":"ada","lines":[{"sku":"a","quantity":1}]}'


def test_the_rest_of_the_completion_stays_as_it_was() -> None:
    given = Completion(
        text="here it is",
        calls=[call({"value": 1})],
        finish_reason="tool_calls",
        usage=Usage(10, 2),
        provider_state={"id": "x"},
    )

    assert OutputType(int).conclude(given) == replace(given, output="1")


def test_a_completion_that_hands_nothing_in_has_no_output() -> None:
    for given in (
        Completion(text="hello"),
        Completion(calls=[call({"value": 1}, name="charge")]),
        Completion(calls=[call({"value": 1}, name="charge"), call({}, name="refund")]),
        Completion(calls=[call({"value": 1}, problem="cut off")]),
    ):
        assert OutputType(int).conclude(given) == given


# --- what does not -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "others",
    [[call({}, name="charge")], [call({"value": 2})], [call({}, name="x", problem="malformed")]],
    ids=["another tool", "twice", "a call that is not run"],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_output_beside_other_calls_is_not_accepted(others: list[ToolCall], first: bool) -> None:
    mine = call({"value": 1})
    calls = [mine, *others] if first else [*others, mine]

    found = OutputType(int).conclude(Completion(calls=calls))

    assert found.output is None
    assert len(found.calls) == len(calls)
    for before, after in zip(calls, found.calls, strict=True):
        if before.name == FINAL_RESULT:
            assert after == replace(before, problem=after.problem)
            assert after.problem is not None
            assert "call it alone" in after.problem
        else:
            assert after == before


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        (Order, {}, "customer: Field required"),
        (Order, {"customer": "a", "lines": [{"sku": "a", "quantity": "x"}]}, "lines.0.quantity: "),
        (list[int], {"value": [1, "x"]}, "1: Input should be a valid integer"),
        (list[int], {}, "it: Input should be a valid "),
        (Literal["a", "b"], {"value": "c"}, "it: Input should be 'a' or 'b'"),
        (float, {"value": "nan"}, "does not fit"),
        (float, {"value": "-Infinity"}, "does not fit"),
        (Order, "{", "not valid JSON"),
        (Order, "", "not valid JSON"),
        (Order, '{"customer":"a","customer":"b"}', "twice"),
        (Order, '{"customer":NaN}', "not valid JSON"),
        (Order, "null", "does not fit"),
        (Order, "[" * 500, "deep"),
        (list[int], [1], "does not fit"),
        (str, '"text"', "does not fit"),
    ],
)
def test_what_does_not_fit_says_what_is_wrong_and_the_model_may_correct_it(
    kind: Any, given: Any, told: str
) -> None:
    problem = problem_of(kind, given)

    assert problem.startswith("it does not fit: ")
    assert told in problem


def test_of_many_errors_the_first_five_are_told() -> None:
    problem = problem_of(list[int], {"value": ["x"] * 8})

    assert [f"{index}: Input" in problem for index in range(8)] == [True] * 5 + [False] * 3
    assert problem.endswith("; and 3 more")
    assert "more" not in problem_of(list[int], {"value": ["x"] * 5})


class BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("odd"),
        RuntimeError("\ud800 \x00"),
        ValueError("\x00 \x07"),
        KeyError("x"),
        ValueError("\ud800 \x00"),
        ValueError(""),
        ValueError(BadText()),
        BadText(),
        AssertionError(),
        RecursionError("deep"),
        StopIteration(),
        RuntimeError("x" * 100_000),
        ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_validator_may_raise_anything(error: Exception) -> None:
    class Picky(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def check(cls, number: int) -> int:
            raise error

    problem = problem_of(Picky, {"number": 1})

    assert problem.startswith("it does not fit")
    assert len(problem) <= 2_000
    problem.encode("utf-8")
    assert "\x00" not in problem


@pytest.mark.parametrize(
    "kept", [object(), {1: 2}, b"\xff"], ids=["an object", "a number as key", "bytes"]
)
def test_a_value_that_cannot_be_written_down_does_not_fit(kept: Any) -> None:
    class Unwritable(BaseModel):
        kept: Any

        @field_validator("kept")
        @classmethod
        def keep(cls, _: Any) -> Any:
            return kept

    if kept == {1: 2}:
        assert concluded(Unwritable, {"kept": 1}).output == '{"kept":{"1":2}}'
    else:
        assert problem_of(Unwritable, {"kept": 1}).startswith("it does not fit")


def test_a_validator_runs_once() -> None:
    ran = []

    class Counted(BaseModel):
        number: int

        @field_validator("number")
        @classmethod
        def check(cls, number: int) -> int:
            ran.append(number)
            if len(ran) > 1:
                raise RuntimeError("what it looked at has gone")
            return number

    assert concluded(Counted, {"number": 1}).output == '{"number":1}'
    assert ran == [1]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (str, {"value": "a\ud83db"}),
        (list[str], {"value": ["\udc00"]}),
        (Order, {"customer": "\ud83d"}),
        (Order, {"customer": "a", "\ud83d": 1}),
        (Computed, {"cents": 1, "\ud83d": 1}),
        (Any, {"value": {"a": "\ud83d"}}),
    ],
    ids=["text", "in a list", "in a model", "as a key", "as a key that is refused", "anything"],
)
def test_a_lone_surrogate_comes_back_exactly_or_does_not_fit(kind: Any, given: Any) -> None:
    found = concluded(kind, given)

    if found.output is None:
        assert found.calls[0].problem is not None
        found.calls[0].problem.encode("utf-8")
        return
    assert found.output.isascii()
    value = json.loads(found.output)
    asked = given.get("value", given)
    if isinstance(asked, dict):
        # What the type fills in, or does not know, aside.
        shared = value.keys() & asked.keys()
        assert shared
        value, asked = ({key: one[key] for key in shared} for one in (value, asked))
    assert value == asked


def test_a_lone_surrogate_in_a_key_is_not_replaced() -> None:
    found = concluded(dict[str, int], {"a\ud83d": 1})

    assert found.output in (None, dumps({"a\ud83d": 1}))


def test_what_is_nested_as_deep_as_arguments_may_be_fits_or_is_refused() -> None:
    for depth in (50, 98, 99, 120):
        given: dict[str, Any] = {"name": "x", "children": []}
        for _ in range(depth):
            given = {"name": "x", "children": [given]}

        found = concluded(Node, given)

        assert (found.output is None) == (found.calls[0].problem is not None)
        assert found.output is not None or depth > 98


def test_an_output_of_which_a_part_would_be_lost_is_no_output() -> None:
    found = concluded(dict[int, str], {"1": "a", "01": "b"})

    assert found.output is None
    (given,) = found.calls
    assert given.problem is not None
    assert "two keys become one: '1', '01'" in given.problem
