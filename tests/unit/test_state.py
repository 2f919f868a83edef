"""Shared state: what a call has changed in its copy, and how changes are merged."""

from __future__ import annotations

import operator
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator

from commitline import Agent, Effect, Reducer, ScriptedModel, State, tool
from commitline.activities.app.state_copy import GivenState, StateCopy
from commitline.activities.app.state_merge import merge
from commitline.activities.app.state_model import read_state
from commitline.activities.contract.conversation import Message, ToolCall, ToolResult
from commitline.activities.contract.encoding import from_text, to_text
from commitline.activities.contract.outcomes import Unrecorded
from commitline.activities.contract.sizes import MAX_STATE, changes_share
from commitline.activities.contract.state_changes import CallChanges, Changes, Conflict, Dropped
from commitline.activities.replies import call_reply
from commitline.activities.replies.pairing import results_from
from commitline.activities.runs.turn_state import changes_before, without_changes
from commitline.canonical import Json, dumps, parse
from commitline.errors import DefinitionError, StateUnusable
from commitline.identity import Position, RunKey, action_key
from commitline.ledger import Action, Attempt, Conversation, Dispatched, Outcome, StoredMessage


class Line(BaseModel):
    sku: str
    count: int = 1


class Order(State):
    address: str = ""
    due: date | None = None
    lines: list[Line] = Field(default_factory=list)
    cents: Annotated[int, Reducer(operator.add)] = 0
    notes: Annotated[list[str], Reducer(operator.add)] = Field(default_factory=list)
    tags: Annotated[set[str], Reducer(operator.or_)] = Field(default_factory=set)
    counts: Annotated[dict[str, int], Reducer(operator.or_)] = Field(default_factory=dict)
    seen: set[str] = Field(default_factory=set)
    highest: Annotated[int, Reducer(max)] = Field(default=0, lt=100)

    @field_validator("address")
    @classmethod
    def _not_nowhere(cls, value: str) -> str:
        if value == "nowhere":
            raise RuntimeError("no such place")
        return value


def copy(state: dict[str, Json] | None = None, *, limit: int = MAX_STATE) -> StateCopy:
    return StateCopy(Order, GivenState(dumps(state or {}), limit))


def order(made: StateCopy) -> Order:
    assert isinstance(made.value, Order)
    return made.value


def changes_of(made: StateCopy) -> Changes:
    return Changes.read(parse(made.changes() or "{}"))


def merged(state: dict[str, Json], *changes: Changes) -> Any:
    return merge(Order, state, [CallChanges(f"0.{at}", one) for at, one in enumerate(changes)])


def test_a_copy_that_is_left_as_it_was_changes_nothing() -> None:
    made = copy({"address": "A", "unknown": 1, "tags": ["b", "a"], "seen": ["b", "a"]})
    order(made).address = "A"
    order(made).notes.extend([])
    # Built from other sizes, so that it is likely to be written in another order.
    order(made).seen = {*map(str, range(999)), "a", "b"} - {*map(str, range(999))}

    assert made.changes() is None


def test_what_a_call_changed_are_the_fields_in_which_its_copy_differs() -> None:
    made = copy({"notes": ["a"], "cents": 5, "tags": ["x"], "counts": {"a": 1}, "highest": 3})
    value = order(made)
    value.due = date(2026, 3, 1)
    value.lines.append(Line(sku="s"))
    value.notes.append("b")
    value.cents += 7
    value.tags.add("y")
    value.counts["b"] = 2
    value.highest = 9

    assert changes_of(made) == Changes(
        set={"due": "2026-03-01", "lines": [{"sku": "s", "count": 1}]},
        combine={"notes": ["b"], "cents": 7, "tags": ["y"], "counts": {"b": 2}, "highest": 9},
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda one: one.notes.clear(), "notes: it was not only appended to"),
        (lambda one: one.tags.clear(), "tags: something was taken out of it"),
        (lambda one: one.counts.pop("a"), "counts: something was taken out of it"),
        (lambda one: setattr(one, "address", object()), "Unable to serialize unknown type"),
        (lambda one: setattr(one, "address", "x" * 101), "they have "),
    ],
)
def test_changes_that_cannot_be_kept_say_why_and_fail_nothing(change: Any, why: str) -> None:
    made = copy({"notes": ["a"], "tags": ["x"], "counts": {"a": 1}, "cents": 1}, limit=100)
    change(made.value)

    dropped = changes_of(made)

    assert why in dropped.dropped
    assert dropped.set == {}
    assert dropped.combine == {}


