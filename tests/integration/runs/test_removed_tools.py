"""What a deploy takes away, adds or changes, while runs are in the middle of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import PendingActivityState

from commitline import Agent, App, Effect, RunHandle, Tool, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.activities.runs import served
from commitline.errors import ToolNotServed

from .bench import Bench, eventually, fresh_id
from .playing import SOON, Says, Signals, turn_of
from .relay_bench import another, ends, intend, ledger_of, look

CALLED: Counter[str] = Counter()


@pytest.fixture
def _given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tries that look for a tool follow each other at once, for what comes after them.

    The tests that measure how soon a run gives up, or have a tool come back, take the real pace.
    """
    monkeypatch.setattr(served, "_BETWEEN_TRIES", timedelta(milliseconds=10))


def asked(request: ModelRequest) -> str:
    return request.messages[0].text


def waiting(signals: Signals) -> Tool:
    """Make a read that takes as long as the test wants; every release has it."""

    @tool(effect=Effect.READ, name="wait")
    async def wait() -> str:
        signals.began.set()
        while not signals.release.is_set():  # noqa: ASYNC110 - it runs on another loop
            await asyncio.sleep(0.02)
        return "waited"

    return wait


def acting(name: str = "act") -> Tool:
    @tool(effect=Effect.AT_MOST_ONCE, name=name)
    async def act() -> str:
        CALLED[name] += 1
        return "acted"

    return act


def wait_then_act(request: ModelRequest) -> Completion:
    """Wait, act, and say so; who is asked to chat only does that."""
    if asked(request) == "chat":
        return say("Hello.")
    plan = [call(("wait", {})), call(("act", {}))]
    turn = turn_of(request)
    if turn < len(plan):
        return plan[turn]
    return say(f"Done: {request.messages[-1].results[0].status}.")


def app_of(*tools: Tool, answer: Callable[[ModelRequest], Completion] = wait_then_act) -> App:
    return App([Agent("agent", Says(answer), "Do it.", tools=tools)])


def hasty(bench: Bench) -> Bench:
    """Return a bench whose workers do not wait for what they have begun."""
    return Bench(bench.temporal, bench.settings.model_copy(update={"grace_seconds": 0.5}))


async def begun(bench: Bench, app: App, signals: Signals) -> RunHandle:
    """Start a run on a worker that goes while the run waits."""
    async with hasty(bench).serving(app) as client:
        run = await client.start("agent", "work", id=fresh_id())
        assert await asyncio.to_thread(signals.began.wait, SOON)
    return run


async def test_a_run_whose_tool_was_removed_ends_alone_and_soon(
    bench: Bench, signals: Signals
) -> None:
    wait = waiting(signals)
    run = await begun(bench, app_of(wait, acting()), signals)
    signals.release.set()

    async with bench.serving(app_of(wait)) as client:
        began = time.monotonic()
        chat = await client.start("agent", "chat", id=fresh_id())
        async with asyncio.timeout(SOON):
            with pytest.raises(ToolNotServed, match="'act'") as failed:
                await client.run(run.id).result()
        took = time.monotonic() - began
        other = await chat.result()
        actions = await client.run(run.id).actions()
        runs = await bench.sql("select workflow_id, state from agent_runs")

    assert failed.value.code == "CL509"
    assert took < 25
    assert other.output == "Hello."
    assert actions == []
    assert dict(runs)[run.id] == "ended"
    assert CALLED == {}


async def test_a_run_whose_tool_comes_back_goes_on(bench: Bench, signals: Signals) -> None:
    wait, act = waiting(signals), acting()
    run = await begun(bench, app_of(wait, act), signals)
    signals.release.set()

    async def refused_once() -> bool:
        pending = (await run.describe()).raw_description.pending_activities
        return any(
            one.activity_type.name == "act"
            and one.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
            and one.attempt >= 2
            for one in pending
        )

    # Of two releases at once, the older one schedules the call and has no tool for it.
    async with bench.serving(app_of(wait)):
        await eventually(refused_once)
    async with bench.serving(app_of(wait, act)) as client:
        ran = await bench.outcome(client.run(run.id))

    assert ran.result.output == "Done: ok."
    assert CALLED == {"act": 1}


