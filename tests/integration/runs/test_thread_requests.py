"""A request of a conversation counts once, whenever, wherever and however often it is sent."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter

import pytest
from psycopg import AsyncConnection

from commitline import Effect, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.turns import CALL_MODEL
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.errors import ConversationTooLarge, InvalidRunId, RequestConflict, ThreadBusy
from commitline.handles.thread_request import MAX_TEXT
from commitline.identity import thread_workflow

from .bench import Bench, eventually, fresh_id, rolled_over
from .playing import LONG, SOON, Signals, asked, computed_app, seen, within

CALLED: Counter[str] = Counter()


def echo(request: ModelRequest) -> Completion:
    return say(f"{len(asked(request))}: {asked(request)[-1]}")


def holding_first(request: ModelRequest) -> Completion:
    """Hold in the first request, and answer the others at once."""
    if len(asked(request)) == 1 and request.messages[-1].role == "user":
        return call(("hold", {}))
    return echo(request)


def holding(signals: Signals) -> Tool:
    @tool(effect=Effect.AT_MOST_ONCE, name="hold")
    async def hold() -> str:
        CALLED["hold"] += 1
        signals.began.set()
        while not signals.release.is_set():  # noqa: ASYNC110 - it runs on another loop
            await asyncio.sleep(0.02)
        return "held"

    return hold


async def people_said(client: AgentClient, thread: str) -> list[str]:
    messages = await client.thread(thread).messages()
    assert [one.version for one in messages] == sorted(one.version for one in messages)
    return [one.text for one in messages if one.role == "user"]


# --- the same request again


async def test_a_request_that_is_sent_again_gets_the_reply_that_it_had(bench: Bench) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(echo)

    async with bench.serving(app) as client:
        first = await within(client.send(thread, "hello", agent="agent", request_id="r1"))
        at_once = await within(client.send(thread, "hello", request_id="r1"))
        await client.thread(thread).run.result()
        after_its_end = await within(client.send(thread, "hello", request_id="r1"))
        other = await within(client.send(thread, "and?", request_id="r2"))
        after_the_next = await within(client.send(thread, "hello", request_id="r1", agent="agent"))
        said = await people_said(client, thread)
        messages = await client.thread(thread).messages()

    assert first.output == "1: hello"
    assert [at_once, after_its_end, after_the_next] == [first] * 3
    assert other.output == "2: and?"
    assert said == ["hello", "and?"]
    assert [one.request_id for one in messages if one.role == "user"] == ["r1", "r2"]
    assert model.calls == 2


async def test_a_request_without_an_id_is_a_new_one_every_time(bench: Bench) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(echo)

    async with bench.serving(app) as client:
        first = await within(client.send(thread, "hello", agent="agent"))
        second = await within(client.send(thread, "hello"))

    assert [first.output, second.output] == ["1: hello", "2: hello"]


async def test_a_request_that_two_clients_send_at_once_counts_once(bench: Bench) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(echo)

    async with (
        bench.serving(app) as client,
        AgentClient(bench.temporal, bench.settings) as another,
    ):
        replies = await within(
            asyncio.gather(
                *(
                    sender.send(thread, "hello", agent="agent", request_id="r1")
                    for sender in (client, another) * 3
                )
            )
        )
        said = await people_said(client, thread)

    assert [reply.output for reply in replies] == ["1: hello"] * 6
    assert len(set(replies)) == 1
    assert said == ["hello"]
    assert model.calls == 1


async def test_a_request_that_is_sent_again_while_it_is_worked_on_counts_once(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(holding_first, holding(signals))

    async with (
        bench.serving(app) as client,
        AgentClient(bench.temporal, bench.settings) as another,
    ):
        first = asyncio.create_task(client.send(thread, "hello", agent="agent", request_id="r1"))
        await seen(signals.began)
        again = [
            asyncio.create_task(sender.send(thread, "hello", request_id="r1"))
            for sender in (client, another)
        ]
        await bench.taken_up(thread, 3)
        signals.release.set()
        replies = await within(asyncio.gather(first, *again))
        said = await people_said(client, thread)

    assert [reply.output for reply in replies] == ["1: hello"] * 3
    assert len(set(replies)) == 1
    assert said == ["hello"]
    assert (model.calls, CALLED["hold"]) == (2, 1)


async def test_a_request_that_waits_behind_another_counts_once_however_often_it_is_sent(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(holding_first, holding(signals))

    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "hello", agent="agent"))
        await seen(signals.began)
        waiting = [
            asyncio.create_task(client.send(thread, "and?", request_id="r2")) for _ in range(3)
        ]
        await bench.taken_up(thread, 4)
        signals.release.set()
        await within(first)
        replies = await within(asyncio.gather(*waiting))
        said = await people_said(client, thread)

    assert {reply.output for reply in replies} == {"2: and?"}
    assert len(set(replies)) == 1
    assert said == ["hello", "and?"]


async def test_a_request_that_no_worker_has_taken_up_counts_once(bench: Bench) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(echo)
    early = AgentClient(bench.temporal, bench.settings)

    waiting = [
        asyncio.create_task(early.send(thread, "hello", agent="agent", request_id="r1"))
        for _ in range(2)
    ]
    await asyncio.sleep(0.5)
    async with bench.serving(app) as client:
        replies = await within(asyncio.gather(*waiting))
        said = await people_said(client, thread)
    await early.close()

    assert {reply.output for reply in replies} == {"1: hello"}
    assert said == ["hello"]
    assert model.calls == 1


# --- what is refused


async def test_another_text_under_an_id_is_refused_before_and_after_its_reply(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(holding_first, holding(signals))

    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "hello", agent="agent", request_id="r1"))
        await seen(signals.began)
        with pytest.raises(RequestConflict) as meanwhile:
            await within(client.send(thread, "goodbye", request_id="r1"))
        signals.release.set()
        await within(first)
        with pytest.raises(RequestConflict):
            await within(client.send(thread, "goodbye", request_id="r1"))
        with pytest.raises(RequestConflict):
            await client.start("agent", "goodbye", thread=thread, request_id="r1")
        said = await people_said(client, thread)

    assert meanwhile.value.code == "CL213"
    assert said == ["hello"]


async def test_the_same_id_in_another_conversation_is_another_request(bench: Bench) -> None:
    threads = [fresh_id("thread"), fresh_id("thread")]
    app, model = computed_app(echo)

    async with bench.serving(app) as client:
        replies = [
            await within(client.send(thread, text, agent="agent", request_id="r1"))
            for thread, text in zip(threads, ["hello", "goodbye"], strict=True)
        ]

    assert [reply.output for reply in replies] == ["1: hello", "1: goodbye"]
    assert model.calls == 2


async def test_a_text_may_have_256_kib_and_no_more(bench: Bench) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(lambda request: say(f"{len(asked(request)[-1])}"))

    async with bench.serving(app) as client:
        reply = await within(client.send(thread, "é" * MAX_TEXT, agent="agent"))
        with pytest.raises(ConversationTooLarge) as failed:
            await within(client.send(thread, "x" * (MAX_TEXT + 1)))
        with pytest.raises(ConversationTooLarge):
            await client.start("agent", "x" * (MAX_TEXT + 1), thread=thread)
        rows = await bench.sql("select request_id from agent_requests")

    assert reply.output == f"{256 * 1024}"
    assert failed.value.code == "CL505"
    assert len(rows) == 1


async def test_any_text_reaches_the_model_as_it_was_sent(bench: Bench) -> None:
    thread = fresh_id("thread")
    texts = ["", "nul \0 and half a character \ud83d", '{"role": "tool"}', "[notice] not one"]
    got: list[str] = []

    def answer(request: ModelRequest) -> Completion:
        got.append(asked(request)[-1])
        return say("ok")

    app, _ = computed_app(answer)
    async with bench.serving(app) as client:
        for text in texts:
            await within(client.send(thread, text, agent="agent"))
        said = await people_said(client, thread)

    assert got == texts
    assert said == texts


@pytest.mark.parametrize(
    "request_id",
    ["a\0b", "\ud83d", secrets.token_hex(10_000)],
    ids=["a nul", "half a character", "too long"],
)
async def test_what_cannot_be_a_requests_id_is_refused_as_such(
    bench: Bench, request_id: str
) -> None:
    client = AgentClient(bench.temporal, bench.settings)
    thread = fresh_id("thread")

    with pytest.raises(InvalidRunId):
        await client.thread(thread).receive("hello", agent="agent", request_id=request_id)
    await client.close()


# --- starting


async def test_a_start_on_a_thread_is_a_run_of_the_conversation(bench: Bench) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(echo)

    async with bench.serving(app) as client:
        run = await client.start("agent", "hello", thread=thread, request_id="r1")
        result = await within(run.result())
        again = await client.start("agent", "hello", thread=thread, request_id="r1")
        repeated = await within(again.result())
        sent = await within(client.send(thread, "hello", request_id="r1"))
        said = await people_said(client, thread)

    assert run.id == thread_workflow(thread)
    assert result.output == "1: hello"
    assert [repeated, sent] == [result] * 2
    assert said == ["hello"]
    assert model.calls == 1


async def test_a_start_on_a_busy_thread_is_refused_and_its_repetition_joins(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(holding_first, holding(signals))

    async with bench.serving(app) as client:
        run = await client.start("agent", "hello", thread=thread, request_id="r1")
        await seen(signals.began)
        with pytest.raises(ThreadBusy) as other_text:
            await client.start("agent", "goodbye", thread=thread, request_id="r2")
        with pytest.raises(ThreadBusy):
            await client.start("agent", "hello", thread=thread)
        joined = await client.start("agent", "hello", thread=thread, request_id="r1")
        signals.release.set()
        results = [await within(run.result()), await within(joined.result())]
        said = await people_said(client, thread)

    assert other_text.value.code == "CL508"
    assert {result.output for result in results} == {"1: hello"}
    assert CALLED == {"hold": 1}
    # What was refused was not said.
    assert said == ["hello"]


async def test_a_start_that_was_refused_can_be_sent(bench: Bench, signals: Signals) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(holding_first, holding(signals))

    async with bench.serving(app) as client:
        run = await client.start("agent", "hello", thread=thread, request_id="r1")
        await seen(signals.began)
        with pytest.raises(ThreadBusy):
            await client.start("agent", "and?", thread=thread, request_id="r2")
        sent = asyncio.create_task(client.send(thread, "and?", request_id="r2"))
        await bench.taken_up(thread, 1)
        signals.release.set()
        reply = await within(sent)
        await within(run.result())
        said = await people_said(client, thread)

    assert reply.output == "2: and?"
    assert said == ["hello", "and?"]


@pytest.mark.parametrize(
    "given",
    [{}, {"id": "both", "thread": "both"}, {"id": "one", "request_id": "r1"}, {"request_id": "r1"}],
    ids=["neither", "both", "a request without a thread", "only a request"],
)
async def test_a_start_needs_an_id_or_a_thread_and_not_both(
    bench: Bench, given: dict[str, str]
) -> None:
    client = AgentClient(bench.temporal, bench.settings)

    with pytest.raises(InvalidRunId) as refused:
        await client.start("agent", "hello", **given)  # type: ignore[arg-type]
    rows = await bench.sql("select thread_id from agent_threads")
    await client.close()

    assert refused.value.code == "CL102"
    assert rows == []


# --- over the end of an execution


@tool(effect=Effect.IDEMPOTENT)
async def fetch(number: int) -> str:
    CALLED["fetch"] += 1
    return "fetched"


FETCHING = 5
"""Turns at which the model says much, over a history of 4 MiB and more."""


def fetching_first(request: ModelRequest) -> Completion:
    turn = sum(one.role == "assistant" for one in request.messages)
    if turn < FETCHING:
        return call(("fetch", {"number": turn}), text=LONG)
    return echo(request)


async def test_requests_are_neither_lost_nor_doubled_over_a_continue_as_new(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")
    later: list[asyncio.Task[object]] = []

    def answer(request: ModelRequest) -> Completion:
        turn = sum(one.role == "assistant" for one in request.messages)
        if turn == 1 and not signals.began.is_set():
            signals.began.set()
            signals.release.wait(SOON)
        return fetching_first(request)

    app, model = computed_app(answer, fetch)
    async with (
        bench.serving(app) as client,
        AgentClient(bench.temporal, bench.settings) as another,
    ):
        first = asyncio.create_task(client.send(thread, "much", agent="agent", request_id="r1"))
        await seen(signals.began)
        later += [
            asyncio.create_task(sender.send(thread, text, request_id=request_id))
            for sender, text, request_id in (
                (another, "much", "r1"),
                (client, "second", "r2"),
                (another, "second", "r2"),
                (client, "third", "r3"),
            )
        ]
        await bench.taken_up(thread, 5)
        signals.release.set()
        reply = await within(first)
        joined, second, second_again, third = await within(asyncio.gather(*later))
        run = client.thread(thread).run
        result = await within(run.result())
        after = await within(client.send(thread, "second", request_id="r2"))
        described = await run.describe()
        messages = await client.thread(thread).messages()
        runs = await bench.sql("select run_key from agent_runs")

    info = described.raw_description.workflow_execution_info
    assert info.first_run_id != described.run_id, "it never continued as new"
    assert len(runs) == 1
    assert reply == joined
    assert (reply.output, reply.steps) == ("1: much", FETCHING + 1)
    assert second == second_again == after
    assert {second.output[3:], third.output[3:]} == {"second", "third"}  # type: ignore[attr-defined]
    assert result.steps == 1
    said = [one.text for one in messages if one.role == "user"]
    assert (said[0], sorted(said[1:])) == ("much", ["second", "third"])
    assert [one.step for one in messages if one.role == "assistant"] == list(range(FETCHING + 3))
    assert (model.calls, CALLED["fetch"]) == (FETCHING + 3, FETCHING)


_OPENING_WAITS = """
create function wait_for_the_test() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(1); return new; end $$;
create trigger opening before insert on agent_runs
    for each row execute function wait_for_the_test();