class GiftLine(Line):
    message: str


class SameLine(Line):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.count} x {self.sku}"


def test_the_fields_of_a_subclass_are_not_lost_without_a_word() -> None:
    made = copy({"lines": [{"sku": "a"}]})
    order(made).lines.append(GiftLine(sku="b", message="hi"))
    order(made).address = "A"

    dropped = changes_of(made)

    assert "lines: it has an object with fields" in dropped.dropped
    assert dropped.set == {}


def test_a_subclass_without_fields_of_its_own_changes_the_state() -> None:
    made = copy({"lines": [{"sku": "a"}]})
    order(made).lines.append(SameLine(sku="b"))

    assert changes_of(made).set == {"lines": [{"sku": "a", "count": 1}, {"sku": "b", "count": 1}]}


def test_changes_of_different_fields_survive_and_an_untouched_field_overwrites_nothing() -> None:
    state = {"address": "old", "due": "2026-01-01", "another agent's": [1]}

    found = merged(state, Changes(set={"address": "new"}), Changes(set={"due": None}))

    assert found.state == {"address": "new", "due": None, "another agent's": [1]}
    assert (found.conflicts, found.dropped) == ([], [])
    assert state["address"] == "old", "merging changes nothing in place"


def test_a_field_with_a_reducer_is_combined_in_the_order_of_the_calls() -> None:
    state = {"notes": ["a"], "cents": 1, "tags": ["x"], "highest": 4}

    found = merged(
        state,
        Changes(combine={"notes": ["b"], "cents": 2, "tags": ["z"], "highest": 9}),
        Changes(combine={"notes": ["c", "d"], "cents": 3, "tags": ["x"], "highest": 5}),
    )

    assert found.state["notes"] == ["a", "b", "c", "d"]
    assert (found.state["cents"], found.state["highest"]) == (6, 9)
    assert sorted(found.state["tags"]) == ["x", "z"]
    assert found.conflicts == []


class Sealed(SameLine):
    model_config = ConfigDict(extra="forbid")


class Sealing(State):
    lines: Annotated[list[Sealed], Reducer(operator.add)] = Field(default_factory=list)


def test_what_a_model_computes_is_no_part_of_a_combined_field() -> None:
    made = StateCopy(Sealing, GivenState("{}"))
    assert isinstance(made.value, Sealing)
    made.value.lines.append(Sealed(sku="a"))

    found = merge(Sealing, {}, [CallChanges("0.0", changes_of(made))])

    assert found.dropped == []
    assert found.state == {"lines": [{"sku": "a", "count": 1}]}


def test_two_values_for_one_field_are_reported_and_the_later_call_stands() -> None:
    found = merged(
        {"address": "old"},
        Changes(set={"address": "A"}),
        Changes(set={"address": "A"}),
        Changes(set={"due": "2026-01-01"}),
        Changes(set={"address": "B"}),
    )

    assert found.state["address"] == "B"
    assert found.conflicts == [Conflict("address", "0.1", "A", "0.3", "B")]