@pytest.mark.usefixtures("_given_up_soon")
async def test_a_run_that_ended_for_want_of_a_tool_goes_on_by_a_reset(
    bench: Bench, signals: Signals
) -> None:
    wait, act = waiting(signals), acting()
    run = await begun(bench, app_of(wait, act), signals)
    signals.release.set()

    async with bench.serving(app_of(wait)) as client:
        async with asyncio.timeout(SOON):
            with pytest.raises(ToolNotServed):
                await client.run(run.id).result()
    async with bench.serving(app_of(wait, act)) as client:
        await client.run(run.id).reset(to_step=1)
        ran = await bench.outcome(client.run(run.id))

    assert ran.result.output == "Done: ok."
    assert CALLED == {"act": 1}


@pytest.mark.usefixtures("_given_up_soon")
async def test_a_call_that_was_dispatched_before_its_tool_was_removed_is_unknown(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.IDEMPOTENT, name="act")
    async def act() -> str:
        CALLED["act"] += 1
        signals.began.set()
        await asyncio.sleep(600)
        return "never"

    def answer(request: ModelRequest) -> Completion:
        return call(("act", {})) if turn_of(request) == 0 else say("Done.")

    run = await begun(bench, app_of(act, answer=answer), signals)
    async with bench.serving(app_of(answer=answer)) as client:
        async with asyncio.timeout(SOON):
            with pytest.raises(ToolNotServed):
                await client.run(run.id).result()
        (action,) = await client.run(run.id).actions()

    assert (action.tool, action.state) == ("act", "unknown")
    assert action.parked_reason
    assert CALLED == {"act": 1}