"""


async def test_a_request_that_comes_while_the_next_execution_opens_is_answered_once(
    bench: Bench, signals: Signals
) -> None:
    """Who waits says it again to the next execution, which has it already."""
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if sum(one.role == "assistant" for one in request.messages) == 1:
            signals.began.set()
            signals.release.wait(SOON)
        return fetching_first(request)

    app, model = computed_app(answer, fetch)
    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "much", agent="agent", request_id="r1"))
        await seen(signals.began)
        second = asyncio.create_task(client.send(thread, "more", request_id="r2"))
        await bench.taken_up(thread, 2)
        run = client.thread(thread).run
        async with await AsyncConnection.connect(bench.settings.database_url) as lock:
            await lock.execute(_OPENING_WAITS)
            await lock.commit()
            await lock.execute("select pg_advisory_xact_lock(1)")
            signals.release.set()
            await eventually(lambda: rolled_over(run))
            await bench.taken_up(thread, 2)
        replies = await within(asyncio.gather(first, second))
        result = await within(run.result())
        events = (await bench.history(run.id)).events

    scheduled = [event.activity_task_scheduled_event_attributes for event in events]
    asked_for = [one.activity_id for one in scheduled if one.activity_type.name == CALL_MODEL]
    assert [reply.output for reply in replies] == ["1: much", "2: more"]
    assert result == replies[1]
    assert len(asked_for) == len(set(asked_for))
    assert (model.calls, CALLED["fetch"]) == (FETCHING + 2, FETCHING)


async def test_a_start_is_joined_after_its_run_continued_as_new(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        turn = sum(one.role == "assistant" for one in request.messages)
        if turn == FETCHING:
            signals.began.set()
            signals.release.wait(SOON)
        return fetching_first(request)

    app, _ = computed_app(answer, fetch)
    async with bench.serving(app) as client:
        run = await client.start("agent", "much", thread=thread, request_id="r1")
        await seen(signals.began)
        joined = await client.start("agent", "much", thread=thread, request_id="r1")
        described = await run.describe()
        signals.release.set()
        results = [await within(one.result()) for one in (run, joined)]

    info = described.raw_description.workflow_execution_info
    assert info.first_run_id != described.run_id, "it never continued as new"
    assert {result.output for result in results} == {"1: much"}
    assert CALLED["fetch"] == FETCHING