def test_a_call_whose_changes_do_not_fit_changes_nothing_and_the_others_do() -> None:
    bad = [
        Changes(set={"lines": [{"sku": 1}], "address": "B"}),
        Changes(set={"address": "nowhere"}),
        Changes(combine={"highest": 100}),
        Changes(combine={"address": "no reducer"}),
        Changes(combine={"gone": 1}),
        Changes(set={"notes": ["x" * MAX_STATE]}),
        Changes(dropped="too large"),
    ]

    found = merged({}, Changes(set={"address": "A"}), *bad, Changes(combine={"cents": 1}))

    assert found.state == {"address": "A", "cents": 1}
    assert found.conflicts == []
    assert [(one.position, one.fields) for one in found.dropped] == [
        ("0.1", ["address", "lines"]),
        ("0.2", ["address"]),
        ("0.3", ["highest"]),
        ("0.4", ["address"]),
        ("0.5", ["gone"]),
        ("0.6", ["notes"]),
        ("0.7", []),
    ]
    told = " ".join(one.why for one in found.dropped)
    for why in ("lines.0.sku: Input", "no such place", "less than 100", "no reducer", "65536"):
        assert why in told


def test_an_agent_without_a_state_drops_changes_and_says_so() -> None:
    found = merge(None, {"address": "A"}, [CallChanges("0.0", Changes(set={"address": "B"}))])

    assert found.state == {"address": "A"}
    assert found.dropped == [Dropped("0.0", ["address"], "the agent has no state")]


def test_a_reducer_of_ones_own_is_told_what_a_call_was_given_and_what_it_left() -> None:
    def kept(before: list[str], after: list[str]) -> list[str]:
        return [one for one in after if one not in before]

    def newest(current: list[str], change: list[str]) -> list[str]:
        return [*current, *change][-2:]

    class Recent(State):
        seen: Annotated[list[str], Reducer(newest, change=kept)] = Field(default_factory=list)

    made = StateCopy(Recent, GivenState(dumps({"seen": ["a", "b"]})))
    assert isinstance(made.value, Recent)
    made.value.seen = ["b", "c"]
    changes = changes_of(made)

    assert changes == Changes(combine={"seen": ["c"]})
    merge_twice = [CallChanges("0.0", changes), CallChanges("0.1", replace(changes))]
    assert merge(Recent, {"seen": ["a", "b"]}, merge_twice).state == {"seen": ["c", "c"]}


def test_what_is_stored_and_does_not_fit_is_unusable_and_what_is_not_stored_has_its_default() -> (
    None
):
    assert read_state(Order, "{}") == Order()
    with pytest.raises(StateUnusable, match="cents"):
        read_state(Order, dumps({"cents": "many"}))


def test_the_changes_of_all_calls_of_a_message_travel_together() -> None:
    assert changes_share(1) == MAX_STATE
    assert changes_share(100) * 100 <= 3 * MAX_STATE


class Required(State):
    address: str


class Aliased(State):
    address: str = Field("", alias="a")


class TwoReducers(State):
    notes: Annotated[tuple[str, ...], Reducer(operator.add), Reducer(operator.or_)] = ()


class NotStored(State):
    thing: Any = object()


class Excluded(State):
    note: str = Field("", exclude=True)


class Unnamed(State):
    lines: list[BaseModel] = Field(default_factory=list)


@pytest.mark.parametrize(
    "model", [Required, Aliased, TwoReducers, NotStored, Excluded, Unnamed, Line, 7]
)
def test_a_state_model_that_cannot_work_is_refused(model: Any) -> None:
    with pytest.raises(DefinitionError, match="agent 'a'"):
        Agent("a", ScriptedModel("m", []), "", state=model)


def test_a_tool_takes_the_state_of_its_agent_and_of_no_other() -> None:
    class Other(State):
        pass

    @tool(effect=Effect.READ)
    def look(order: Order, sku: str) -> str:
        return order.address + sku

    assert list(look.definition.parameters["properties"]) == ["sku"]
    Agent("a", ScriptedModel("m", []), "", tools=[look], state=Order)
    for state, has in ((None, "none"), (Other, "Other")):
        with pytest.raises(DefinitionError, match=f"takes the state Order, and .* has {has}"):
            Agent("a", ScriptedModel("m", []), "", tools=[look], state=state)
    with pytest.raises(DefinitionError, match="twice"):

        @tool(effect=Effect.READ)
        def twice(one: Order, two: Order) -> None: ...


