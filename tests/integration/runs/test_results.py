"""What a tool returns or raises: kept once, told alike live and on replay, never run again."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from io import BytesIO, TextIOWrapper
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from commitline import Effect, Tool, ToolRefused, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.examples.shop.app import charge_card
from commitline.ledger import Action
from commitline.testing.processes import ProviderProcess

from .bench import Bench, Ran, one_agent


@dataclass
class Point:
    x: int
    y: int


class Order(BaseModel):
    order_id: str
    total: Decimal


class Colour(Enum):
    RED = "red"


class NeedsTwo(Exception):
    def __init__(self, status: int, *, body: str) -> None:
        super().__init__(f"{status}: {body}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


KEPT: dict[str, tuple[Callable[[], Any], str]] = {
    "datetime": (lambda: datetime(2026, 1, 2, 3, 4, tzinfo=UTC), '"2026-01-02T03:04:00Z"'),
    "date": (lambda: date(2026, 1, 2), '"2026-01-02"'),
    "decimal": (lambda: Decimal("1.10"), '"1.10"'),
    "uuid": (lambda: UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    "bytes": (lambda: b"\xff\x00", '"_wA="'),
    "set": (lambda: {1}, "[1]"),
    "dataclass": (lambda: Point(1, 2), '{"x":1,"y":2}'),
    "model": (
        lambda: Order(order_id="1", total=Decimal("2.50")),
        '{"order_id":"1","total":"2.50"}',
    ),
    "enum": (lambda: Colour.RED, '"red"'),
    "none": (lambda: None, "null"),
    "empty_text": (lambda: "", '""'),
    "empty_list": (list, "[]"),
    "generator": (lambda: (n for n in (1, 2)), "[1,2]"),
    "true": (lambda: True, "true"),
    "float": (lambda: 2.561422288066971e16, "2.561422288066971e+16"),
    "surrogate": (lambda: "\ud83d", '"\\ud83d"'),
    "nul": (lambda: "a\x00b", '"a\\u0000b"'),
    "key_order": (lambda: {"b": 1, "a": 2}, '{"b":1,"a":2}'),
}

UNSUPPORTED: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: float("nan"), "float"),
    "infinity": (lambda: float("inf"), "float"),
    "class_itself": (lambda: dict, "type"),
    "function": (lambda: lambda: 1, "function"),
    "open_file": (lambda: TextIOWrapper(BytesIO(b"a line")), "TextIOWrapper"),
    "deep_list": (lambda: nested(5_000), "list"),
    "huge_integer": (lambda: 10**5_000, "int"),
    "no_repr": (NoRepr, "NoRepr"),
    "colliding_keys": (lambda: {1: "a", "1": "b"}, "dict"),
}

RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "needs_two": (lambda: NeedsTwo(502, body="bad gateway"), "NeedsTwo", "502: bad gateway"),
    "no_text": (ValueError, "ValueError", "ValueError without a message"),
    "unprintable": (Unprintable, "Unprintable", "Unprintable without a message"),
    "surrogate": (lambda: ValueError("half \ud83d"), "ValueError", "half"),
    "system_exit": (lambda: SystemExit(3), "SystemExit", "3"),
}


def returning(name: str, make: Callable[[], Any], calls: Counter[str]) -> Tool:
    """Make a tool that counts its calls and returns what ``make`` makes."""

    @tool(name=name, effect=Effect.AT_MOST_ONCE)
    async def returns() -> Any:
        calls[name] += 1
        return make()

    return returns


def raising(
    name: str, make: Callable[[], BaseException], calls: Counter[str], effect: Effect
) -> Tool:
    """Make a tool that counts its calls and raises what ``make`` makes."""

    @tool(name=name, effect=effect)
    async def raises() -> Any:
        calls[name] += 1
        raise make()

    return raises


async def run_and_rerun(bench: Bench, tools: list[Tool]) -> tuple[Ran, Ran]:
    """Run one message that calls every tool, then the same again on another worker."""
    app = one_agent(tools, [call(*[(made.name, {}) for made in tools]), say("Done.")])
    async with bench.serving(app) as client:
        live = await bench.start(client)
    async with bench.serving(app) as client:
        return live, await bench.rerun(client, live.id)


def by_tool(actions: Any) -> dict[str, Action]:
    return {action.tool: action for action in actions}


async def test_values_of_every_kind_are_kept_and_read_alike_on_replay(bench: Bench) -> None:
    calls: Counter[str] = Counter()
    tools = [returning(name, make, calls) for name, (make, _) in KEPT.items()]

    live, replayed = await run_and_rerun(bench, tools)

    assert {r.name: r.content for r in live.results} == {
        name: text for name, (_, text) in KEPT.items()
    }
    assert replayed.messages == live.messages
    assert set(calls.values()) == {1}
    assert len(calls) == len(KEPT)
    assert {action.state for action in replayed.actions} == {"ok"}


async def test_values_without_json_are_an_error_that_names_tool_and_type(bench: Bench) -> None:
    calls: Counter[str] = Counter()
    tools = [returning(name, make, calls) for name, (make, _) in UNSUPPORTED.items()]

    live, replayed = await run_and_rerun(bench, tools)

    for result in live.results:
        error = json.loads(result.content)["error"]
        assert result.status == "error"
        assert error["type"] == "UnrepresentableResult"
        assert error["effect"] == "happened"
        kind = UNSUPPORTED[result.name][1]
        assert error["message"].startswith(
            f"{result.name} ran, and its effect stands, but its result of type {kind} "
        )
    assert replayed.messages == live.messages
    assert set(calls.values()) == {1}
    assert {(a.status, a.state) for a in replayed.actions} == {("done", "error")}


async def test_exceptions_of_every_kind_are_kept_as_class_and_text(bench: Bench) -> None:
    calls: Counter[str] = Counter()
    tools = [
        raising(name, make, calls, Effect.AT_MOST_ONCE) for name, (make, _, _) in RAISED.items()
    ]

    live, replayed = await run_and_rerun(bench, tools)

    for result in live.results:
        reason = json.loads(result.content)["unknown"]["reason"]
        assert result.status == "unknown"
        assert reason.startswith(f"{RAISED[result.name][1]}: {RAISED[result.name][2]}")
    assert replayed.messages == live.messages
    assert set(calls.values()) == {1}
    assert {a.state for a in replayed.actions} == {"unknown"}


async def test_a_read_that_raises_is_told_by_class_and_text(bench: Bench) -> None:
    calls: Counter[str] = Counter()
    tools = [raising(name, make, calls, Effect.READ) for name, (make, _, _) in RAISED.items()]

    ran = await bench.run(one_agent(tools, [call(*[(t.name, {}) for t in tools]), say("Done.")]))

    for result in ran.results:
        error = json.loads(result.content)["error"]
        assert (result.status, error["effect"]) == ("error", "none")
        assert error["type"] == RAISED[result.name][1]
        assert error["message"].startswith(RAISED[result.name][2])
    assert ran.actions == []


async def test_the_text_of_a_refusal_is_the_same_when_it_is_read_back(bench: Bench) -> None:
    """A memory address and a time would differ if the tool were asked, or the text made, anew."""
    arguments: list[str] = []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def declines() -> str:
        raise ToolRefused(f"{object()!r} declined at {time.time_ns()}")

    @tool(effect=Effect.AT_MOST_ONCE)
    async def note(text: str) -> int:
        arguments.append(text)
        return len(text)

    def note_the_error(request: ModelRequest) -> Completion:
        return call(("note", {"text": request.messages[-1].results[0].content}))

    app = one_agent([declines, note], [call(("declines", {})), note_the_error, say("Done.")])
    async with bench.serving(app) as client:
        live = await bench.start(client)
    # The second turn is lost: the model reads the refusal once more, as it is read back.
    thread = live.actions[0].thread_id
    await bench.sql("delete from agent_messages where thread_id = %(id)s and step >= 1", id=thread)
    await bench.sql("update agent_threads set version = 1 where thread_id = %(id)s", id=thread)
    async with bench.serving(app) as client:
        replayed = await bench.rerun(client, live.id)

    assert replayed.messages == live.messages
    assert arguments == [live.results[0].content]
    assert [(a.tool, a.state) for a in replayed.actions] == [("declines", "error"), ("note", "ok")]


async def test_structured_results_of_thirty_kilobytes_come_back_whole(bench: Bench) -> None:
    rows = [{"row": number, "text": "ünïcode " * 10, "half": 0.1 * number} for number in range(250)]

    live, replayed = await run_and_rerun(bench, [returning("report", lambda: rows, Counter())])

    assert len(live.results[0].content) > 30_000
    assert json.loads(live.results[0].content) == rows
    assert replayed.messages == live.messages


async def test_a_declined_charge_replays_without_a_request_and_frees_its_key(
    bench: Bench, provider: ProviderProcess
) -> None:
    charge = call(("charge_card", {"order_id": "4821", "amount_cents": 4900}))

    def better_card(_: ModelRequest) -> Completion:
        provider.behave(decline=False)
        return charge

    provider.behave(decline=True)
    app = one_agent([charge_card], [charge, better_card, say("Done.")])
    async with bench.serving(app) as client:
        live = await bench.start(client)
    async with bench.serving(app) as client:
        replayed = await bench.rerun(client, live.id)

    assert [r.status for r in live.results] == ["error", "ok"]
    error = json.loads(live.results[0].content)["error"]
    assert (error["type"], error["effect"]) == ("ToolRefused", "none")
    assert "card declined" in error["message"]
    assert replayed.messages == live.messages
    assert [key for key, _ in provider.sent("charge")] == [
        "order-4821-charge",
        "order-4821-charge~2",
    ]
    assert provider.effects("charge:4821") == 1


async def test_a_worker_outlives_a_tool_that_exits(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    def exits() -> str:
        raise SystemExit(1)

    @tool(effect=Effect.AT_MOST_ONCE)
    async def exits_too() -> str:
        raise SystemExit(2)

    script = [call(("exits", {}), ("exits_too", {})), say("Still here.")]
    async with bench.serving(one_agent([exits, exits_too], script)) as client:
        first = await bench.start(client)
        second = await bench.start(client)

    assert first.result.output == second.result.output == "Still here."
    assert [r.status for r in first.results] == ["unknown", "unknown"]


async def test_a_tool_that_cancels_itself_leaves_an_unknown_and_the_run_goes_on(
    bench: Bench,
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def gives_up() -> str:
        raise asyncio.CancelledError

    ran = await bench.run(one_agent([gives_up], [call(("gives_up", {})), say("Done.")]))

    assert [r.status for r in ran.results] == ["unknown"]
    assert ran.result.output == "Done."


async def test_what_a_tool_does_to_its_arguments_changes_nothing_that_is_stored(
    bench: Bench,
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def clears(items: list[str]) -> int:
        items.clear()
        return len(items)

    ran = await bench.run(
        one_agent([clears], [call(("clears", {"items": ["a", "b"]})), say("Done.")])
    )

    assert [a.args for a in ran.actions] == ['{"items":["a","b"]}']
