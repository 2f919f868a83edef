"""Conversations: many runs, one after the other or at once, and nothing lost, doubled or mixed."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RetryConfig

from commitline import Agent, App, Effect, ThreadMessage, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.encoding import pack
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.activities.model.trimming_model import TrimmingModel
from commitline.client import AgentClient
from commitline.errors import (
    ConfigurationError,
    ContextWindowExceeded,
    InvalidRunId,
    MaxStepsExceeded,
    ModelRejected,
    ModelUnavailable,
    RunFailed,
    StaleThread,
    ThreadDeleted,
    ThreadNotFound,
)
from commitline.identity import thread_workflow
from commitline.ledger import Outcome
from commitline.workflows import RunInput

from .bench import Bench, eventually, fresh_id
from .playing import SOON, Says, Signals, asked, computed_app, seen, within

CALLED: Counter[str] = Counter()


def last(request: ModelRequest) -> str:
    """Return the role of the newest message."""
    return request.messages[-1].role


def echo(request: ModelRequest) -> Completion:
    return say(f"re: {asked(request)[-1]}")


def charging(request: ModelRequest) -> Completion:
    """Charge for each thing that is asked, then say so."""
    if last(request) == "user":
        return call(("charge", {"what": asked(request)[-1]}))
    return echo(request)


@tool(effect=Effect.IDEMPOTENT)
async def charge(what: str) -> str:
    CALLED[what] += 1
    return f"charged {what}"


def holding(signals: Signals, effect: Effect = Effect.AT_MOST_ONCE) -> Tool:
    """Make a tool that takes as long as the test wants, and can be cancelled."""

    @tool(effect=effect, name="hold")
    async def hold() -> str:
        CALLED["hold"] += 1
        signals.began.set()
        while not signals.release.is_set():  # noqa: ASYNC110 - it runs on another loop
            await asyncio.sleep(0.02)
        return "held"

    return hold


def outline(messages: Sequence[ThreadMessage]) -> list[tuple[int, str, str]]:
    """Return version, role and what was said, called or told, of each message."""
    return [
        (
            one.version,
            one.role,
            one.text
            or " ".join(
                [found.name for found in one.calls] or [told.status for told in one.results]
            ),
        )
        for one in messages
    ]


# --- sending


async def test_a_send_starts_a_run_under_the_threads_name_and_returns_the_reply(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(charging, charge)

    async with bench.serving(app) as client:
        reply = await within(client.send(thread, "apples", agent="agent"))
        await client.run(f"thread:{thread}").result()
        status = await client.run(f"thread:{thread}").status()
        messages = await client.thread(thread).messages()

    assert (reply.output, reply.steps) == ("re: apples", 2)
    assert status.state == "completed"
    assert outline(messages) == [
        (1, "user", "apples"),
        (1, "assistant", "charge"),
        (2, "tool", "ok"),
        (2, "assistant", "re: apples"),
    ]
    assert {one.run_key for one in messages} == {status.run_key}
    assert [one.step for one in messages] == [0, 0, 1, 1]


async def test_the_next_send_goes_on_with_the_conversation_in_a_run_of_its_own(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")
    app, model = computed_app(charging, charge)

    async with bench.serving(app) as client:
        first = await within(client.send(thread, "apples", agent="agent"))
        await client.thread(thread).run.result()
        second = await within(client.send(thread, "pears"))
        messages = await client.thread(thread).messages()

    assert [first.output, second.output] == ["re: apples", "re: pears"]
    assert [one.version for one in messages] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert len({one.run_key for one in messages}) == 2
    assert asked(model.shown[-1]) == ["apples", "pears"]
    assert [one.role for one in model.shown[-1].messages] == [
        *("user", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool"),
    ]


async def test_what_is_sent_meanwhile_joins_the_run_under_way_and_comes_after_it(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request)[-1] == "first" and last(request) == "user":
            return call(("hold", {}))
        return charging(request) if asked(request)[-1] != "first" else echo(request)

    app, _ = computed_app(answer, charge, holding(signals))
    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "first", agent="agent"))
        await seen(signals.began)
        second = asyncio.create_task(client.send(thread, "second"))
        third = asyncio.create_task(client.send(thread, "third"))
        await bench.taken_up(thread, 3)
        signals.release.set()
        replies = await within(asyncio.gather(first, second, third))
        messages = await client.thread(thread).messages()
        runs = await bench.sql("select run_key from agent_runs")

    assert sorted(reply.output for reply in replies) == ["re: first", "re: second", "re: third"]
    assert replies[1].output == "re: second"
    assert len(runs) == 1
    said = [text for _, role, text in outline(messages) if role == "user"]
    assert said[0] == "first"
    assert sorted(said[1:]) == ["second", "third"]
    # A message's turns come to their end before the next message.
    assert [text for _, role, text in outline(messages) if role != "user"] == [
        *("hold", "ok", "re: first"),
        *("charge", "ok", f"re: {said[1]}"),
        *("charge", "ok", f"re: {said[2]}"),
    ]
    assert [one.step for one in messages] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [reply.steps for reply in replies] == [2, 2, 2]


async def test_many_senders_at_once_each_get_their_own_answer(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request) == ["first"] and last(request) == "user":
            return call(("hold", {}))
        return echo(request)

    app, _ = computed_app(answer, holding(signals))
    texts = [f"number {index}" for index in range(14)]
    # More than may wait in one run (10), for longer than the SDK itself tries again: here a second.
    hasty = await Client.connect(
        bench.temporal.service_client.config.target_host,
        retry_config=RetryConfig(max_elapsed_time_millis=1_000),
    )
    async with Bench(hasty, bench.settings).serving(app) as client:
        first = asyncio.create_task(client.send(thread, "first", agent="agent"))
        await seen(signals.began)
        others = [asyncio.create_task(client.send(thread, text)) for text in texts]
        done, _ = await asyncio.wait(others, timeout=4)
        errors = [one.exception() for one in done]
        signals.release.set()
        await within(asyncio.gather(first, *others, return_exceptions=True))
        messages = await client.thread(thread).messages()

    assert [str(one) for one in errors] == []
    assert [one.result().output for one in others] == [f"re: {text}" for text in texts]
    assert sorted(one.text for one in messages if one.role == "user") == ["first", *sorted(texts)]


async def test_a_sender_who_gives_up_waiting_is_let_go_and_the_request_is_answered(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        return call(("hold", {})) if last(request) == "user" else echo(request)

    app, _ = computed_app(answer, holding(signals))
    async with bench.serving(app) as client:
        sender = asyncio.create_task(client.send(thread, "first", agent="agent", request_id="r1"))
        await seen(signals.began)
        sender.cancel()
        let_go, _ = await asyncio.wait({sender}, timeout=SOON)
        signals.release.set()
        reply = await within(client.send(thread, "first", request_id="r1"))
        await asyncio.wait({sender}, timeout=SOON)

    assert let_go == {sender}
    assert sender.cancelled()
    assert reply.output == "re: first"
    assert CALLED == {"hold": 1}


async def test_another_agent_goes_on_with_the_conversation(bench: Bench) -> None:
    thread = fresh_id("thread")
    cheap, strong = Says(charging, "cheap"), Says(echo, "strong")
    app = App(
        [
            Agent("clerk", cheap, "Charge.", tools=[charge]),
            Agent("manager", strong, "Look after it."),
        ]
    )

    async with bench.serving(app) as client:
        await within(client.send(thread, "apples", agent="clerk"))
        await client.thread(thread).run.result()
        managed = await within(client.send(thread, "is that right?", agent="manager"))
        await client.thread(thread).run.result()
        # Who began it answers where nobody is named.
        back = await within(client.send(thread, "pears"))
        messages = await client.thread(thread).messages()

    assert managed.output == "re: is that right?"
    seen_by_it = [one.role for one in strong.shown[0].messages]
    assert seen_by_it == ["user", "assistant", "tool", "assistant", "user"]
    assert strong.shown[0].instructions == "Look after it."
    assert (back.output, len(cheap.shown), len(strong.shown)) == ("re: pears", 4, 1)
    assert [one.text for one in messages if one.role == "user"] == [
        *("apples", "is that right?", "pears"),
    ]


async def test_the_agent_that_is_named_answers_though_the_last_run_is_still_closing(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")
    names = ["clerk", "manager"]
    app = App([Agent(name, ScriptedModel(name, [say(name)] * 8), "") for name in names])

    async with bench.serving(app) as client:
        replies = [await within(client.send(thread, "hello", agent=name)) for name in names * 4]

    assert [reply.output for reply in replies] == names * 4


async def test_a_runs_own_conversation_can_be_gone_on_with(bench: Bench) -> None:
    app, _ = computed_app(charging, charge)

    async with bench.serving(app) as client:
        ran = await bench.start(client, "apples")
        thread = await client.run(ran.id).thread()
        reply = await within(client.send(thread.id, "pears"))
        messages = await thread.messages()

    assert reply.output == "re: pears"
    assert [one.text for one in messages if one.role == "user"] == ["apples", "pears"]


# --- what is refused


async def test_an_unknown_thread_is_not_begun_without_an_agent(bench: Bench) -> None:
    client = AgentClient(bench.temporal, bench.settings)

    with pytest.raises(ThreadNotFound) as sent:
        await within(client.send("nobody-knows", "hello"))
    with pytest.raises(ThreadNotFound):
        await client.thread("nobody-knows").messages()
    with pytest.raises(ThreadNotFound):
        await client.thread("nobody-knows").delete()
    rows = await bench.sql("select * from agent_threads")
    await client.close()

    assert sent.value.code == "CL212"
    assert rows == []


@pytest.mark.parametrize(
    "thread",
    ["", " ", "é", "a\nb", "a\0b", "x" * 174],
    ids=["nothing", "blank", "not ASCII", "a line feed", "a nul", "too long"],
)
async def test_what_cannot_be_a_threads_id_is_refused_before_anything_is_written(
    bench: Bench, thread: str
) -> None:
    client = AgentClient(bench.temporal, bench.settings)

    with pytest.raises(InvalidRunId) as sent:
        await within(client.send(thread, "hello", agent="agent"))
    with pytest.raises(InvalidRunId):
        await client.start("agent", "hello", thread=thread)
    rows = await bench.sql("select * from agent_threads")
    await client.close()

    assert sent.value.code == "CL102"
    assert rows == []


async def test_a_thread_id_of_the_greatest_length_works(bench: Bench) -> None:
    thread = fresh_id("thread").ljust(173, "x")
    app, _ = computed_app(echo)

    async with bench.serving(app) as client:
        reply = await within(client.send(thread, "hello", agent="agent"))

    assert reply.output == "re: hello"


async def test_a_run_may_not_take_the_id_of_a_conversations_runs(bench: Bench) -> None:
    client = AgentClient(bench.temporal, bench.settings)
    taken = f"thread:{fresh_id('thread')}"

    try:
        with pytest.raises(InvalidRunId):
            await client.start("agent", "go", id=taken)
    finally:
        await client.close()


async def test_an_agent_that_nobody_serves_is_told_and_does_not_keep_its_sender(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(echo)

    async with bench.serving(app) as client:
        sender = asyncio.create_task(client.send(thread, "hello", agent="nobody"))
        done, _ = await asyncio.wait({sender}, timeout=SOON)
        runs = await bench.sql("select run_key from agent_runs")
        sender.cancel()
        await client.thread(thread).delete()  # what it sends again ends by that
        await asyncio.wait({sender}, timeout=SOON)

    assert done == {sender}, "the sender waits for ever, starting one run after the other"
    assert isinstance(sender.exception(), ConfigurationError)
    assert runs == []


# --- deleting


async def test_a_thread_that_is_deleted_while_a_tool_works_stays_deleted(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        return call(("hold", {})) if last(request) == "user" else echo(request)

    app, model = computed_app(answer, holding(signals))
    async with bench.serving(app) as client:
        sender = asyncio.create_task(client.send(thread, "a secret", agent="agent"))
        await seen(signals.began)
        await client.thread(thread).delete()
        signals.release.set()
        with pytest.raises(ThreadDeleted) as failed:
            await within(sender)
        with pytest.raises(ThreadDeleted):
            await client.run(thread_workflow(thread)).result()
        with pytest.raises(ThreadDeleted):
            await within(client.send(thread, "are you there?"))
        with pytest.raises(ThreadDeleted):
            await within(client.send(thread, "a secret", agent="agent"))
        with pytest.raises(ThreadDeleted):
            await client.start("agent", "more", thread=thread)
        with pytest.raises(ThreadDeleted):
            await client.thread(thread).messages()
        await client.thread(thread).delete()
        actions = await client.run(thread_workflow(thread)).actions()
        left = {
            table: await bench.sql(f"select count(*) from {table}")
            for table in ("agent_messages", "agent_requests", "agent_values")
        }

    assert failed.value.code == "CL211"
    assert [(one.tool, one.state, one.result) for one in actions] == [("hold", "ok", '"held"')]
    assert CALLED == {"hold": 1}
    assert len(model.shown) == 1
    assert left == {"agent_messages": [(0,)], "agent_requests": [(0,)], "agent_values": [(0,)]}


async def test_a_thread_that_is_deleted_while_the_model_answers_gets_no_message(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        signals.began.set()
        signals.release.wait(SOON)
        return echo(request)

    app, _ = computed_app(answer)
    async with bench.serving(app) as client:
        sender = asyncio.create_task(client.send(thread, "a secret", agent="agent"))
        await seen(signals.began)
        await client.thread(thread).delete()
        signals.release.set()
        with pytest.raises(ThreadDeleted):
            await within(sender)
        left = await bench.sql("select message from agent_messages")
        requests = await bench.sql("select message from agent_requests")

    assert (left, requests) == ([], [])


# --- what goes wrong in a request, and who is told


async def test_a_request_that_fails_fails_its_sender_and_the_next_one_is_answered(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request)[-1] != "too much":
            return echo(request)
        if last(request) == "user":
            return call(("hold", {}))
        return call(("charge", {"what": f"{len(request.messages)}"}))

    app, _ = computed_app(answer, charge, holding(signals), max_steps=2)
    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "too much", agent="agent"))
        await seen(signals.began)
        second = asyncio.create_task(client.send(thread, "hello"))
        await bench.taken_up(thread, 2)
        signals.release.set()
        with pytest.raises(MaxStepsExceeded) as failed:
            await within(first)
        reply = await within(second)
        messages = await client.thread(thread).messages()

    assert failed.value.code == "CL502"
    assert reply.output == "re: hello"
    # The call of the last turn has its result, in spite of the end of its run.
    assert outline(messages)[-4:] == [
        (2, "assistant", "charge"),
        (3, "tool", "ok"),
        (3, "user", "hello"),
        (3, "assistant", "re: hello"),
    ]
    assert CALLED == {"hold": 1, "3": 1}


async def test_a_model_that_rejects_fails_its_sender_only(bench: Bench, signals: Signals) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request)[-1] == "hello":
            return echo(request)
        signals.began.set()
        signals.release.wait(SOON)
        raise ModelRejected("the content policy")

    app, _ = computed_app(answer)
    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "bad", agent="agent"))
        await seen(signals.began)
        second = asyncio.create_task(client.send(thread, "hello"))
        await bench.taken_up(thread, 2)
        signals.release.set()
        with pytest.raises(ModelRejected, match="content policy"):
            await within(first)
        reply = await within(second)
        messages = await client.thread(thread).messages()

    assert reply.output == "re: hello"
    assert outline(messages) == [(1, "user", "hello"), (1, "assistant", "re: hello")]


async def test_a_conversation_that_outgrows_its_model_fails_by_name_or_goes_on_trimmed(
    bench: Bench,
) -> None:
    def narrow(request: ModelRequest) -> Completion:
        if len(request.messages) > 2:
            raise ContextWindowExceeded("two messages are too many")
        return echo(request)

    plain, trimming = fresh_id("thread"), fresh_id("thread")
    agents = [
        Agent("plain", Says(narrow, "plain"), "Do it."),
        Agent("trimming", TrimmingModel(Says(narrow, "trimmed")), "Do it."),
    ]
    async with bench.serving(App(agents)) as client:
        await within(client.send(plain, "one", agent="plain"))
        with pytest.raises(ContextWindowExceeded, match="CL403"):
            await within(client.send(plain, "two"))
        for text in ("one", "two"):
            last_reply = await within(client.send(trimming, text, agent="trimming"))
        messages = await client.thread(trimming).messages()

    assert last_reply.output == "re: two"
    assert [one.text for one in messages] == ["one", "re: one", "two", "re: two"]


async def test_a_request_whose_model_failed_goes_on_when_it_is_sent_again(bench: Bench) -> None:
    CALLED.clear()
    thread = fresh_id("thread")
    broken = [True]

    def answer(request: ModelRequest) -> Completion:
        turn = sum(one.role == "assistant" for one in request.messages)
        if turn < 2:
            return call(("charge", {"what": f"{turn}"}))
        if broken[0]:
            raise ModelUnavailable("overloaded")
        return say(" ".join(told.content for one in request.messages for told in one.results))

    model = Says(answer)
    app = App([Agent("agent", model, "Do it.", tools=[charge], model_tries=1)])
    async with bench.serving(app) as client:
        with pytest.raises(ModelUnavailable) as failed:
            await within(client.send(thread, "two things", agent="agent", request_id="r1"))
        broken[0] = False
        reply = await within(client.send(thread, "two things", request_id="r1"))
        messages = await client.thread(thread).messages()

    assert failed.value.code == "CL401"
    assert reply.output == '"charged 0" "charged 1"'
    assert CALLED == {"0": 1, "1": 1}
    assert len(model.shown) == 4  # three by the first run, one by the second
    assert outline(messages) == [
        (1, "user", "two things"),
        (1, "assistant", "charge"),
        (2, "tool", "ok"),
        (2, "assistant", "charge"),
        (3, "tool", "ok"),
        (3, "assistant", '"charged 0" "charged 1"'),
    ]


async def test_a_stopped_runs_sender_is_told_and_the_next_send_tells_what_is_unknown(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request)[-1] == "first" and last(request) == "user":
            return call(("charge", {"what": "apples"}), ("hold", {}))
        return echo(request)

    app, model = computed_app(answer, charge, holding(signals))
    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "first", agent="agent"))
        await seen(signals.began)
        run = client.run(thread_workflow(thread))
        await eventually(lambda: _done(client, thread, "charge"))
        stopped = await run.stop(reason="wrong customer")
        with pytest.raises(RunFailed) as failed:
            await within(first)
        reply = await within(client.send(thread, "second"))
        messages = await client.thread(thread).messages()

    assert stopped.state == "canceled"
    assert "canceled" in failed.value.message
    assert reply.output == "re: second"
    assert CALLED == {"apples": 1, "hold": 1}
    assert outline(messages) == [
        (1, "user", "first"),
        (1, "assistant", "charge hold"),
        (2, "tool", "ok unknown"),
        (2, "user", "second"),
        (2, "assistant", "re: second"),
    ]
    told = model.shown[-1].messages[2].results
    assert [one.name for one in told] == ["charge", "hold"]
    assert json.loads(told[0].content) == "charged apples"
    assert "may or may not have happened" in told[1].content


async def _done(client: AgentClient, thread: str, name: str) -> bool:
    found = await client.run(thread_workflow(thread)).actions()
    return any(one.tool == name and one.state == "ok" for one in found)


async def test_what_a_stopped_run_left_unknown_is_told_once_it_is_settled(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request)[-1] == "first" and last(request) == "user":
            return call(("hold", {}))
        return say(f"re: {asked(request)[-1]}"[:30])

    app, model = computed_app(answer, holding(signals))
    async with bench.serving(app) as client:
        first = asyncio.create_task(client.send(thread, "first", agent="agent"))
        await seen(signals.began)
        run = client.run(thread_workflow(thread))
        await run.stop()
        with pytest.raises(RunFailed):
            await within(first)
        (parked,) = await run.actions()
        await within(client.send(thread, "second"))
        ledger = await client.ledger()
        await ledger.settle(parked.key, Outcome.ok('"held"'), by="ada")
        await within(client.send(thread, "third"))
        await within(client.send(thread, "fourth"))

    notices = [
        [text for text in asked(request) if text.startswith("[notice]")] for request in model.shown
    ]
    assert [len(one) for one in notices] == [0, 0, 1, 1]
    assert "settled by ada: it happened" in notices[-1][0]


# --- two runs on one conversation, which the workflow id keeps from happening


async def _second_run(bench: Bench, thread: str, request_id: str) -> WorkflowHandle[Any, Any]:
    """Start a run of the conversation under another workflow id."""
    given = RunInput("agent", thread_id=thread, request_id=request_id)
    return await bench.temporal.start_workflow(
        "AgentRun", pack(given), id=fresh_id("other"), task_queue=bench.settings.task_queue
    )


async def test_of_two_runs_from_one_version_one_commits_and_the_other_is_stale(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")
    slow = threading.Event()

    def answer(request: ModelRequest) -> Completion:
        if asked(request) == ["slow"]:
            slow.set()
            signals.release.wait(SOON)
        return echo(request)

    app, _ = computed_app(answer)
    async with bench.serving(app) as client:
        handle = client.thread(thread)
        await handle.receive("slow", agent="agent", request_id="slow")
        other = await _second_run(bench, thread, "slow")
        await seen(slow)
        reply = await within(client.send(thread, "quick", agent="agent"))
        signals.release.set()
        with pytest.raises(StaleThread) as failed:
            await within(client.run(other.id).result())
        between = outline(await handle.messages())
        again = await within(client.send(thread, "slow", request_id="slow"))
        await within(handle.run.result())  # its reply comes before it is closed
        after = outline(await handle.messages())
        runs = await bench.sql("select workflow_id, state from agent_runs order by created_at")

    assert failed.value.code == "CL210"
    assert reply.output == "re: quick"
    assert between == [(1, "user", "quick"), (1, "assistant", "re: quick")]
    assert again.output == "re: slow"
    assert after == [*between, (2, "user", "slow"), (2, "assistant", "re: slow")]
    assert runs == [
        (other.id, "ended"),
        (thread_workflow(thread), "ended"),
        (thread_workflow(thread), "ended"),
    ]


async def test_a_run_that_goes_on_with_a_conversation_ends_the_one_that_it_took_over(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request) == ["first"] and last(request) == "user":
            return call(("charge", {"what": "apples"}), ("hold", {}))
        return say(f"re: {asked(request)[-1]}"[:30])

    @tool(effect=Effect.AT_MOST_ONCE)
    def hold() -> str:
        CALLED["hold"] += 1
        signals.began.set()
        signals.release.wait(SOON)
        return "held"

    app, model = computed_app(answer, charge, hold)
    async with bench.serving(app) as client:
        handle = client.thread(thread)
        first = asyncio.create_task(client.send(thread, "first", agent="agent"))
        await seen(signals.began)
        await eventually(lambda: _done(client, thread, "charge"))
        await handle.receive("second", agent=None, request_id="second")
        other = await _second_run(bench, thread, "second")
        taken = await within(client.run(other.id).result())
        signals.release.set()
        with pytest.raises(StaleThread):
            await within(first)
        actions = await client.run(thread_workflow(thread)).actions()
        third = await within(client.send(thread, "third"))
        messages = await handle.messages()

    assert taken.output == "re: second"
    assert third.output.startswith("re: ")
    assert CALLED == {"apples": 1, "hold": 1}
    # What the first run did stands, the late answer among it, and the model is told of it.
    assert [(one.tool, one.state) for one in actions] == [("charge", "ok"), ("hold", "ok")]
    assert outline(messages)[:5] == [
        (1, "user", "first"),
        (1, "assistant", "charge hold"),
        (2, "tool", "ok unknown"),
        (2, "user", "second"),
        (2, "assistant", "re: second"),
    ]
    assert sum("settled by its own late answer" in text for text in asked(model.shown[-1])) == 1
    assert [one.text for one in messages if one.role == "user" and one.request_id] == [
        *("first", "second", "third"),
    ]


async def test_a_run_on_a_thread_whose_request_never_comes_leaves_no_trace_in_it(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")
    app, _ = computed_app(echo)

    async with bench.serving(app) as client:
        await within(client.send(thread, "hello", agent="agent"))
        other = await _second_run(bench, thread, "never-received")
        with pytest.raises(ThreadNotFound, match="never-received"):
            await within(client.run(other.id).result())
        messages = await client.thread(thread).messages()

    assert outline(messages) == [(1, "user", "hello"), (1, "assistant", "re: hello")]