# --- what a turn merges


RUN = RunKey("thread:t/1")


def action(position: str, changes: dict[str, Any] | None, *, run: RunKey = RUN) -> Action:
    given: dict[str, Any] = {one.name: None for one in fields(Action)}
    at = Position(position)
    given |= {"key": action_key(run, at), "run_key": run, "position": at}
    given["state_changes"] = None if changes is None else dumps(changes)
    return Action(**given)


def turn_at(version: int, step: int, *, epoch: int = 0) -> StoredMessage:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    return StoredMessage(version, 1, "assistant", "{}", RUN, step, epoch, None, moment)


def conversation(*turns: StoredMessage, state_version: int = 0) -> Conversation:
    unread: Any = None
    return Conversation(unread, unread, turns, state_version=state_version)


def results(*given: tuple[str, dict[str, Any] | None]) -> Message:
    return Message.tool([ToolResult(at, "", "t", "ok", "1", changes) for at, changes in given])


def test_a_turn_merges_what_became_known_late_and_then_the_results_in_order() -> None:
    found = conversation(turn_at(1, 0), turn_at(4, 1), state_version=2)
    pens = {"combine": {"cents": 1}}
    place = {"set": {"address": "A"}}
    settled = [
        action("0.0", pens),
        action("0.1", place),
        action("1.1", place),
        action("1.2", None),
        action("1.3", place),
        action("e1-1.0", pens),
        action("2.0", pens),
    ]
    # Merged when it was done; and told of again, since it was taken back.
    settled.append(replace(action("0.2", pens), undone_by=action_key(RUN, Position("undo-0.2"))))
    told = {action_key(RUN, Position("1.3"))}
    messages = [Message.user("go"), results(("1.0", None), ("1.3", place), ("1.4", pens))]

    calls = changes_before(found, messages, settled, told)

    assert [(one.position, one.changes.fields, one.changes.dropped) for one in calls] == [
        ("0.0", ["cents"], ""),
        ("0.1", ["address"], "it became known after the state had changed"),
        ("1.1", ["address"], ""),
        ("e1-1.0", [], "it became known after its turn was taken back"),
        ("2.0", [], "it became known after its turn was taken back"),
        ("1.3", ["address"], ""),
        ("1.4", ["cents"], ""),
    ]
    kept = without_changes(messages)
    assert kept == [messages[0], results(("1.0", None), ("1.3", None), ("1.4", None))]


def test_an_outcome_that_goes_through_history_brings_its_changes_and_a_receipt_none() -> None:
    outcome = Outcome("ok", "1", effect_possible=True, state_changes='{"set":{"address":"A"}}')
    claim = Dispatched(
        key=action_key(RUN, Position("0.0")),
        tool="t",
        args="{}",
        idempotency_key="k",
        domain_key=None,
        attempt=Attempt(datetime(2026, 3, 1, tzinfo=UTC), UUID(int=1), timedelta(seconds=1)),
        effect=Effect.IDEMPOTENT,
    )

    travelled = from_text(Unrecorded, to_text(Unrecorded.of(claim, outcome)))

    assert travelled.known == outcome
    assert call_reply.done("k", outcome).changes == {"set": {"address": "A"}}
    assert call_reply.done("k", outcome, duplicate_of="other").changes is None


def test_a_call_that_was_carried_out_on_anothers_row_brings_none_of_its_changes() -> None:
    changes = {"set": {"address": "A"}}
    done: dict[str, Any] = {"outcome": "ok", "result": "1", "effect_possible": True}
    other = RunKey("thread:u/1")
    rows = {
        Position("0.0"): replace(action("0.0", changes), **done),
        Position("0.1"): replace(action("0.1", changes, run=other), **done),
    }
    calls = [ToolCall("", "t", "{}"), ToolCall("", "t", "{}")]

    found = results_from(rows, calls, step=0, epoch=0, left_by=RUN)

    assert [one.changes for one in found] == [changes, None]
