"""Agents as tools: a run of its own below the one that calls, under keys made of that one's."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus

from commitline import Agent, App, Effect, Tool, ToolContext, tool
from commitline.activities.app.agent import AgentTool
from commitline.activities.contract.conversation import Completion, FinishReason
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, ScriptedModel, call, say
from commitline.client import AgentClient
from commitline.errors import (
    Fenced,
    ModelRejected,
    ResetRefused,
    RunFailed,
    RunNotFound,
    RunNotRunning,
)
from commitline.identity import RunKey, within_run
from commitline.ledger import Action, ActionLedger, ActionRequest, ledger_pool
from commitline.operating.decisions import call_named
from commitline.tests.builders import action_request, attempt

from .bench import Bench, eventually, fresh_id
from .playing import HANGS, LONG, SOON, Signals, seen

CALLED: Counter[str] = Counter()


@tool(effect=Effect.IDEMPOTENT)
async def note(ctx: ToolContext, what: str) -> str:
    """Note something."""
    CALLED[what] += 1
    return f"noted {what}"


def holding(signals: Signals, effect: Effect = Effect.IDEMPOTENT) -> Tool:
    @tool(effect=effect, name="hold")
    async def hold(what: str) -> str:
        """Act, and come back when the test wants."""
        CALLED[f"hold {what}"] += 1
        signals.began.set()
        await asyncio.to_thread(signals.release.wait, HANGS)
        return f"held {what}"

    return hold


def prompt_of(request: ModelRequest) -> str:
    return request.messages[0].text


def notes_twice(request: ModelRequest) -> Completion:
    """Two steps that name what they were asked, then an answer that does."""
    turn = sum(message.role == "assistant" for message in request.messages)
    prompt = prompt_of(request)
    if turn < 2:
        return call(("note", {"what": f"{prompt} {turn}"}))
    told = [json.loads(r.content) for m in request.messages for r in m.results]
    return say(f"{prompt}: {', '.join(told)}")


def agent(name: str, answers: Sequence[Answer], *tools: Tool | AgentTool) -> Agent:
    return Agent(name, ScriptedModel(f"{name}'s", answers), "Do it.", tools=tools)


def researcher(*answers: Answer, tools: Sequence[Tool | AgentTool] = (note,)) -> AgentTool:
    below = agent("researcher", answers or [notes_twice] * 3, *tools)
    return below.as_tool(description="Finds things out.", summary="Find out {prompt}")


def calling(*prompts: str) -> Completion:
    return call(*(("researcher", {"prompt": prompt}) for prompt in prompts))


def app_of(below: AgentTool, *answers: Answer) -> App:
    return App([agent("agent", answers, below)])


def where(actions: Sequence[Action]) -> dict[str, str | None]:
    """The rows: where each stands, seen from the run that was started, and its result."""
    return {within_run(one.run_key, one.position): one.result for one in actions}


async def children(bench: Bench) -> list[tuple[object, ...]]:
    return await bench.sql(
        "select run_key, workflow_id, owner, state from agent_runs"
        " where parent_key is not null order by run_key"
    )


async def test_two_in_one_message_have_rows_of_their_own_and_each_its_answer(
    bench: Bench, signals: Signals
) -> None:
    app = app_of(researcher(), calling("a", "b"), say("Done."))

    async with bench.serving(app) as client:
        ran = await bench.start(client)
        key = await bench.run_key(client.run(ran.id))
        (first, second) = await children(bench)
        child = client.run(str(first[1]))
        status, of_child = await child.status(), await child.actions()
        answer = await child.result()
        shown = (await client.run(ran.id).status()).progress
        with pytest.raises(ResetRefused):
            await child.reset(to_step=0)

    assert where(ran.actions) == {
        "0.0/0.0": '"noted a 0"',
        "0.1/0.0": '"noted b 0"',
        "0.0/1.0": '"noted a 1"',
        "0.1/1.0": '"noted b 1"',
    }
    assert [(r.position, r.status, json.loads(r.content)) for r in ran.results] == [
        ("0.0", "ok", "a: noted a 0, noted a 1"),
        ("0.1", "ok", "b: noted b 0, noted b 1"),
    ]
    assert (first[0], second[0]) == (f"{key}/0.0", f"{key}/0.1")
    assert str(first[1]).startswith(f"{ran.id}/0.0/")
    assert (status.run_key, status.state) == (first[0], "completed")
    assert [one.key for one in of_child] == [f"{key}/0.0:0.0", f"{key}/0.0:1.0"]
    assert answer.output == "a: noted a 0, noted a 1"
    assert shown is not None
    assert [(c.summary, c.workflow_id) for c in shown.calls] == [
        ("Find out a", first[1]),
        ("Find out b", second[1]),
    ]
    assert CALLED == {"a 0": 1, "a 1": 1, "b 0": 1, "b 1": 1}


async def test_a_worker_that_goes_and_a_reset_change_no_key_and_repeat_no_effect(
    bench: Bench, signals: Signals
) -> None:
    below = researcher(
        call(("note", {"what": "first"})),
        call(("hold", {"what": "it"})),
        lambda request: say(f"{prompt_of(request)} is held"),
        tools=[note, holding(signals)],
    )
    app = app_of(below, calling("a", "b"), say("Done."))
    brief = Bench(bench.temporal, bench.settings.model_copy(update={"grace_seconds": 0.1}))

    async with brief.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())

        async def both() -> bool:
            return CALLED["hold it"] == 2

        await eventually(both, seconds=SOON)
    signals.release.set()
    async with bench.serving(app) as client:
        ran = await bench.outcome(client.run(run.id))
        before, count = await children(bench), CALLED.copy()
        again = await bench.rerun(client, run.id)
    after = await children(bench)

    assert where(ran.actions) == {
        "0.0/0.0": '"noted first"',
        "0.1/0.0": '"noted first"',
        "0.0/1.0": '"held it"',
        "0.1/1.0": '"held it"',
    }
    assert [json.loads(result.content) for result in ran.results] == ["a is held", "b is held"]
    assert [one.key for one in again.actions] == [one.key for one in ran.actions]
    assert again.results == ran.results
    assert [row[0] for row in after] == [row[0] for row in before]
    assert {row[1] for row in after}.isdisjoint({row[1] for row in before})
    assert (count, CALLED["first"]) == (CALLED, 2)


def claim_in(run_key: str, owner: str) -> ActionRequest:
    return action_request(RunKey(run_key), "9.0", tool="note", owner=owner)


async def claim(bench: Bench, run_key: str, owner: str) -> None:
    by = attempt(since=datetime.now(tz=UTC), lease=timedelta(seconds=1))
    async with ledger_pool(bench.settings.database_url, size=1) as pool:
        await ActionLedger(pool).claim(claim_in(run_key, owner), by)


def two_levels(tool: Tool) -> App:
    """An agent that calls an agent that calls an agent that calls the tool."""
    lowest = agent("holder", [call(("hold", {"what": "it"})), say("held")], tool)
    middle = researcher(
        call(("holder", {"prompt": "hold"})),
        say("it is held"),
        tools=[lowest.as_tool(description="Holds.")],
    )
    return app_of(middle, calling("deep"), say("Done."))


async def test_a_parent_that_is_reset_ends_what_it_had_called_and_takes_its_work_over(
    bench: Bench, signals: Signals
) -> None:
    async with bench.serving(two_levels(holding(signals))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        before = await children(bench)
        signals.began.clear()
        await bench.reset(run.id)
        await seen(signals.began)
        (upper, lower) = await children(bench)
        with pytest.raises(Fenced):
            await claim(bench, str(upper[0]), str(before[0][1]))
        with pytest.raises(Fenced):
            await claim(bench, str(lower[0]), str(before[1][1]))
        signals.release.set()
        ran = await bench.outcome(run)
        former = [await client.run(str(row[1])).describe() for row in before]

    (action,) = ran.actions
    assert within_run(action.run_key, action.position) == "0.0/0.0/0.0"
    assert (action.state, action.result, action.tries) == ("ok", '"held it"', 2)
    assert CALLED == {"hold it": 2}  # under one idempotency key
    assert json.loads(ran.results[0].content) == "it is held"
    assert [row[0] for row in before] == [upper[0], lower[0]]
    assert [one.status for one in former] == [WorkflowExecutionStatus.CANCELED] * 2
    assert (upper[2], lower[2]) == (upper[1], lower[1])


async def test_a_reset_to_wherever_goes_on_with_the_same_run_of_its_sub_agent(
    bench: Bench, signals: Signals
) -> None:
    below = researcher(call(("hold", {"what": "it"})), say("held"), tools=[holding(signals)])
    app = app_of(below, calling("x"), calling("y"), say("Done."))

    async with bench.serving(app) as client:
        runs = [await client.start("agent", "go", id=fresh_id()) for _ in range(4)]

        async def all_at_work() -> bool:
            return CALLED["hold it"] == 4

        await eventually(all_at_work, seconds=SOON)
        histories = [(await bench.history(run.id)).events for run in runs]
        done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        tasks = [[e.event_id for e in events if e.event_type == done] for events in histories]
        for number, run in enumerate(runs):
            await bench.reset(run.id, to=tasks[number][number])

        async def taken_over() -> bool:
            return CALLED["hold it"] == 7  # the last one's goes on: its history has the child

        await eventually(taken_over, seconds=SOON)
        signals.release.set()
        ran = [await bench.outcome(run) for run in runs]
        # Back to after the first child: its id is read from history, whoever replays it.
        await runs[0].reset(to_step=1)
        again = await bench.outcome(runs[0])

    assert [len(of_one) for of_one in tasks] == [4] * 4
    assert [where(one.actions) for one in ran] == [
        {"0.0/0.0": '"held it"', "1.0/0.0": '"held it"'}
    ] * 4
    assert [one.results for one in ran] == [again.results] * 4


async def test_one_that_continues_as_new_stays_the_same_run(bench: Bench, signals: Signals) -> None:
    def goes_on(request: ModelRequest) -> Completion:
        turn = sum(message.role == "assistant" for message in request.messages)
        return call(("note", {"what": f"{turn}"}), text=LONG) if turn < 5 else say("read")

    app = app_of(researcher(*[goes_on] * 6, tools=[note]), calling("x"), say("Done."))
    async with bench.serving(app) as client:
        ran = await bench.start(client)
        ((key, child, *_),) = await children(bench)
        (first, *_) = (await bench.history(str(child))).events
        status = await client.run(str(child)).status()

    assert first.workflow_execution_started_event_attributes.continued_execution_run_id
    assert where(ran.actions) == {f"0.0/{turn}.0": f'"noted {turn}"' for turn in range(5)}
    assert status.run_key == key


async def test_a_stop_reaches_what_a_sub_agent_of_a_sub_agent_does(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, name="hold")
    async def hold(what: str) -> str:
        CALLED["hold"] += 1
        signals.began.set()
        try:
            await asyncio.sleep(HANGS)
        finally:
            await asyncio.sleep(0.3)
            CALLED["cleaned up"] += 1
        return what

    async with bench.serving(two_levels(hold)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        (upper, lower) = await children(bench)
        ledger = await client.ledger()
        await ledger.runs.stop(
            await bench.run_key(run),
            workflow_id=run.id,
            agent="",
            reason="enough",
            attempt_at=datetime.now(tz=UTC),
        )
        with pytest.raises(RunNotRunning):
            await claim(bench, str(lower[0]), str(lower[1]))
        status = await run.stop(reason="enough")
        cleaned_up = CALLED["cleaned up"]
        handles = [run, *(client.run(str(row[1])) for row in (upper, lower))]
        closed = [(await one.describe()).close_time for one in handles]
        below = [await client.run(str(row[1])).status() for row in (upper, lower)]
        (action,) = await run.actions()
        rows = await bench.sql("select distinct state, stop_reason from agent_runs")
        with pytest.raises(RunFailed):
            await run.result()

    assert status.state == "canceled"
    assert [one.state for one in below] == ["canceled", "canceled"]
    assert action.state == "unknown"
    assert rows == [("ended", "enough")]
    assert CALLED["hold"] == cleaned_up == 1
    # From the bottom up: a parent's end says that of all below it.
    assert sorted(one for one in closed if one) == closed[::-1]


async def test_one_that_fails_is_told_with_what_of_it_stands_and_for_good(
    bench: Bench, signals: Signals
) -> None:
    works = False

    def fails(request: ModelRequest) -> Completion:
        if works:
            return call(("note", {"what": "what nobody is told of"}))
        if prompt_of(request) == "idle" or len(request.messages) > 1:
            raise ModelRejected("no such model")
        return call(("note", {"what": "it"}))

    app = app_of(researcher(*[fails] * 3), calling("acts", "idle"), say("Done."))
    async with bench.serving(app) as client:
        ran = await bench.start(client)
        works = True
        again = await bench.rerun(client, ran.id)
    states = await bench.sql("select state, stop_reason is null from agent_runs order by run_key")

    acted, idle = (json.loads(result.content)["error"] for result in ran.results)
    assert [result.status for result in ran.results] == ["error", "error"]
    assert (acted["type"], acted["effect"]) == ("SubAgentFailed", "happened")
    assert "the agent gave no answer: ModelRejected: no such model" in acted["message"]
    assert '- note at 0.0/0.0 with {"what":"it"}: it happened' in acted["actions"]
    assert idle["effect"] == "none"
    assert "actions" not in idle
    assert states == [("ended", True), ("ended", False), ("ended", False)]
    assert again.results == ran.results
    assert where(again.actions) == {"0.0/0.0": '"noted it"'}


async def test_one_whose_model_gives_no_whole_answer_is_told_with_what_it_said_and_what_stands(
    bench: Bench,
) -> None:
    reasons: dict[str, FinishReason] = {"acts": "length", "no": "refusal", "mute": "stop"}

    def answer(request: ModelRequest) -> Completion:
        prompt = prompt_of(request)
        if prompt == "acts" and len(request.messages) == 1:
            return call(("note", {"what": "it"}))
        return say("" if prompt == "mute" else f"{prompt}, and", finish_reason=reasons[prompt])

    app = app_of(researcher(*[answer] * 2), calling(*reasons), say("Done."))
    async with bench.serving(app) as client:
        ran = await bench.start(client)
        again = await bench.rerun(client, ran.id)

    acts, no, mute = (json.loads(result.content)["error"] for result in ran.results)
    cut_off = "its answer was cut off at its model's output limit; it said: acts, and"
    assert [result.status for result in ran.results] == ["error"] * 3
    assert (acts["message"], acts["effect"]) == (f"the agent gave no answer: {cut_off}", "happened")
    assert "- note at 0.0/0.0" in acts["actions"]
    assert no["message"] == "the agent gave no answer: its model refused; it said: no, and"
    assert mute["message"] == "the agent gave no answer: its model said nothing"
    assert again.results == ran.results
    assert CALLED == {"it": 1}


async def test_one_that_is_stopped_alone_or_called_without_a_prompt_fails_no_parent(
    bench: Bench, signals: Signals
) -> None:
    below = researcher(call(("hold", {"what": "it"})), tools=[holding(signals)])
    wrong = call(("researcher", {"prompt": " "}), ("researcher", {"question": "?"}))
    app = app_of(below, wrong, calling("x"), say("Done."))

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        ((_, child, *_),) = await children(bench)
        asyncio.get_running_loop().call_later(1, signals.release.set)
        status = await client.run(str(child)).stop(reason="not this one")
        ran = await bench.outcome(run)

    assert status.state == "canceled"
    assert [result.status for result in ran.results] == ["error", "error", "error"]
    assert "it takes one argument, 'prompt'" in ran.results[0].content
    assert "it takes one argument, 'prompt'" in ran.results[1].content
    assert "the agent gave no answer: not this one" in ran.results[2].content
    assert json.loads(ran.results[2].content)["error"]["effect"] == "happened"


async def test_a_stop_of_one_alone_undoes_what_it_did_where_it_says_so(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.IDEMPOTENT)
    async def refund(what: str) -> None:
        CALLED[f"refund {what}"] += 1

    @tool(effect=Effect.IDEMPOTENT, compensate=refund)
    async def charge(what: str) -> None:
        CALLED[f"charge {what}"] += 1

    @tool(effect=Effect.READ)
    async def wait() -> None:
        signals.began.set()
        await asyncio.sleep(HANGS)

    below = researcher(call(("charge", {"what": "it"})), call(("wait", {})), tools=[charge, wait])
    async with bench.serving(app_of(below, calling("x"), say("Done."))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        ((_, child, *_),) = await children(bench)
        await client.run(str(child)).stop(reason="not this one", compensate=True)
        ran = await bench.outcome(run)
    states = await bench.sql("select state from agent_runs")

    assert CALLED == {"charge it": 1, "refund it": 1}
    told = json.loads(ran.results[0].content)["error"]
    assert told["effect"] == "none"
    assert "the agent gave no answer: not this one" in told["message"]
    assert states == [("ended",)] * 2


async def test_a_person_decides_about_its_call_by_its_own_id(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.IDEMPOTENT, approval=True)
    async def pay(cents: int) -> int:
        return cents

    below = researcher(call(("pay", {"cents": 3})), say("paid"), tools=[pay])

    async with bench.serving(app_of(below, calling("x"), say("Done."))) as client:
        run = await client.start("agent", "go", id=fresh_id())

        async def asked() -> Any:
            return await (await client.ledger()).approvals.list(None, only_waiting=True)

        (waiting,) = await eventually(asked)
        named, at = await call_named(client, f"{run.id}:0.0/0.0")
        with pytest.raises(RunNotFound):
            await call_named(client, f"{run.id}:7.0/0.0")
        await named.decide(at, approve=True, by="ada")
        ran = await bench.outcome(run)

    assert (named.id, at) == (waiting.workflow_id, "0.0")
    assert waiting.workflow_id.startswith(f"{run.id}/0.0/")
    assert where(ran.actions) == {"0.0/0.0": "3"}


async def test_a_fork_takes_back_what_a_sub_agent_did_and_tells_of_it(
    bench: Bench, signals: Signals
) -> None:
    below = researcher(
        call(("note", {"what": "it"})),
        call(("hold", {"what": "it"})),
        say("held"),
        tools=[note, holding(signals)],
    )
    shown: list[str] = []

    def forks(request: ModelRequest) -> Completion:
        shown.extend(message.text for message in request.messages)
        return calling("x") if len(request.messages) == 1 else say("Another way.")

    async with bench.serving(app_of(below, forks, say("Done."))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        ((_, child, *_),) = await children(bench)
        asyncio.get_running_loop().call_later(1, signals.release.set)
        done = await run.reset(to_step=0, fork=True)
        result = await run.result()
        with pytest.raises(RunFailed):
            await client.run(str(child)).result()
        state = (await client.run(str(child)).status()).state
        ((*_, owner, ledger_state), *_) = await children(bench)

    assert result.output == "Another way."
    assert (owner, ledger_state) == ("", "ended")
    assert [within_run(one.run_key, one.position) for one in done.actions] == ["0.0/0.0", "0.0/1.0"]
    assert "- note at 0.0/0.0" in shown[-1]
    assert "- hold at 0.0/1.0" in shown[-1]
    assert state == "canceled"


async def test_a_run_that_was_lost_leaves_what_its_sub_agent_did_to_the_next_request(
    bench: Bench, signals: Signals
) -> None:
    below = researcher(
        call(("note", {"what": "it"})),
        call(("hold", {"what": "it"})),
        tools=[note, holding(signals)],
    )
    thread = fresh_id("thread")

    async with bench.serving(app_of(below, calling("x"), say("Done."))) as client:
        sending = asyncio.ensure_future(lost(client, thread))
        await seen(signals.began)
        await bench.temporal.get_workflow_handle(f"thread:{thread}").terminate()
        await sending
        await client.send(thread, "and now?", agent="agent")
        messages = await client.thread(thread).messages()
        ((_, child, owner, state),) = await children(bench)
        signals.release.set()

        async def ended() -> bool:
            return (await client.run(str(child)).status()).state == "canceled"

        await eventually(ended)

    (told,) = [result for message in messages for result in message.results]
    error = json.loads(told.content)["error"]
    assert error["effect"] == "happened"
    assert "- note at 0.0/0.0" in error["actions"]
    assert "- hold at 0.0/1.0" in error["actions"]
    assert (owner, state) == ("", "ended")


async def lost(client: AgentClient, thread: str) -> None:
    with pytest.raises(RunFailed):
        await client.send(thread, "go", agent="agent", request_id="1")
