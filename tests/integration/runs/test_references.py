"""History holds references: what is large lies in Postgres, and is told, travels and ends well."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from commitline import Agent, App, Effect, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.sizes import MAX_TURN
from commitline.activities.contract.turns import CALL_MODEL
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.errors import MaxStepsExceeded, ModelRejected
from commitline.identity import Position, action_key

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import Says, computed_app, turn_of

CALLED: Counter[str] = Counter()

LARGE = 5_000_000


@tool(effect=Effect.IDEMPOTENT, idempotency_key="export-{part}")
async def export(part: int, size: int) -> str:
    """Have an effect, and return so many characters."""
    CALLED["export"] += 1
    return "x" * size


@tool(effect=Effect.READ)
async def look(part: int, size: int) -> str:
    """Read so many characters."""
    CALLED["look"] += 1
    return "x" * size


# --- the size of history


def for_turns(turns: int) -> App:
    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        return call(("act", {"part": turn})) if turn < turns else say("Done.")

    @tool(effect=Effect.IDEMPOTENT)
    async def act(part: int) -> str:
        return "x" * 1_000

    return computed_app(answer, act)[0]


def inputs_of(history: WorkflowHistory, activity: str) -> list[int]:
    """Return the bytes of input with which each activity of a type was scheduled."""
    return [
        event.activity_task_scheduled_event_attributes.input.ByteSize()
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == activity
    ]


def size_of(history: WorkflowHistory) -> int:
    return sum(event.ByteSize() for event in history.events)


async def test_a_model_turns_input_and_a_turns_history_do_not_grow_with_the_run(
    bench: Bench,
) -> None:
    sizes: dict[int, int] = {}
    inputs: list[int] = []

    for turns in (20, 40):
        # Any worker serves any run: what a run keeps of its agent is its own.
        ran = await bench.run(for_turns(turns))
        assert ran.result.steps == turns + 1
        history = await bench.history(ran.id)
        sizes[turns] = size_of(history)
        inputs = inputs_of(history, CALL_MODEL)

    assert len(inputs) == 41
    # All but the first name one result: what differs is how long numbers are.
    assert max(inputs[1:]) - min(inputs[1:]) <= 10, "the input grows with the run"
    assert max(inputs) < 500
    assert sizes[40] <= 2.2 * sizes[20]
    assert sizes[40] - sizes[20] <= 20 * 3_000, f"{(sizes[40] - sizes[20]) / 20} bytes a turn"


async def test_what_was_said_before_is_not_in_the_history_of_a_conversations_next_run(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(lambda _: say("y" * 100_000))

    async with bench.serving(app) as client:
        await client.send(thread, "first " + "x" * 100_000, agent="agent")
        await client.thread(thread).run.result()
        await client.send(thread, "second")
        await client.thread(thread).run.result()
        history = await bench.history(f"thread:{thread}")

    (given,) = inputs_of(history, CALL_MODEL)
    assert given < 1_000
    assert len(model.shown[-1].messages[0].text) == 100_006


# --- one large result


async def test_a_large_result_of_an_action_is_told_bounded_and_kept_whole(bench: Bench) -> None:
    script = [call(("export", {"part": 1, "size": LARGE})), say("Done.")]

    async with bench.serving(one_agent([export], script)) as client:
        ran = await bench.start(client)
        again = await bench.rerun(client, ran.id)
        history = await bench.history(ran.id)
        ledger = await client.ledger()
        row = await ledger.get(ran.actions[0].key)

    told = json.loads(ran.results[0].content)
    assert told == {
        "truncated": True,
        "characters": LARGE + 2,
        "whole_value": f"in the ledger, as the result of {ran.actions[0].key}",
        "head": '"' + "x" * 7_999,
    }
    assert row is not None
    assert row.result == json.dumps("x" * LARGE)
    assert again.results == ran.results
    assert CALLED == {"export": 1}
    assert size_of(history) < 100_000


async def test_what_returned_a_large_result_is_undone_with_the_whole_of_it(bench: Bench) -> None:
    given: list[int] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def take_back(part: int, result: str) -> str:
        """Undo it."""
        given.append(len(result))
        return "taken back"

    @tool(effect=Effect.IDEMPOTENT, compensate=take_back)
    async def hand_out(part: int) -> str:
        """Return so many characters."""
        return "x" * 1_200_000

    app = one_agent([hand_out], [call(("hand_out", {"part": 1}))], max_steps=1)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(MaxStepsExceeded, match="The run is compensated: 1 undone"):
            await run.result()
        history = await bench.history(run.id)

    assert given == [1_200_000]
    assert size_of(history) < 100_000


async def test_a_large_result_of_a_read_is_told_bounded_and_kept_whole(bench: Bench) -> None:
    script = [call(("look", {"part": 1, "size": LARGE})), say("Done.")]

    async with bench.serving(one_agent([look], script)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        ran = await bench.outcome(run)
        key = action_key(await bench.run_key(run), Position("0.0"))
        ledger = await client.ledger()
        kept = await ledger.get_value(key)
        await (await run.thread()).delete()
        after = await ledger.get_value(key)

    told = json.loads(ran.results[0].content)
    assert (told["truncated"], told["characters"]) == (True, LARGE + 2)
    assert told["whole_value"] == f"in the ledger, as the result of {key}"
    assert len(told["head"]) == 8_000
    assert kept == json.dumps("x" * LARGE)
    assert (ran.actions, after) == ([], None)


async def test_a_read_that_travels_whole_is_not_kept_a_second_time(bench: Bench) -> None:
    script = [call(("look", {"part": 1, "size": 16_000})), say("Done.")]

    ran = await bench.run(one_agent([look], script))

    assert len(ran.results[0].content) == 16_002
    assert await bench.sql("select key from agent_values") == []


async def test_a_receipt_of_a_large_result_says_whose_it_is(bench: Bench) -> None:
    once = ("export", {"part": 1, "size": 300_000})

    ran = await bench.run(one_agent([export], [call(once), call(once), say("Done.")]))

    first, second = (json.loads(one.content) for one in ran.results)
    assert first["whole_value"] == f"in the ledger, as the result of {ran.actions[0].key}"
    assert second["existing"] is True
    assert second["result"] == first
    assert CALLED == {"export": 1}


# --- how much travels is the run's


def limited(bench: Bench, limit: int) -> Bench:
    return Bench(bench.temporal, bench.settings.model_copy(update={"result_limit": limit}))


async def test_a_result_limit_is_honoured_and_kept_by_the_run(bench: Bench) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    @tool(effect=Effect.READ)
    async def wait() -> str:
        arrived.set()
        while not go_on.is_set():  # noqa: ASYNC110 - it runs on another loop
            await asyncio.sleep(0.02)
        return "waited"

    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        if turn == 1:
            return call(("wait", {}))
        made = ("export", {"part": turn, "size": 3_000}), ("look", {"part": turn, "size": 3_000})
        return call(*made) if turn < 3 else say("Done.")

    app, model = computed_app(answer, export, look, wait)
    async with limited(bench, 2_000).serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        assert await asyncio.to_thread(arrived.wait, 40)
    # Another worker, of a later release: the run keeps what it had.
    go_on.set()
    async with bench.serving(app) as client:
        await bench.outcome(client.run(run.id))

    results = {one.position: json.loads(one.content) for one in model.told}
    for at in ("0.0", "0.1", "2.0", "2.1"):
        assert results[at]["truncated"] is True, at
        assert results[at]["characters"] == 3_002
        assert len(results[at]["head"]) == 1_000


async def test_a_result_limit_is_honoured_where_another_run_left_the_calls(bench: Bench) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if request.messages[-1].text == "go":
            return call(("export", {"part": 1, "size": 3_000}))
        return say("Done.")

    model = Says(answer)
    app = App([Agent("agent", model, "Do it.", tools=[export], max_steps=1)])
    async with limited(bench, 2_000).serving(app) as client:
        with pytest.raises(MaxStepsExceeded):
            await client.send(thread, "go", agent="agent")
        await client.send(thread, "again")

    (told,) = [json.loads(one.content) for one in model.told]
    assert (told["truncated"], told["characters"], len(told["head"])) == (True, 3_002, 1_000)


# --- many large results of one message


def patient(bench: Bench) -> Bench:
    """A bench whose worker may be busy for seconds: megabytes are written and read at once."""
    return Bench(bench.temporal, bench.settings.model_copy(update={"heartbeat_seconds": 10}))


async def test_many_large_results_of_one_message_each_get_their_share(bench: Bench) -> None:
    calls = [("export", {"part": part, "size": 250_000}) for part in range(12)]

    ran = await patient(bench).run(one_agent([export], [call(*calls), say("Done.")]))

    told = [json.loads(one.content) for one in ran.results]
    assert ran.result.output == "Done."
    assert [one["characters"] for one in told] == [250_002] * 12
    assert {len(one["head"]) for one in told} == {8_000}
    assert CALLED == {"export": 12}
    assert [action.state for action in ran.actions] == ["ok"] * 12


async def test_results_within_their_share_travel_whole(bench: Bench) -> None:
    size = MAX_TURN // 4 - 2
    calls = [("export", {"part": part, "size": size}) for part in range(4)]

    ran = await bench.run(one_agent([export], [call(*calls), say("Done.")]))

    assert [json.loads(one.content) for one in ran.results] == ["x" * size] * 4


def backslashes(size: int) -> str:
    return "\\" * size


@pytest.mark.parametrize("calls", [3, 100])
async def test_results_that_grow_when_they_are_written_as_json_still_travel(
    bench: Bench, calls: int
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def dump(part: int) -> str:
        """Return what each writing as JSON makes twice as long, as paths and patterns do."""
        CALLED["dump"] += 1
        return backslashes(140_000)

    made = [("dump", {"part": part}) for part in range(calls)]

    ran = await patient(bench).run(one_agent([dump], [call(*made), say("Done.")]))

    assert ran.result.output == "Done."
    assert CALLED["dump"] == calls
    assert {json.loads(one.content)["characters"] for one in ran.results} == {280_002}


async def test_the_errors_of_many_calls_still_travel(bench: Bench) -> None:
    calls = 250

    @tool(effect=Effect.AT_MOST_ONCE)
    async def fail(part: int) -> str:
        """Fail at length, as a compiler does."""
        CALLED["fail"] += 1
        raise RuntimeError('File "main.c": ' * 400)

    made = [("fail", {"part": part}) for part in range(calls)]

    ran = await patient(bench).run(one_agent([fail], [call(*made), say("Done.")]))

    assert ran.result.output == "Done."
    assert [one.status for one in ran.results] == ["unknown"] * calls


# --- what the model writes


async def test_arguments_of_three_megabytes_are_told_by_tool_and_size(bench: Bench) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def write(text: str) -> str:
        CALLED["write"] += 1
        return "written"

    script = [call(("write", {"text": "x" * 3_000_000}), ("write", {"text": "short"})), say("Ok.")]

    ran = await bench.run(one_agent([write], script))

    told = json.loads(ran.results[0].content)["error"]
    assert ran.results[0].status == "error"
    assert "write" in told["message"]
    assert "3,000,011 bytes" in told["message"]
    assert "256 KiB" in told["message"]
    assert told["effect"] == "none"
    assert CALLED == {"write": 1}
    assert [action.position for action in ran.actions] == ["0.1"]


async def test_a_completion_of_over_a_mebibyte_ends_its_run_at_once_and_not_the_thread(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        return say("x" * 1_100_000 if request.messages[-1].text == "much" else "little")

    app, model = computed_app(answer)
    async with bench.serving(app) as client:
        with pytest.raises(ModelRejected, match=r"1,?100,?[0-9]{3} characters") as failed:
            await asyncio.wait_for(client.send(thread, "much", agent="agent"), 40)
        asked = len(model.shown)
        reply = await asyncio.wait_for(client.send(thread, "less"), 40)
        messages = await client.thread(thread).messages()

    assert failed.value.code == "CL402"
    assert asked == 1
    assert reply.output == "little"
    assert [one.text for one in messages] == ["less", "little"]


async def test_an_answer_as_large_as_may_be_reaches_everybody_who_waits_for_it(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")
    arrived, go_on = threading.Event(), threading.Event()

    @tool(effect=Effect.READ)
    async def wait() -> str:
        arrived.set()
        while not go_on.is_set():  # noqa: ASYNC110 - it runs on another loop
            await asyncio.sleep(0.02)
        return "waited"

    def answer(request: ModelRequest) -> Completion:
        return say("x" * 1_000_000) if turn_of(request) else call(("wait", {}))

    app, model = computed_app(answer, wait)
    async with bench.serving(app) as client:
        senders = [
            asyncio.create_task(client.send(thread, "much", agent="agent", request_id="r1"))
            for _ in range(6)
        ]
        assert await asyncio.to_thread(arrived.wait, 40)
        await bench.taken_up(thread, 6)
        go_on.set()
        done, waiting = await asyncio.wait(senders, timeout=60)
        for one in waiting:
            one.cancel()
        replies: list[Any] = await asyncio.gather(*done, return_exceptions=True)
        if waiting:
            await bench.temporal.get_workflow_handle(f"thread:{thread}").terminate()
            await asyncio.wait(waiting, timeout=60)

    assert len(waiting) == 0, "the run cannot answer them all, and tries for ever"
    assert [str(one) for one in replies if isinstance(one, Exception)] == []
    assert [len(one.output) for one in replies] == [1_000_000] * 6
    assert len(model.shown) == 2


async def test_a_large_prompt_large_answers_and_large_results_go_on_in_the_next_execution(
    bench: Bench,
) -> None:
    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        if turn == 4:
            return say("Done.")
        return call(
            *[("export", {"part": 3 * turn + index, "size": 250_000}) for index in range(3)],
            text="y" * 500_000,
        )

    app, model = computed_app(answer, export)
    async with bench.serving(app) as client:
        run = await client.start("agent", "x" * 1_500_000, id=fresh_id())

        async def ended() -> bool:
            return (await run.status()).state != "running"

        try:
            await eventually(ended, seconds=30)
        finally:
            last = (await bench.history(run.id)).events[-1]
            failed = last.workflow_task_failed_event_attributes.failure.message
            if (await run.status()).state == "running":
                await bench.temporal.get_workflow_handle(run.id).terminate()
        result = await run.result()

    described = await run.describe()
    info = described.raw_description.workflow_execution_info
    assert info.first_run_id != described.run_id, "it never continued as new"
    assert failed == ""
    assert result.steps == 5
    assert CALLED == {"export": 12}
    assert [len(one.content) for one in model.told] == [250_002] * 12
