"""Calls that go wrong in ways that a tool's author did not think of: once, and told as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, PlainSerializer

from commitline import App, Effect, Tool, tool
from commitline.activities.contract.conversation import Completion, ToolCall
from commitline.activities.model.model import MAX_CALLS, examine
from commitline.activities.model.scripted_model import call, say
from commitline.errors import InvalidArguments, ModelRejected

from .bench import Bench, one_agent

CALLED: Counter[str] = Counter()
STRICT = {"now": False}


class Parcel(BaseModel):
    note: Annotated[str, PlainSerializer(str.upper)]


class Abrupt(BaseException):
    """What some libraries derive their own aborts from."""


class Hostile(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


@tool(effect=Effect.IDEMPOTENT)
async def abrupt() -> str:
    CALLED["abrupt"] += 1
    raise Abrupt("enough")


@tool(effect=Effect.IDEMPOTENT)
def exhausted() -> int:
    CALLED["exhausted"] += 1
    nothing: Iterator[int] = iter(())
    return next(nothing)


@tool(effect=Effect.IDEMPOTENT)
async def hostile() -> Any:
    CALLED["hostile"] += 1
    return Hostile(a=1)


def _in_time(value: str) -> str:
    if STRICT["now"]:
        raise ValueError("lies in the past")
    return value


@tool(effect=Effect.AT_MOST_ONCE)
async def book(at: Annotated[str, AfterValidator(_in_time)]) -> str:
    CALLED["book"] += 1
    return "booked"


@tool(effect=Effect.AT_MOST_ONCE)
async def echo(text: str) -> str:
    return text


@pytest.fixture(autouse=True)
def _not_strict_yet() -> None:
    STRICT["now"] = False


@pytest.mark.parametrize(
    ("broken", "status", "why"),
    [
        (abrupt, "unknown", "Abrupt: enough"),
        (exhausted, "unknown", "RuntimeError: exhausted raised StopIteration"),
        (hostile, "ok", '{"a":1}'),
    ],
)
async def test_a_tool_that_breaks_down_oddly_is_called_once_and_told_as_it_is(
    bench: Bench, broken: Tool, status: str, why: str
) -> None:
    app = one_agent([broken], [call((broken.name, {})), say("Done.")])

    ran = await bench.run(app)

    assert ran.results[0].status == status
    assert why in ran.results[0].content
    assert CALLED[broken.name] == 1


async def test_what_was_done_is_not_denied_when_its_arguments_would_be_refused_now(
    bench: Bench,
) -> None:
    app = one_agent([book], [call(("book", {"at": "noon"})), say("Done.")])

    async with bench.serving(app) as client:
        live = await bench.start(client)
        STRICT["now"] = True
        replayed = await bench.rerun(client, live.id)

    assert json.loads(live.results[0].content) == "booked"
    assert replayed.results == live.results
    assert CALLED["book"] == 1


async def test_arguments_that_a_model_wrote_without_escapes_reach_the_tool(bench: Bench) -> None:
    script = [call(("echo", '{"text": "J\u00fcrgen \U0001f680"}')), say("Done.")]

    ran = await bench.run(one_agent([echo], script))

    assert json.loads(ran.results[0].content) == "J\u00fcrgen \U0001f680"


async def test_a_model_with_a_fault_of_its_own_ends_the_run_and_is_asked_once(
    bench: Bench,
) -> None:
    def faulty(request: object) -> Completion:
        CALLED["model"] += 1
        raise KeyError("choices")

    app: App = one_agent([], [faulty])

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id="faulty-model")
        with pytest.raises(ModelRejected, match="raised KeyError"):
            await run.result()

    assert CALLED["model"] == 1


def test_calls_beyond_what_one_message_may_hold_are_not_run() -> None:
    calls = [ToolCall(id="", name="echo", arguments="{}") for _ in range(MAX_CALLS + 1)]

    examined = examine(Completion(calls=calls)).calls

    assert examined[MAX_CALLS - 1].problem is None
    assert examined[MAX_CALLS].problem == "a message may hold 500 calls at most"


def test_an_argument_that_would_be_stored_as_something_else_is_refused() -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def ship(parcel: Parcel) -> str:
        return parcel.note

    with pytest.raises(InvalidArguments, match="does not survive being stored"):
        ship.effective({"parcel": {"note": "urgent"}})