@pytest.mark.usefixtures("_given_up_soon")
async def test_a_conversation_whose_tool_was_removed_fails_its_sender_and_goes_on(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")
    wait = waiting(signals)

    def answer(request: ModelRequest) -> Completion:
        if request.messages[-1].text == "again":
            return say(f"Told {request.messages[-2].results[0].status}.")
        return wait_then_act(request)

    async with hasty(bench).serving(app_of(wait, acting(), answer=answer)) as client:
        sender = asyncio.create_task(client.send(thread, "work", agent="agent"))
        assert await asyncio.to_thread(signals.began.wait, SOON)
        sender.cancel()
        run = client.thread(thread).run
        await client.close()
    signals.release.set()
    await asyncio.wait({sender}, timeout=0.1)

    async with bench.serving(app_of(wait, answer=answer)) as client:
        async with asyncio.timeout(SOON):
            with pytest.raises(ToolNotServed):
                await client.run(run.id).result()
            reply = await client.send(thread, "again")

    assert reply.output == "Told error."
    assert CALLED == {}
    sender.cancel()


async def test_a_tool_that_was_added_leaves_a_paused_run_as_it_was(
    bench: Bench, signals: Signals
) -> None:
    wait, act = waiting(signals), acting()
    run = await begun(bench, app_of(wait, act), signals)
    signals.release.set()
    later = Says(wait_then_act)
    app = App([Agent("agent", later, "Do it.", tools=[acting("other"), wait, act])])

    async with bench.serving(app) as client:
        ran = await bench.outcome(client.run(run.id))

    assert ran.result.output == "Done: ok."
    # The run keeps the tools that it began with.
    assert [one.name for one in later.shown[-1].tools] == ["wait", "act"]
    assert CALLED == {"act": 1}


async def test_a_tool_that_was_renamed_leaves_runs_that_do_not_need_it(
    bench: Bench, signals: Signals
) -> None:
    wait = waiting(signals)

    def answer(request: ModelRequest) -> Completion:
        return call(("wait", {})) if turn_of(request) == 0 else say("Done.")

    run = await begun(bench, app_of(wait, acting("act"), answer=answer), signals)
    signals.release.set()

    async with bench.serving(app_of(wait, acting("act_now"), answer=answer)) as client:
        ran = await bench.outcome(client.run(run.id))

    assert ran.result.output == "Done."


async def test_a_default_that_was_added_is_not_slipped_into_a_call_that_was_lost(
    bench: Bench, signals: Signals
) -> None:
    """Nor is that one said not to have happened; the next call has it."""
    given: list[tuple[str, str]] = []

    @tool(effect=Effect.IDEMPOTENT, name="pay")
    async def before(order: str) -> str:
        CALLED["before"] += 1
        signals.began.set()
        await asyncio.sleep(600)
        return "never"

    @tool(effect=Effect.IDEMPOTENT, name="pay")
    async def after(order: str, currency: str = "EUR") -> str:
        CALLED["after"] += 1
        given.append((order, currency))
        return "paid"

    def answer(request: ModelRequest) -> Completion:
        if turn_of(request) == 2:
            return say("Done.")
        return call(("pay", {"order": f"{turn_of(request)}"}))

    run = await begun(bench, app_of(before, answer=answer), signals)
    async with bench.serving(app_of(after, answer=answer)) as client:
        ran = await bench.outcome(client.run(run.id))

    assert [one.status for one in ran.results] == ["unknown", "ok"]
    assert "other values for currency" in ran.results[0].content
    assert given == [("1", "EUR")]
    assert [(one.position, one.state) for one in ran.actions] == [("0.0", "unknown"), ("1.0", "ok")]


@tool(effect=Effect.IDEMPOTENT)
async def refund(n: int) -> str:
    """Refund."""
    CALLED["refund"] += 1
    return "refunded"


@tool(effect=Effect.IDEMPOTENT, compensate=refund)
async def charge(n: int) -> str:
    """Charge."""
    return "charged"


def charge_thrice(request: ModelRequest) -> Completion:
    turn = turn_of(request)
    return call(("charge", {"n": turn})) if turn < 3 else say("Done.")


async def test_an_undo_finds_the_one_of_two_workers_that_serves_its_tool(bench: Bench) -> None:
    new = app_of(charge, answer=charge_thrice)
    async with bench.serving(new) as client:
        ran = [await bench.start(client) for _ in range(6)]

    # A rolling deploy: either of them may have an undo's workflow, and then does most of it.
    async with bench.serving(app_of()) as client, (await another(bench)).serving(new):
        reports = [await client.run(one.id).undo() for one in ran]

    assert [one.state for one in reports] == ["compensated"] * 6
    assert CALLED == {"refund": 18}


async def test_what_the_relay_sends_finds_the_one_of_two_workers_that_serves_its_tool(
    bench: Bench,
) -> None:
    new = app_of(charge)
    async with (
        bench.serving(app_of()),
        (await another(bench)).serving(new),
        ledger_of(bench) as ledger,
    ):
        keys = [await intend(bench, ledger, "refund", {"n": n}) for n in range(6)]
        async with asyncio.timeout(SOON):
            started = 0
            while started < 6:  # the look is of either worker; one takes what it serves
                started += (await look(bench))["started"]
        sent = await ends(ledger, keys, seconds=SOON)

    assert [one.state for one in sent] == ["ok"] * 6
    assert CALLED == {"refund": 6}


async def test_an_undo_whose_tool_no_worker_serves_ends_soon_and_says_so(bench: Bench) -> None:
    async with bench.serving(app_of(charge, answer=charge_thrice)) as client:
        run = (await bench.start(client)).id

    async with bench.serving(app_of()) as client:
        began = time.monotonic()
        report = await client.run(run).undo()
        took = time.monotonic() - began

    assert report.state == "partly compensated"
    assert {one.why for one in report.standing} == {
        "no worker of this task queue serves 'refund', which undoes it"
    }
    # They are looked for once, not for each of the calls.
    assert took < 25
