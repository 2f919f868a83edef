"""What `@tool` makes of a function, and what it refuses."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import count
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    computed_field,
)

from commitline import (
    Agent,
    App,
    Effect,
    Plan,
    ScriptedModel,
    State,
    Tool,
    ToolContext,
    result_of,
    step,
    tool,
)
from commitline.activities.contract.deadlines import RunLimits
from commitline.canonical import dumps, parse
from commitline.errors import (
    ArgumentsChanged,
    DefinitionError,
    InvalidArguments,
    InvalidIdempotencyKey,
)
from commitline.identity import ActionKey, Position, RunKey

CONTEXT = ToolContext("key", ActionKey("r/1:0.0"), RunKey("r/1"), Position("0.0"), "t", False)


NUMBERS = count(1)


class Line(BaseModel):
    sku: str
    count: int = 1


class Till(State):
    cents: int = 0


class Colour(Enum):
    RED = "red"


def agent(*tools: Tool, name: str = "agent") -> Agent:
    return Agent(name, ScriptedModel("scripted", []), "", tools=tools)


def test_a_tool_without_an_effect_is_refused_with_the_four_to_choose_from() -> None:
    with pytest.raises(DefinitionError) as refused:

        @tool()
        async def charge(order_id: str) -> str:
            return order_id

    assert refused.value.message == (
        "the tool 'charge' declares no effect; choose one: "
        "Effect.READ, Effect.IDEMPOTENT, Effect.LOOKUP, Effect.AT_MOST_ONCE"
    )


def test_a_bare_tool_is_refused_with_the_four_to_choose_from() -> None:
    async def charge(order_id: str) -> str:
        return order_id

    with pytest.raises(DefinitionError, match=r"Effect\.READ, Effect\.IDEMPOTENT"):
        tool(charge)


def test_a_function_without_parentheses_but_with_an_effect_is_refused() -> None:
    async def charge(order_id: str) -> str:
        return order_id

    with pytest.raises(DefinitionError, match="with parentheses"):
        tool(charge, effect=Effect.READ)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"idempotency_key": "order-charge"}, "must name parameters"),
        ({"idempotency_key": "order-{}"}, "must name parameters"),
        ({"idempotency_key": "order-{0}"}, "must name parameters"),
        ({"idempotency_key": "order-{order_id.x}"}, "must name parameters"),
        ({"idempotency_key": "order-{order_id:>9}"}, "must name parameters"),
        ({"idempotency_key": "order-{order_id!r}"}, "must name parameters"),
        ({"idempotency_key": "order-{order_id"}, "is not a template"),
        ({"idempotency_key": "order-{order_id}{cents}"}, "needs a separator"),
        ({"idempotency_key": "order-{order_id}x{cents}"}, "needs a separator"),
        ({"idempotency_key": "order~{order_id}"}, "printable ASCII"),
        ({"idempotency_key": "bestellung-ü-{order_id}"}, "printable ASCII"),
        ({"idempotency_key": "order-{order}"}, "has no parameter order, which its idempotency_key"),
        ({"same": ("order",)}, "has no parameter order, which its same names"),
        ({"key_ttl": timedelta()}, "key_ttl that is not positive"),
        ({"key_ttl": timedelta.max}, "has a key_ttl over ten years"),
        ({"lookup_settles_after": timedelta.max}, "has a lookup_settles_after over ten years"),
        ({"approval_expires": timedelta.max}, "has an approval_expires over ten years"),
        ({"approval_expires": timedelta(days=3654)}, "has an approval_expires over ten years"),
        ({"name": "charge card"}, "needs a name of 1 to 64"),
        ({"name": "x" * 65}, "needs a name of 1 to 64"),
        ({"name": "commitline.open_run"}, "needs a name of 1 to 64"),
        ({"effect": Effect.READ, "idempotency_key": "order-{order_id}"}, "is a READ"),
        ({"effect": Effect.READ, "key_ttl": timedelta(hours=1)}, "is a READ"),
        ({"effect": Effect.LOOKUP}, "say how to ask, with lookup="),
        ({"effect": Effect.AT_MOST_ONCE, "key_ttl": timedelta(hours=1)}, "only an IDEMPOTENT"),
        ({"effect": Effect.READ, "detached": True}, "is a READ"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_defined(options: dict[str, Any], why: str) -> None:
    async def charge(order_id: str, cents: int) -> str:
        return f"{order_id} {cents}"

    with pytest.raises(DefinitionError, match=why) as refused:
        tool(**{"effect": Effect.IDEMPOTENT, **options})(charge)

    assert refused.value.code == "CL101"


def test_collecting_parameters_are_refused() -> None:
    async def many(*items: str) -> None: ...

    async def named(**items: str) -> None: ...

    async def positional(item: str, /) -> None: ...

    functions: list[Callable[..., Any]] = [many, named, positional]
    for function in functions:
        with pytest.raises(DefinitionError, match="may not have"):
            tool(effect=Effect.READ)(function)


def test_a_parameter_that_json_cannot_describe_is_refused() -> None:
    with pytest.raises(DefinitionError, match="has a parameter without JSON"):

        @tool(effect=Effect.READ)
        async def hook(callback: Callable[[], None]) -> None: ...


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    with pytest.raises(DefinitionError, match="has an annotation not found"):

        @tool(effect=Effect.READ)
        async def look(order: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
            return str(order)


def test_two_tools_of_one_name_are_refused_in_an_agent_and_in_an_app() -> None:
    @tool(name="look", effect=Effect.READ)
    async def first() -> None: ...

    @tool(name="look", effect=Effect.READ)
    async def second() -> None: ...

    with pytest.raises(DefinitionError, match="has two tools named 'look'"):
        agent(first, second)
    with pytest.raises(DefinitionError, match="two different tools are named 'look'"):
        App(agents=[agent(first, name="one"), agent(second, name="two")])
    with pytest.raises(DefinitionError, match="two agents are named 'agent'"):
        App(agents=[agent(first), agent(first)])
    shared = App(agents=[agent(first, name="one"), agent(first, name="two")])
    assert list(shared.tools) == [first]


def test_a_function_that_is_no_tool_is_refused_in_an_agent() -> None:
    async def look() -> None: ...

    with pytest.raises(DefinitionError, match=r"is no tool; put @tool\(effect=…\) above it"):
        agent(look)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_the_signature_is_the_schema_and_the_context_is_not_in_it() -> None:
    @tool(effect=Effect.READ)
    async def charge(ctx: ToolContext, order_id: str, lines: list[Line], cents: int = 100) -> str:
        """Charge an order.

        By card.
        """
        return order_id

    assert charge.definition.name == "charge"
    assert charge.definition.description == "Charge an order.\n\nBy card."
    schema = charge.definition.parameters
    assert list(schema["properties"]) == ["order_id", "lines", "cents"]
    assert schema["required"] == ["order_id", "lines"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["cents"] == {"default": 100, "title": "Cents", "type": "integer"}
    assert "title" not in schema
    assert charge.context_parameter == "ctx"


def test_parameters_may_have_the_names_of_pydantic_methods() -> None:
    @tool(effect=Effect.IDEMPOTENT, idempotency_key="{json}-{copy}")
    async def odd(
        json: str, copy: int, schema: bool, model_dump: str = "x", self: int = 0
    ) -> None: ...

    effective = odd.effective({"json": "a", "copy": 1, "schema": True})

    assert parse(effective) == {
        "json": "a",
        "copy": 1,
        "schema": True,
        "model_dump": "x",
        "self": 0,
    }
    assert odd.domain_key(effective) == "a-1"
    assert odd.bind(effective, CONTEXT) == parse(effective)


def test_a_default_made_by_a_factory_is_fixed_once() -> None:
    @tool(effect=Effect.READ)
    async def order(
        number: Annotated[int, Field(default_factory=lambda: next(NUMBERS))],
        other: int = Field(default_factory=lambda: next(NUMBERS)),
    ) -> None: ...

    effective = order.effective({})

    assert effective == '{"number":1,"other":2}'
    assert order.bind(effective, CONTEXT) == {"number": 1, "other": 2}
    assert order.effective({}) == '{"number":3,"other":4}'


def test_constraints_and_descriptions_of_fields_count() -> None:
    @tool(effect=Effect.READ)
    async def charge(
        cents: Annotated[int, Field(gt=0, description="How much")],
        note: str = Field("none", max_length=5),
    ) -> None: ...

    assert charge.definition.parameters["properties"]["cents"]["description"] == "How much"
    assert charge.effective({"cents": 1}) == '{"cents":1,"note":"none"}'
    with pytest.raises(InvalidArguments, match="greater than 0"):
        charge.effective({"cents": 0})
    with pytest.raises(InvalidArguments, match="at most 5"):
        charge.effective({"cents": 1, "note": "too long"})


def test_effective_arguments_are_normalised_and_bound_as_the_types_say() -> None:
    @tool(effect=Effect.READ)
    async def ship(
        line: Line, weight: Decimal, at: datetime, colour: Colour, raw: bytes
    ) -> None: ...

    effective = ship.effective(
        {
            "line": {"sku": "a"},
            "weight": "1.10",
            "at": "2026-01-02T03:04:00Z",
            "colour": "red",
            "raw": "_wA=",
        }
    )

    assert parse(effective) == {
        "line": {"sku": "a", "count": 1},
        "weight": "1.10",
        "at": "2026-01-02T03:04:00Z",
        "colour": "red",
        "raw": "_wA=",
    }
    assert ship.bind(effective, CONTEXT) == {
        "line": Line(sku="a"),
        "weight": Decimal("1.10"),
        "at": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "colour": Colour.RED,
        "raw": b"\xff\x00",
    }


def test_arguments_are_bound_anew_each_time() -> None:
    @tool(effect=Effect.READ)
    async def clear(items: list[str]) -> None: ...

    effective = clear.effective({"items": ["a"]})
    clear.bind(effective, CONTEXT)["items"].clear()

    assert clear.bind(effective, CONTEXT) == {"items": ["a"]}


class Address(BaseModel):
    city: str
    country: str = "DE"


def newer_ship(
    to: Address,
    tags: frozenset[str],
    express: bool = False,
    weight: Annotated[int, AfterValidator(lambda grams: grams // 10 * 10)] = 10,
) -> None:
    """Ship."""


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ({"express": True}, None),
        ({"tags": ["b", "a"]}, "for tags"),
        ({"express": ...}, "today it would get other values for express"),
        ({"to": {"city": "Bonn"}}, "for to"),
        ({"to": {"city": "Bonn", "country": "DE", "zip": "1"}}, "for to"),
        ({"weight": 15}, "for weight"),
        ({"tags": ...}, "tags: Field required"),
        ({"note": "x"}, "note: Extra inputs are not permitted"),
    ],
    ids=[
        "exactly these",
        "no set in its one order",
        "a new default",
        "a new default within",
        "less within",
        "a value that a validator changes",
        "a new parameter",
        "a parameter that is gone",
    ],
)
def test_stored_arguments_are_bound_to_the_letter_or_not_at_all(
    stored: dict[str, Any], why: str | None
) -> None:
    ship = tool(effect=Effect.READ)(newer_ship)
    fits = {"to": {"city": "Bonn", "country": "DE"}, "tags": ["a", "b"], "express": False}
    given = {**fits, "weight": 10, **stored}
    text = dumps({name: value for name, value in given.items() if value is not ...})

    if why is None:
        assert ship.bind(text, CONTEXT)["tags"] == {"a", "b"}
        return
    with pytest.raises(ArgumentsChanged, match=why) as refused:
        ship.bind(text, CONTEXT)

    assert "Bonn" not in refused.value.message, "it is logged and shown: names, no values"


def test_equal_sets_are_stored_as_the_same_text() -> None:
    @tool(effect=Effect.READ)
    async def mark(tags: set[str], nested: dict[str, frozenset[frozenset[int]]]) -> None: ...

    nested = {"a": [[3, 1, 2], [0]]}
    written = mark.effective({"tags": [*"qwertyuiopasdfghjklzxcvbnm"], "nested": nested})

    assert json.loads(written) == {
        "tags": sorted("qwertyuiopasdfghjklzxcvbnm"),
        "nested": {"a": [[0], [1, 2, 3]]},
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "order_id: Field required"),
        ({"order_id": "1", "tip": 5}, "tip: Extra inputs are not permitted"),
        ({"order_id": 1}, "order_id: Input should be a valid string"),
        ({"order_id": "1", "ctx": {}}, "ctx: Extra inputs are not permitted"),
        ([], "arguments: Input should be an object"),
        ({"order_id": float("nan")}, "no JSON form"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments: Any, told: str) -> None:
    @tool(effect=Effect.READ)
    async def look(ctx: ToolContext, order_id: str) -> str:
        return order_id

    with pytest.raises(InvalidArguments) as refused:
        look.effective(arguments)

    assert refused.value.message.startswith(f"look: {told}")


def test_same_is_all_arguments_or_the_ones_that_it_names() -> None:
    def ship(order_id: str, note: str = "") -> None: ...

    all_of_them = tool(effect=Effect.READ)(ship)
    named = tool(effect=Effect.READ, same=("order_id",))(ship)
    one, two = '{"note":"a","order_id":"1"}', '{"note":"b","order_id":"1"}'

    assert all_of_them.sameness(one) != all_of_them.sameness(two)
    assert named.sameness(one) == named.sameness(two)
    assert named.sameness(one) != named.sameness('{"note":"a","order_id":"2"}')


def test_a_key_needs_a_value_for_every_argument_that_it_names() -> None:
    @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}")
    async def charge(order_id: str | None = None) -> None: ...

    assert charge.domain_key('{"order_id":"4/8"}') == "order-4%2F8"
    with pytest.raises(InvalidIdempotencyKey, match="'order_id', which is empty"):
        charge.domain_key(charge.effective({}))


def test_coroutine_functions_and_plain_ones_are_told_apart() -> None:
    @tool(effect=Effect.READ)
    async def look() -> str:
        return "async"

    @tool(effect=Effect.READ)
    def peek() -> str:
        return "plain"

    assert (look.is_async, peek.is_async) == (True, False)
    assert peek.fn() == "plain"


def test_a_wrapped_function_keeps_name_and_signature() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    @tool(effect=Effect.READ)
    @logged
    async def look(order_id: str) -> str:
        return order_id

    assert look.name == "look"
    assert list(look.definition.parameters["properties"]) == ["order_id"]


@pytest.mark.parametrize(
    ("summary", "why"),
    [("Charge {nope}", "has no parameter nope, which its summary names"), ("Charge {", "template")],
)
def test_a_summary_that_cannot_be_filled_in_is_refused(summary: str, why: str) -> None:
    with pytest.raises(DefinitionError, match=why):

        @tool(effect=Effect.READ, summary=summary)
        async def look(order_id: str) -> str:
            return order_id


def test_an_effect_that_is_none_of_the_four_is_refused_and_they_are_listed() -> None:
    with pytest.raises(DefinitionError, match=r"unknown effect 'idempotnet'; .*Effect\.LOOKUP"):
        tool(effect="idempotnet")(lambda: None)  # type: ignore[arg-type]


def test_a_secret_parameter_is_refused_and_not_stored_as_asterisks() -> None:
    with pytest.raises(DefinitionError, match="has a secret parameter"):

        @tool(effect=Effect.READ)
        async def look(token: SecretStr) -> str:
            return token.get_secret_value()


def test_a_detached_tool_takes_no_state() -> None:
    with pytest.raises(DefinitionError, match="is detached and takes a state"):

        @tool(effect=Effect.AT_MOST_ONCE, detached=True)
        def post(till: Till, to: str) -> None: ...


def test_an_agent_with_a_detached_tool_is_offered_a_way_to_ask_what_became_of_it() -> None:
    @tool(effect=Effect.AT_MOST_ONCE, detached=True)
    def post(to: str) -> None:
        """Post a letter."""

    @tool(effect=Effect.READ)
    def action_state() -> None:
        """Look at something else."""

    def offered(*tools: Tool) -> list[str]:
        spec = agent(*tools).spec(heartbeat_seconds=10, limits=RunLimits())
        return [one.name for one in spec.definitions]

    assert offered(post) == ["post", "action_state"]
    assert offered(action_state) == ["action_state"]
    with pytest.raises(DefinitionError, match="asked by 'action_state'"):
        offered(post, action_state)


def taking(annotation: Any) -> Any:
    """Return a function with one parameter of that type."""

    def pay(given: Any, cents: int) -> None: ...

    pay.__annotations__["given"] = annotation
    return pay


def test_a_state_and_a_context_are_filled_in_also_where_they_are_annotated() -> None:
    with_state = tool(effect=Effect.AT_MOST_ONCE)(taking(Annotated[Till, "of the shop"]))
    with_context = tool(effect=Effect.AT_MOST_ONCE)(taking(Annotated[ToolContext, "ours"]))

    assert (with_state.state, with_state.parameters) == (Till, frozenset({"cents"}))
    assert (with_context.context_parameter, with_context.parameters) == (
        "given",
        frozenset({"cents"}),
    )


@pytest.mark.parametrize(
    "annotation",
    [
        Till | None,
        list[Till],
        Annotated[Till | None, "x"],
        dict[str, list[Till]],
        ToolContext | None,
    ],
)
def test_no_model_is_shown_a_state_or_a_context_inside_another_type(annotation: Any) -> None:
    with pytest.raises(DefinitionError, match="inside the type of 'given'"):
        tool(effect=Effect.AT_MOST_ONCE)(taking(annotation))


class Desk:
    def __call__(self, cents: int) -> None: ...

    def pay(self, cents: int) -> None: ...


@pytest.mark.parametrize(
    "given", [functools.partial(Desk.pay, Desk()), Desk()], ids=["partial", "object"]
)
def test_what_is_no_function_is_refused_by_name(given: Any) -> None:
    with pytest.raises(DefinitionError, match="is no function: define one that calls it"):
        tool(effect=Effect.AT_MOST_ONCE)(given)


def test_a_method_does_not_run_in_a_process_of_its_own() -> None:
    with pytest.raises(DefinitionError, match="is a method"):
        tool(effect=Effect.AT_MOST_ONCE, isolation="process")(Desk().pay)


class Parcel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    grams: int
    _label: object = PrivateAttr(default_factory=object)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def kilograms(self) -> float:
        return self.grams / 1000


def test_what_a_model_computes_or_keeps_to_itself_is_no_argument() -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    def ship(parcels: list[Parcel], by: dict[str, Parcel]) -> None: ...

    effective = ship.effective({"parcels": [{"grams": 1500}], "by": {"air": {"grams": 2}}})

    assert effective == '{"parcels":[{"grams":1500}],"by":{"air":{"grams":2}}}'
    (found,) = ship.bind(effective, CONTEXT)["parcels"]
    assert found.kilograms == 1.5


def test_what_a_model_has_computed_is_left_out_of_what_is_read_and_other_extras_are_not() -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def send_back(grams: int, result: dict[str, list[Parcel]]) -> None: ...

    @tool(effect=Effect.IDEMPOTENT, compensate=send_back)
    async def ship(grams: int) -> dict[str, list[Parcel]]:
        return {"air": [Parcel(grams=grams)]}

    returned = ship.encode({"air": [Parcel(grams=1500)]})
    undone = send_back.effective(send_back.undo_arguments('{"grams":1500}', returned))
    given = send_back.effective({"grams": 1, "result": {"air": [{"grams": 2, "kilograms": 9}]}})

    assert returned.result == '{"air":[{"grams":1500,"kilograms":1.5}]}'
    assert undone == '{"grams":1500,"result":{"air":[{"grams":1500}]}}'
    assert given == '{"grams":1,"result":{"air":[{"grams":2}]}}'
    with pytest.raises(InvalidArguments, match="pounds: Extra inputs are not permitted"):
        send_back.effective({"grams": 1, "result": {"air": [{"grams": 2, "pounds": 9}]}})


def test_a_step_of_a_plan_takes_a_model_that_computes_fields_and_forbids_others() -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def ship(parcels: list[Parcel]) -> Parcel:
        return parcels[0]

    packed = step(ship, {"parcels": [Parcel(grams=1500)]}, name="first")
    plan = Plan("ship", [packed, step(ship, {"parcels": [result_of(packed)]})])

    assert plan.stages[0][0].arguments == '{"parcels":[{"grams":1500}]}'


class Sealed(BaseModel):
    note: str = Field("none", exclude=True)


@dataclass
class SealedBox:
    note: Annotated[str, Field(exclude=True)] = "none"


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Sealed, "has the field 'note' with exclude=True"),
        (list[SealedBox] | None, "has the field 'note' with exclude=True"),
        (Annotated[int, Field(exclude=True)], "has the field 'given' with exclude=True"),
        (BaseModel, "has a BaseModel"),
        (dict[str, BaseModel], "has a BaseModel"),
    ],
)
def test_a_parameter_that_would_not_be_stored_is_refused(annotation: Any, why: str) -> None:
    with pytest.raises(DefinitionError, match=f"{why}.* would be lost"):
        tool(effect=Effect.AT_MOST_ONCE)(taking(annotation))


@pytest.mark.parametrize(
    ("annotation", "default", "why"),
    [
        (int, None, "given: Input should be a valid integer; one that may be None"),
        (Annotated[str, Field(max_length=2)], "none", "given: String should have at most 2"),
        (Line, {"count": 1}, "sku: Field required"),
    ],
)
def test_a_default_that_its_type_refuses_is_refused(
    annotation: Any, default: Any, why: str
) -> None:
    def pay(given: Any = default) -> None: ...

    pay.__annotations__["given"] = annotation
    with pytest.raises(DefinitionError, match=why):
        tool(effect=Effect.AT_MOST_ONCE)(pay)


def test_what_an_applications_validator_says_of_a_default_may_change_until_the_call() -> None:
    known: set[str] = set()

    def check(sku: str) -> str:
        if sku not in known:
            raise ValueError("no such sku")
        return sku

    def pay(sku: Any = "book") -> None: ...

    pay.__annotations__["sku"] = Annotated[str, AfterValidator(check)]
    sold = tool(effect=Effect.AT_MOST_ONCE)(pay)
    known.add("book")

    assert sold.effective({}) == '{"sku":"book"}'
