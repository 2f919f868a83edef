"""Runs whose model turns and calls are local activities: as any other run, in fewer tasks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from commitline import Agent, App, Effect, NotAttempted, Tool, ToolContext, ToolRefused, tool
from commitline.activities.app.tool_decorator import ToolDecorator
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.turns import CALL_MODEL
from commitline.activities.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, ScriptedModel, call, say
from commitline.client import AgentClient
from commitline.errors import ModelUnavailable, RunFailed
from commitline.tests.histories import activities_in, local_activities_in
from commitline.tests.integration.runs.bench import Bench, eventually, fresh_id
from commitline.tests.integration.runs.playing import SOON, Signals, seen

CALLED: Counter[str] = Counter()
BRIEF = timedelta(seconds=10)


def local(**options: Any) -> ToolDecorator:
    return tool(local=True, tool_timeout=BRIEF, **options)


def app_of(tools: list[Tool], answers: list[Answer], **options: Any) -> App:
    model = ScriptedModel("scripted", answers)
    return App([Agent("agent", model, "", tools, local=True, model_timeout=BRIEF, **options)])


@local(effect=Effect.IDEMPOTENT)
async def act(what: str) -> str:
    """Act."""
    CALLED[what] += 1
    return f"acted {what}"


def acts(*names: str) -> list[Answer]:
    return [*(call(("act", {"what": name})) for name in names), say("Done.")]


async def test_a_whole_run_is_one_workflow_task(bench: Bench) -> None:
    ran = await bench.run(app_of([act], acts("a", "b", "c")))

    events = (await bench.history(ran.id)).events
    assert local_activities_in(events) == activities_in(events)
    assert len(events) == 5 + len(local_activities_in(events))
    assert [(a.position, a.state) for a in ran.actions] == [
        ("0.0", "ok"),
        ("1.0", "ok"),
        ("2.0", "ok"),
    ]
    assert CALLED == {"a": 1, "b": 1, "c": 1}


async def test_a_call_that_fails_goes_on_as_the_servers_with_its_tries_counted(
    bench: Bench,
) -> None:
    @local(effect=Effect.IDEMPOTENT, tries=3)
    async def flaky(ctx: ToolContext) -> str:
        """Fail twice."""
        CALLED[ctx.idempotency_key] += 1
        if CALLED.total() < 3:
            raise ConnectionError("reset")
        return "at last"

    ran = await bench.run(app_of([flaky], [call(("flaky", {})), say("Done.")]))

    (action,) = ran.actions
    events = (await bench.history(ran.id)).events
    assert (action.state, action.tries, action.failures) == ("ok", 3, 2)
    assert list(CALLED.values()) == [3]
    assert activities_in(events).count("flaky") == 2, "the local one, and the server's"
    assert local_activities_in(events).count("flaky") == 1


async def test_a_read_is_tried_no_more_often_than_it_says(bench: Bench) -> None:
    @local(effect=Effect.READ, tries=2)
    async def look() -> str:
        """Fail."""
        CALLED["look"] += 1
        raise ConnectionError("reset")

    ran = await bench.run(app_of([look], [call(("look", {})), say("Done.")]))

    assert ran.results[0].status == "error"
    assert CALLED == {"look": 2}


async def test_a_model_is_asked_as_often_as_configured(bench: Bench) -> None:
    class Absent:
        name = "absent"

        async def complete(self, request: ModelRequest) -> Completion:
            CALLED["asked"] += 1
            raise ModelUnavailable("503", retry_after=timedelta(milliseconds=50))

    app = App([Agent("agent", Absent(), "", local=True, model_timeout=BRIEF, model_tries=3)])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(ModelUnavailable, match="model request 3 of 3"):
            await run.result()

    assert CALLED == {"asked": 3}


@pytest.mark.parametrize(
    ("error", "status"),
    [(ToolRefused, "error"), (RuntimeError, "unknown"), (NotAttempted, "error")],
)
async def test_how_a_call_ended_is_told_as_ever(
    bench: Bench, error: type[Exception], status: str
) -> None:
    @local(effect=Effect.AT_MOST_ONCE, tries=1)
    async def fails() -> str:
        """Fail."""
        raise error("it did not work")

    ran = await bench.run(app_of([fails], [call(("fails", {})), say("Done.")]))

    assert ran.results[0].status == status


async def test_a_stop_ends_a_local_call_and_leaves_its_outcome_unknown(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, local=True, tool_timeout=30)
    async def hangs() -> str:
        """Hang."""
        CALLED["hangs"] += 1
        signals.began.set()
        try:
            await asyncio.sleep(600)
        finally:
            CALLED["cleaned up"] += 1
        return "never"

    async with bench.serving(app_of([hangs, act], [call(("hangs", {})), *acts("a")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        began = time.monotonic()
        status = await run.stop(reason="wrong customer")
        took = time.monotonic() - began
        (action,) = await run.actions()
        with pytest.raises(RunFailed, match="was canceled"):
            await run.result()

    assert status.state == "canceled"
    assert took < 5 + 2, "the end of a workflow task"
    assert (action.state, action.parked_reason) == (
        "unknown",
        "the run was cancelled while the tool was at work",
    )
    assert not action.leased
    assert CALLED == {"hangs": 1, "cleaned up": 1}


async def test_a_reset_and_a_fork_go_back_into_a_task_of_several_turns(bench: Bench) -> None:
    async with bench.serving(app_of([act], acts("a", "b", "c"))) as client:
        run = await client.start("agent", "go", id=fresh_id())
        live = await run.result()
        reset = await run.reset(to_step=1)
        again = await run.result()
        fork = await run.reset(to_step=2, fork=True)
        async with asyncio.timeout(SOON):
            await run.result()
        positions = sorted(one.position for one in await run.actions())

    assert (reset.read_back, again) == ([1, 2, 3], live)
    assert fork.epoch == 1
    assert CALLED == {"a": 1, "b": 1, "c": 2}, "the fork asks for the last one once more"
    assert positions == ["0.0", "1.0", "2.0", "e1-2.0"]


async def test_a_local_call_is_approved_first_and_made_with_what_was_approved(
    bench: Bench,
) -> None:
    @local(effect=Effect.AT_MOST_ONCE, approval=True)
    async def pay(cents: int) -> int:
        """Pay."""
        CALLED["paid"] += cents
        return cents

    async with bench.serving(app_of([pay], [call(("pay", {"cents": 5})), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())

        async def asked() -> Any:
            return await run.approvals()

        (approval,) = await eventually(asked)
        await run.decide(approval.position, approve=True, by="ada")
        ran = await bench.outcome(run)

    assert [(a.state, a.result) for a in ran.actions] == [("ok", "5")]
    assert CALLED == {"paid": 5}
    assert "pay" in local_activities_in((await bench.history(run.id)).events)


async def test_a_signal_before_its_first_task_makes_no_run_one_that_may_have_called(
    bench: Bench,
) -> None:
    @local(effect=Effect.AT_MOST_ONCE)
    async def pay(cents: int) -> int:
        """Pay."""
        CALLED["paid"] += cents
        return cents

    async with AgentClient(bench.temporal, bench.settings) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await bench.temporal.get_workflow_handle(run.id).signal("hello")
        app = app_of([pay], [call(("pay", {"cents": 5})), say("Done.")])
        async with bench.serving(app):
            ran = await bench.outcome(run)

    assert [(a.state, a.result) for a in ran.actions] == [("ok", "5")]
    assert CALLED == {"paid": 5}


async def test_a_local_tool_cannot_ask_a_person(bench: Bench) -> None:
    @local(effect=Effect.IDEMPOTENT)
    async def asks(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.interrupt("Really?"))

    ran = await bench.run(app_of([asks], [call(("asks", {})), say("Done.")]))

    assert ran.results[0].status != "ok"
    assert "nobody can be asked here" in ran.results[0].content


async def test_what_returns_much_goes_by_way_of_the_server_now_and_then(bench: Bench) -> None:
    @local(effect=Effect.READ)
    async def fetch(part: int) -> str:
        """Fetch."""
        return "x" * 15_000

    parts: list[Answer] = [
        call(*(("fetch", {"part": 10 * turn + part}) for part in range(10))) for turn in range(4)
    ]
    ran = await bench.run(app_of([fetch], [*parts, say("Done.")]))

    events = (await bench.history(ran.id)).events
    by_the_server = Counter(activities_in(events)) - Counter(local_activities_in(events))
    assert by_the_server == {CALL_MODEL: 1}


async def test_a_run_that_gives_a_tool_more_time_has_it_called_by_the_server(
    bench: Bench,
) -> None:
    async with bench.serving(app_of([act], acts("a"))) as client:
        run = await client.start("agent", "go", id=fresh_id(), tool_timeouts={"act": 60})
        await bench.outcome(run)

    assert "act" not in local_activities_in((await bench.history(run.id)).events)
    assert CALLED == {"a": 1}
