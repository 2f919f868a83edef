"""What the tools of a conversation share: copied for each call, merged by field, once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from commitline import Agent, App, Effect, RunHandle, ToolRefused, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.tests.integration.runs.isolated_tools import Desk, pens_in_a_process

from .bench import Bench, eventually, fresh_id

BARRIER = threading.Barrier(3, timeout=30)


@tool(effect=Effect.IDEMPOTENT)
async def move(desk: Desk, place: str) -> str:
    """Move the desk; wait until all three calls of the message are here."""
    await asyncio.to_thread(BARRIER.wait)
    desk.place = place
    return f"from {desk.pens} pens"


@tool(effect=Effect.READ)
def count(desk: Desk, pens: int) -> str:
    """Count its pens, in a thread."""
    BARRIER.wait()
    desk.pens += pens
    desk.log.append(f"counted {pens}")
    return desk.place


@tool(effect=Effect.IDEMPOTENT)
async def put(desk: Desk, place: str, pens: int = 0, log: str = "") -> str:
    """Put something down, and say what was there."""
    before = desk.model_dump_json()
    desk.place = place or desk.place
    desk.pens += pens
    if log:
        desk.log.append(log)
    return before


@tool(effect=Effect.IDEMPOTENT)
async def spoil(desk: Desk, how: str) -> str:
    """Do something to the state that cannot count."""
    desk.place = "spoilt"
    if how == "refuse":
        raise ToolRefused("no")
    if how == "mistype":
        desk.pens = "many"  # type: ignore[assignment]
    if how == "fill":
        desk.place = "x" * 70_000
    return how


@tool(effect=Effect.IDEMPOTENT, idempotency_key="desk-{place}")
async def once(desk: Desk, place: str) -> str:
    """Count something that is done once in the world."""
    desk.pens += 100
    return place


@dataclass
class Signals:
    """What a test and its tools tell each other."""

    release: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


SIGNALS = Signals()


@pytest.fixture
def signals() -> Iterator[Signals]:
    SIGNALS.release.clear()
    SIGNALS.paused.clear()
    SIGNALS.go_on.clear()
    yield SIGNALS
    SIGNALS.release.set()
    SIGNALS.go_on.set()


@tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.3)
def late(desk: Desk, place: str = "") -> str:
    """Come back when it has long been told as unknown."""
    SIGNALS.release.wait(30)
    desk.pens += 10
    desk.place = place
    return "late"


@tool(effect=Effect.READ)
async def pause(desk: Desk) -> str:
    """Hold the run up."""
    SIGNALS.paused.set()
    await asyncio.to_thread(SIGNALS.go_on.wait, 30)
    desk.owner = "nobody"
    return "paused"


TOOLS = (late, pause, move, count, put, spoil, once, pens_in_a_process)


def app(*answers: Completion) -> App:
    model = ScriptedModel("scripted", list(answers))
    return App([Agent("agent", model, "Do it.", tools=TOOLS, state=Desk)])


async def desk_of(run: RunHandle) -> Desk:
    return await (await run.thread()).state(Desk)


def notices(request_messages: list[str]) -> list[str]:
    return [text for text in request_messages if text.startswith("[notice]")]


async def test_parallel_calls_change_different_fields_and_combine_one(bench: Bench) -> None:
    """They run side by side, in a loop, a thread and a process, on copies of their own."""
    served = app(
        call(("put", {"place": "hall", "pens": 1, "log": "put"})),
        call(
            ("move", {"place": "attic"}),
            ("count", {"pens": 5}),
            ("count", {"pens": 7}),
            ("pens_in_a_process", {"pens": 30, "owner": "Ada"}),
        ),
        call(("put", {"place": ""})),
        say("Done."),
    )

    async with bench.serving(served) as client:
        ran = await bench.start(client)
        desk = await desk_of(client.run(ran.id))

    told = [result.content for result in ran.results]

    assert told[1:4] == ['"from 1 pens"', '"hall"', '"hall"']
    assert desk == Desk(
        place="attic", pens=43, owner="Ada", log=["put", "counted 5", "counted 7", "in a process"]
    )
    assert Desk.model_validate_json(_text(told[5])) == desk, "the next turn's call was given it"
    assert notices([one.text for one in ran.messages]) == []
    assert all(result.changes is None for result in ran.results), "they are merged, not kept"
    versions = await bench.sql("select version from agent_states order by version")
    assert versions == [(2,), (3,)], "a turn that changes nothing writes no state"


async def test_a_conflict_is_told_to_the_model_and_so_is_what_cannot_count(bench: Bench) -> None:
    served = app(
        call(
            ("put", {"place": "hall"}),
            ("put", {"place": "hall", "pens": 1}),
            ("put", {"place": "attic", "pens": 2}),
            ("spoil", {"how": "refuse"}),
            ("spoil", {"how": "mistype"}),
            ("spoil", {"how": "fill"}),
        ),
        say("Done."),
    )

    with capture_logs() as logs:
        async with bench.serving(served) as client:
            ran = await bench.start(client)
            desk = await desk_of(client.run(ran.id))

    assert desk == Desk(place="attic", pens=3)
    assert [result.status for result in ran.results] == ["ok"] * 3 + ["error", "ok", "ok"]
    conflict, mistyped, filled = notices([one.text for one in ran.messages])
    assert "'place'" in conflict
    assert '0.1 to "hall", 0.2 to "attic"' in conflict
    assert "at 0.4 changed in the shared state" in mistyped
    assert "at 0.5 changed in the shared state" in filled
    assert "over 32768" in filled, "six calls share what may travel"
    (logged,) = [one for one in logs if one["event"] == "state.conflict"]
    assert (logged["field"], logged["earlier"], logged["later"]) == ("place", "0.1", "0.2")
    dropped = [one["position"] for one in logs if one["event"] == "state.changes_dropped"]
    assert dropped == ["0.4", "0.5"]


async def test_a_reset_replays_changes_once_and_a_fork_takes_them_back(bench: Bench) -> None:
    def answer(request: ModelRequest) -> Completion:
        turn = sum(one.role == "assistant" for one in request.messages)
        forked = any("asked again" in one.text for one in request.messages)
        if turn < 3 and not forked:
            return call(("put", {"place": f"room {turn}", "pens": 1, "log": f"turn {turn}"}))
        return say("Done.")

    model = ScriptedModel("scripted", [answer] * 20)
    served = App([Agent("agent", model, "", tools=TOOLS, state=Desk)])
    first = Desk(place="room 2", pens=3, log=["turn 0", "turn 1", "turn 2"])

    async with bench.serving(served) as client:
        ran = await bench.start(client)
        run = client.run(ran.id)
        assert await desk_of(run) == first

        await bench.rerun(client, ran.id)
        assert await desk_of(run) == first, "the reset found the changes merged"

        await run.reset(to_step=2, fork=True)
        await bench.outcome(run)
        # The result of the call of turn 1 goes with turn 2 again, and counts once.
        assert await desk_of(run) == Desk(place="room 1", pens=2, log=["turn 0", "turn 1"])


async def test_a_thread_keeps_its_state_between_its_runs_and_a_receipt_changes_nothing(
    bench: Bench,
) -> None:
    place = fresh_id()

    def answer(request: ModelRequest) -> Completion:
        if request.messages[-1].role == "tool":
            return say(request.messages[-1].results[0].content)
        return call((request.messages[-1].text, {"place": place}))

    model = ScriptedModel("scripted", [answer] * 20)
    served = App([Agent("agent", model, "", tools=TOOLS, state=Desk)])

    async with bench.serving(served) as client:
        thread, other = client.thread(fresh_id("talk")), client.thread(fresh_id("talk"))
        for one in (thread, other):
            await one.send("once", agent="agent")
        assert (await thread.state(Desk), await other.state(Desk)) == (Desk(pens=100), Desk())

        reply = await thread.send("put")

        assert Desk.model_validate_json(_text(reply.output)) == Desk(pens=100)
        await thread.delete()
        assert (
            await bench.sql("select 1 from agent_states where thread_id = %(id)s", id=thread.id)
            == []
        )


async def test_what_becomes_known_late_is_merged_unless_the_state_has_changed_since(
    bench: Bench, signals: Signals
) -> None:
    def answer(request: ModelRequest) -> Completion:
        turn = sum(one.role == "assistant" for one in request.messages)
        if any("asked again" in one.text for one in request.messages) or turn == 2:
            return say("Done.")
        if turn == 1:
            return call(("pause", {}))
        return call(
            ("put", {"place": "hall", "pens": 1}), ("late", {}), ("late", {"place": "cellar"})
        )

    model = ScriptedModel("scripted", [answer] * 20)
    served = App([Agent("agent", model, "", tools=TOOLS, state=Desk)])

    async with bench.serving(served) as client:
        run = await client.start("agent", "go", id=fresh_id())

        assert await asyncio.to_thread(signals.paused.wait, 30)
        signals.release.set()
        await eventually(lambda: _all_ok(run))
        signals.go_on.set()
        ran = await bench.outcome(run)

        # Of the two, one only added pens; the other moved a desk that was moved meanwhile.
        assert await desk_of(run) == Desk(place="hall", pens=11, owner="nobody")
        (dropped,) = [t for t in notices([m.text for m in ran.messages]) if "dropped" in t]
        assert "at 0.2" in dropped
        assert "after the state had changed" in dropped

        await run.reset(to_step=1, fork=True)
        ran = await bench.outcome(run)
        # Both are told again, and now the state is as they knew it.
        assert await desk_of(run) == Desk(place="hall", pens=21)
        (conflict,) = [t for t in notices([m.text for m in ran.messages]) if "differently" in t]
        assert '0.2 to "cellar", 0.0 to "hall"' in conflict

        await run.reset(to_step=0, fork=True)
        ran = await bench.outcome(run)
        assert await desk_of(run) == Desk(), "what was taken back changes nothing, known or not"
        told = notices([m.text for m in ran.messages])
        assert sum("after its turn was taken back" in text for text in told) == 2


async def test_what_a_run_left_unmerged_is_merged_by_the_next_run_of_its_thread(
    bench: Bench, signals: Signals
) -> None:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Completion:
        asked.append(request)
        if len(asked) == 1:
            return call(("put", {"place": "hall", "pens": 1}), ("pause", {}), ("take", {}))
        return say("Done.")

    @tool(effect=Effect.IDEMPOTENT)
    async def take_back() -> None: ...

    @tool(effect=Effect.IDEMPOTENT, compensate=take_back)
    async def take(desk: Desk) -> None:
        desk.pens += 10

    model = ScriptedModel("scripted", [answer] * 20)
    served = App([Agent("agent", model, "", tools=[*TOOLS, take], state=Desk)])

    async with bench.serving(served) as client:
        thread = client.thread(fresh_id("talk"))
        run = await client.start("agent", "go", thread=thread.id)

        async def both_done() -> bool:
            return [one.state for one in await run.actions()] == ["ok"] * 2

        await eventually(both_done)
        await bench.temporal.get_workflow_handle(run.id).terminate()
        await run.undo()
        assert await thread.state(Desk) == Desk()

        await thread.send("go on")
        await thread.send("and again")

        # The pause only reads, so its answer went with its run: it is told so. What was undone is
        # told of twice, as done and as undone, and counts once, as it does in a run that goes on.
        assert await thread.state(Desk) == Desk(place="hall", pens=11)


async def _all_ok(run: RunHandle) -> bool:
    actions = await run.actions()
    return bool(actions) and all(one.state == "ok" for one in actions)


def _text(content: str) -> str:
    text = json.loads(content)
    assert isinstance(text, str)
    return text
