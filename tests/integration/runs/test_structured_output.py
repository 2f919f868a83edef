"""An agent with an ``output_type``: what it hands in fits, or it is told why not, a few times."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from commitline import Agent, App, Effect, Tool, tool
from commitline.activities.contract.conversation import Completion, Message
from commitline.activities.contract.final_result import ACCEPTED, FINAL_RESULT, OUTPUT_REQUEST
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, ScriptedModel, call, say
from commitline.errors import DefinitionError, OutputUnusable
from commitline.workflows import RunResult

from .bench import Bench, fresh_id
from .playing import Says

CALLED: Counter[str] = Counter()


class Order(BaseModel):
    id: str
    total: int


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@tool(effect=Effect.IDEMPOTENT)
async def charge(order: str) -> str:
    CALLED[order] += 1
    return f"charged {order}"


def app_of(
    output_type: Any, answers: list[Answer], *tools: Tool, **given: Any
) -> tuple[App, ScriptedModel]:
    model = ScriptedModel("scripted", answers)
    agent = Agent("agent", model, "Do it.", tools=tools, output_type=output_type, **given)
    return App([agent]), model


def hand_in(value: Any, **given: Any) -> Completion:
    return call((FINAL_RESULT, value), **given)


GOOD = hand_in({"id": "4821", "total": 49})


async def ended(bench: Bench, app: App) -> RunResult:
    return (await bench.run(app)).result


# --- what fits


@pytest.mark.parametrize(
    ("kind", "given", "value", "text"),
    [
        (Order, {"id": "1", "total": "3"}, Order(id="1", total=3), '{"id":"1","total":3}'),
        (Point, {"x": 1}, Point(1), '{"x":1,"y":0}'),
        (list[int], {"value": [1, "2"]}, [1, 2], "[1,2]"),
        (dict[str, int], {"a": 1}, {"a": 1}, '{"a":1}'),
        (list[Order], {"value": []}, [], "[]"),
        (str, {"value": ""}, "", '""'),
        (int | None, {"value": None}, None, "null"),
    ],
    ids=["a model", "a dataclass", "a list", "a mapping", "models", "a text", "nothing"],
)
async def test_an_output_of_any_type_is_handed_in_checked_and_read(
    bench: Bench, kind: Any, given: Any, value: Any, text: str
) -> None:
    app, model = app_of(kind, [hand_in(given)])

    result = await ended(bench, app)

    assert result.output == text
    assert result.data(kind) == value
    assert result.steps == 1
    assert model.calls == 1


async def test_the_model_is_told_of_the_type_beside_its_tools(bench: Bench) -> None:
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Completion:
        seen.append(request)
        return GOOD

    app, _ = app_of(Order, [answer], charge)
    await ended(bench, app)

    assert [one.name for one in seen[0].tools] == ["charge", FINAL_RESULT]
    assert seen[0].tools[1].parameters["type"] == "object"
    assert set(seen[0].tools[1].parameters["properties"]) == {"id", "total"}


class Node(BaseModel):
    name: str
    below: list[Node] = []


async def test_a_type_that_holds_itself_has_an_object_for_its_schema(bench: Bench) -> None:
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Completion:
        seen.append(request)
        return hand_in({"name": "a", "below": [{"name": "b"}]})

    app, _ = app_of(Node, [answer])
    result = await ended(bench, app)

    assert result.data(Node).below[0].name == "b"
    assert seen[0].tools[0].parameters.get("type") == "object", "providers refuse it otherwise"


async def test_an_output_of_another_type_than_asked_for_is_not_read_as_one(bench: Bench) -> None:
    app, _ = app_of(Order, [GOOD])

    result = await ended(bench, app)

    with pytest.raises(ValidationError):
        result.data(Point)


def test_what_has_no_schema_and_a_tool_of_the_same_name_are_refused_at_definition() -> None:
    @tool(effect=Effect.READ, name=FINAL_RESULT)
    async def mine() -> str:
        return "mine"

    with pytest.raises(DefinitionError):
        Agent("agent", ScriptedModel("m", []), "", output_type=asyncio.Event)
    with pytest.raises(DefinitionError, match=FINAL_RESULT):
        Agent("agent", ScriptedModel("m", []), "", tools=[mine], output_type=Order)


# --- what does not


async def test_an_output_that_does_not_fit_is_told_why_and_corrected_on_record(
    bench: Bench,
) -> None:
    app, model = app_of(Order, [hand_in({"id": "4821"}), hand_in('{"id": "48'), GOOD])

    async with bench.serving(app) as client:
        ran = await bench.start(client)
        messages = await (await client.run(ran.id).thread()).messages()

    assert ran.result.data(Order) == Order(id="4821", total=49)
    assert (ran.result.steps, model.calls) == (3, 3)
    told = [json.loads(one.content)["error"] for one in ran.results]
    assert "total: Field required" in told[0]["message"]
    assert "malformed or truncated" in told[1]["message"]
    assert {one["effect"] for one in told} == {"none"}
    assert [one.role for one in messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant", "tool"),
    ]
    assert [one.content for one in messages[-1].results] == [ACCEPTED]
    assert ran.actions == []


async def test_a_text_instead_of_an_output_is_asked_for_it(bench: Bench) -> None:
    app, _ = app_of(Order, [say("It costs 49."), GOOD])

    ran = await bench.run(app)

    assert ran.result.data(Order).total == 49
    assert [one.text for one in ran.messages if one.role == "user"] == ["go", OUTPUT_REQUEST]


async def test_a_text_instead_of_an_output_is_no_reply_to_a_request(bench: Bench) -> None:
    thread = fresh_id("thread")
    app, model = app_of(Order, [say("It costs 49."), GOOD])

    async with bench.serving(app) as client:
        async with asyncio.timeout(40):
            reply = await client.send(thread, "how much?", agent="agent", request_id="r1")
            again = await client.send(thread, "how much?", request_id="r1")

    assert reply.output == '{"id":"4821","total":49}'
    assert again == reply
    assert model.calls == 2


async def test_an_output_beside_other_calls_is_not_taken_and_they_are_run(bench: Bench) -> None:
    both = call(("charge", {"order": "4821"}), (FINAL_RESULT, {"id": "4821", "total": 49}))
    app, _ = app_of(Order, [both, GOOD], charge)

    ran = await bench.run(app)

    assert ran.result.steps == 2
    assert [(one.name, one.status) for one in ran.results] == [
        ("charge", "ok"),
        (FINAL_RESULT, "error"),
    ]
    assert "call it alone" in ran.results[1].content
    assert CALLED == {"4821": 1}


async def test_two_outputs_in_one_message_are_none(bench: Bench) -> None:
    good = (FINAL_RESULT, {"id": "4821", "total": 49})
    app, _ = app_of(Order, [call(good, good), GOOD])

    ran = await bench.run(app)

    assert ran.result.steps == 2
    assert [one.status for one in ran.results] == ["error", "error"]


@pytest.mark.parametrize(
    "unusable", [hand_in({"id": "4821"}), say("It costs 49.")], ids=["unfit", "a text"]
)
async def test_after_a_few_unusable_turns_the_run_fails_and_says_what_was_wrong(
    bench: Bench, unusable: Completion
) -> None:
    app, model = app_of(Order, [unusable] * 9, unusable_tries=2)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        async with asyncio.timeout(40):
            with pytest.raises(OutputUnusable, match="nothing usable in 2 turns") as failed:
                await run.result()
        messages = await (await run.thread()).messages()

    assert failed.value.code == "CL507"
    assert ("total" in failed.value.message) == (unusable.calls != [])
    assert model.calls == 2
    # The corrections are turns as any other.
    assert [one.step for one in messages if one.role == "assistant"] == [0, 1]


async def test_a_usable_turn_in_between_begins_the_count_anew(bench: Bench) -> None:
    bad = hand_in({"id": "4821"})
    script: list[Answer] = [bad, call(("charge", {"order": "1"})), bad, GOOD]
    app, _ = app_of(Order, script, charge, unusable_tries=2)

    result = await ended(bench, app)

    assert (result.steps, result.data(Order).total) == (4, 49)


# --- over time


async def test_a_valid_output_is_not_asked_for_again_after_a_reset(bench: Bench) -> None:
    app, model = app_of(Order, [hand_in({"id": "4821"}), GOOD])

    async with bench.serving(app) as client:
        live = await bench.start(client)
        run = client.run(live.id)
        said = await (await run.thread()).messages()
        for step in (1, 0):
            await run.reset(to_step=step)
            assert (await bench.outcome(run)).result == live.result
        after = await (await run.thread()).messages()

    assert model.calls == 2
    assert after == said


async def test_a_recorded_output_stays_valid_when_its_type_has_changed(bench: Bench) -> None:
    class Stricter(BaseModel):
        id: str
        total: int
        currency: str

    first, _ = app_of(Order, [GOOD])
    async with bench.serving(first) as client:
        live = await bench.start(client)
    second, model = app_of(Stricter, [GOOD])
    async with bench.serving(second) as client:
        await client.run(live.id).reset(to_step=0)
        again = await bench.outcome(client.run(live.id))

    assert again.result == live.result
    assert model.calls == 0


def well_formed(messages: list[Message]) -> bool:
    """Whether each message with calls is followed by as many results."""
    for before, after in zip(messages, [*messages[1:], Message.user("")], strict=True):
        calls = before.completion.calls if before.completion else []
        if len(calls) != len(after.results):
            return False
    return True


async def test_a_conversation_goes_on_after_an_output_and_after_one_that_failed(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        asked = [one.text for one in request.messages if one.role == "user" and one.text]
        fits = asked[-1] != "nonsense" and OUTPUT_REQUEST not in asked[-1:]
        return hand_in({"id": asked[-1], "total": len(asked)}) if fits else hand_in({})

    model = Says(answer)
    app = App([Agent("agent", model, "Do it.", output_type=Order, unusable_tries=2)])
    async with bench.serving(app) as client:
        async with asyncio.timeout(40):
            first = await client.send(thread, "one", agent="agent")
            with pytest.raises(OutputUnusable):
                await client.send(thread, "nonsense")
            second = await client.send(thread, "two")
            third = await client.send(thread, "three")

    assert [one.data(Order).id for one in (first, second, third)] == ["one", "two", "three"]
    assert all(well_formed(request.messages) for request in model.shown)


# --- cut off


async def test_a_message_that_was_cut_off_runs_none_of_its_calls(bench: Bench) -> None:
    cut = call(
        ("charge", {"order": "1"}), ("charge", '{"order": "2'), finish_reason="length", text="I"
    )
    app, _ = app_of(None, [cut, call(("charge", {"order": "3"})), say("Done.")], charge)

    ran = await bench.run(app)

    assert ran.result.output == "Done."
    assert CALLED == {"3": 1}
    assert [one.position for one in ran.actions] == ["1.0"]
    assert [one.status for one in ran.results] == ["error", "error", "ok"]
    assert all("cut off" in one.content for one in ran.results[:2])


async def test_a_model_whose_messages_are_always_cut_off_fails_the_run_clearly(
    bench: Bench,
) -> None:
    cut = call(("charge", {"order": "1"}), finish_reason="length")
    app, model = app_of(None, [cut] * 9, charge)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        async with asyncio.timeout(40):
            with pytest.raises(OutputUnusable, match="cut off") as failed:
                await run.result()
        actions = await run.actions()

    assert failed.value.code == "CL507"
    assert model.calls == 3
    assert (actions, CALLED) == ([], {})


async def test_a_model_that_refuses_to_give_an_output_fails_the_run_in_its_own_words(
    bench: Bench,
) -> None:
    refusal = say("I cannot do that.", finish_reason="refusal")
    app, _ = app_of(Order, [refusal] * 2, unusable_tries=2)

    with pytest.raises(OutputUnusable, match=r"the model refused: I cannot do that\."):
        await ended(bench, app)


async def test_an_output_that_was_cut_off_is_not_taken_though_it_looks_whole(
    bench: Bench,
) -> None:
    cut = hand_in({"id": "4821", "total": 4}, finish_reason="length")
    app, _ = app_of(Order, [cut, GOOD])

    result = await ended(bench, app)

    assert result.data(Order).total == 49
