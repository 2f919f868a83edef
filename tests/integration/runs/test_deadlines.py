"""Deadlines in real runs: what hangs is cancelled, killed or left behind, and the run goes on.

Tools run on an event loop of their own in another thread, so test and tool tell each other
by `threading.Event`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import psycopg
import pytest
from structlog.testing import capture_logs
from temporalio.api.enums.v1 import EventType

from commitline import (
    NEVER_HAPPENED,
    Agent,
    App,
    Effect,
    StillInProgress,
    Tool,
    ToolContext,
    ToolRefused,
    intend,
    tool,
)
from commitline.activities.contract.conversation import Completion, Message
from commitline.activities.contract.deadlines import NO_LIMIT
from commitline.activities.contract.turns import CALL_MODEL
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, ScriptedModel, call, say
from commitline.activities.runner.isolated_process import run_isolated
from commitline.client import AgentClient
from commitline.errors import ModelUnavailable, NodeTimeout, RunDeadlineExceeded, SettlementRefused
from commitline.identity import ActionKey, Position, RunKey
from commitline.ledger import Action, Outcome
from commitline.testing.processes import WorkerProcess
from commitline.tests.integration.runs import isolated_tools

from .bench import Bench, Ran, eventually, fresh_id, one_agent
from .playing import HANGS, SOON, Signals, seen

CALLED: Counter[str] = Counter()
ACT = call(("act", {}))
KINDS = ["coroutine", "thread"]


def hanging(effect: Effect, **given: Any) -> Tool:
    """Make a tool that hangs, and cleans up when it is cancelled."""

    @tool(effect=effect, name="act", **given)
    async def act() -> str:
        CALLED["act"] += 1
        try:
            await asyncio.sleep(HANGS)
        finally:
            await asyncio.sleep(0.1)
            CALLED["cleaned up"] += 1
        return "acted"

    return act


def heedless(
    kind: str,
    signals: Signals,
    *,
    effect: Effect = Effect.AT_MOST_ONCE,
    ends: Callable[[], str] = lambda: "acted late",
    **given: Any,
) -> Tool:
    """Make a tool that takes no notice of its cancellation and goes on until it is released."""

    @tool(effect=effect, name="act", tool_timeout=0.3, **given)
    async def coroutine() -> str:
        CALLED["act"] += 1
        signals.began.set()
        while not signals.release.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                CALLED["swallowed"] += 1
        return ends()

    @tool(effect=effect, name="act", tool_timeout=0.3, **given)
    def thread() -> str:
        CALLED["act"] += 1
        signals.began.set()
        signals.release.wait(HANGS)
        return ends()

    return coroutine if kind == "coroutine" else thread


def pausing(signals: Signals) -> Tool:
    """Make a tool that holds the run up until the test lets it go on."""

    @tool(effect=Effect.READ)
    async def pause() -> str:
        signals.paused.set()
        await asyncio.to_thread(signals.go_on.wait, HANGS)
        return "paused"

    return pause


def app_of(tools: Sequence[Tool], answers: Sequence[Answer], **given: Any) -> App:
    return App([Agent("agent", ScriptedModel("scripted", answers), "Do it.", tools, **given)])


async def run(bench: Bench, made: Tool, **limits: Any) -> Ran:
    async with bench.serving(one_agent([made], [ACT, say("Done.")])) as client:
        started = await client.start("agent", "go", id=fresh_id(), **limits)
        async with asyncio.timeout(SOON):
            return await bench.outcome(started)


async def only_action(client: AgentClient, id: str) -> Action:
    (action,) = await client.run(id).actions()
    return action


def reason_of(action: Action) -> str:
    assert action.state == "unknown"
    assert action.parked_reason is not None
    return action.parked_reason


# --- an attempt's deadline, and a tool that heeds it


async def test_a_call_past_its_deadline_is_cancelled_and_cleans_up_and_is_unknown(
    bench: Bench, signals: Signals
) -> None:
    ran = await run(bench, hanging(Effect.AT_MOST_ONCE, tool_timeout=0.3))

    (action,) = ran.actions
    told = json.loads(ran.results[0].content)["unknown"]
    assert CALLED == {"act": 1, "cleaned up": 1}
    assert ran.results[0].status == "unknown"
    assert reason_of(action) == "ToolTimeout: no answer within 0.3 s [NODE_TIMEOUT_002]"
    assert told["reason"] == action.parked_reason
    assert not action.leased
    assert ran.result.output == "Done."


async def test_a_read_past_its_deadline_is_tried_again_and_then_an_error(
    bench: Bench, signals: Signals
) -> None:
    ran = await run(bench, hanging(Effect.READ, tool_timeout=0.3, tries=2))

    error = json.loads(ran.results[0].content)["error"]
    assert CALLED == {"act": 2, "cleaned up": 2}
    assert ran.results[0].status == "error"
    assert (error["type"], error["effect"]) == ("ToolTimeout", "none")
    assert "NODE_TIMEOUT_002" in error["message"]
    assert ran.actions == []


async def test_an_idempotent_call_past_its_deadline_is_repeated_and_then_unknown(
    bench: Bench, signals: Signals
) -> None:
    ran = await run(bench, hanging(Effect.IDEMPOTENT, tool_timeout=0.3, tries=2))

    (action,) = ran.actions
    assert CALLED == {"act": 2, "cleaned up": 2}
    assert ran.results[0].status == "unknown"
    assert reason_of(action).startswith("tried 2 times; the last: ToolTimeout")
    assert "NODE_TIMEOUT_002" in reason_of(action)
    assert action.tries == 2


async def test_a_lookup_past_its_deadline_is_asked_about(bench: Bench, signals: Signals) -> None:
    def lookup(args: dict[str, Any], idempotency_key: str) -> str:
        CALLED["lookup"] += 1
        return "found"

    ran = await run(bench, hanging(Effect.LOOKUP, tool_timeout=0.3, lookup=lookup))

    assert CALLED == {"act": 1, "cleaned up": 1, "lookup": 1}
    assert (ran.results[0].status, json.loads(ran.results[0].content)) == ("ok", "found")


@pytest.mark.parametrize(
    ("effect", "status", "called"),
    [
        (Effect.AT_MOST_ONCE, "unknown", 1),
        (Effect.IDEMPOTENT, "unknown", 2),
        (Effect.LOOKUP, "ok", 1),
        (Effect.READ, "error", 2),
    ],
)
async def test_what_a_call_makes_of_its_own_cancellation_proves_nothing(
    bench: Bench, signals: Signals, effect: Effect, status: str, called: int
) -> None:
    given: dict[str, Any] = {"lookup": lambda args, idempotency_key: "found"}

    @tool(
        effect=effect,
        name="act",
        tool_timeout=0.3,
        tries=2,
        **given if effect is Effect.LOOKUP else {},
    )
    async def act() -> str:
        CALLED["act"] += 1
        try:
            await asyncio.sleep(HANGS)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        return "I was cancelled, sorry"

    ran = await run(bench, act)

    assert "sorry" not in ran.results[0].content
    assert (ran.results[0].status, CALLED["act"]) == (status, called)
    if effect is not Effect.READ:
        assert [a.state for a in ran.actions] == [status]


async def test_what_a_lookup_makes_of_its_own_cancellation_is_not_believed(
    bench: Bench, signals: Signals
) -> None:
    async def lookup(args: dict[str, Any], idempotency_key: str) -> Any:
        CALLED["lookup"] += 1
        if CALLED["lookup"] > 1:
            return "found"
        try:
            await asyncio.sleep(HANGS)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        return NEVER_HAPPENED

    @tool(
        effect=Effect.LOOKUP,
        name="act",
        tool_timeout=0.3,
        lookup=lookup,
        lookup_settles_after=timedelta(),
    )
    async def act() -> str:
        CALLED["act"] += 1
        raise ConnectionResetError("cut")

    ran = await run(bench, act)

    assert CALLED == {"act": 1, "lookup": 2}
    assert (ran.results[0].status, json.loads(ran.results[0].content)) == ("ok", "found")


# --- a tool that takes no notice


async def test_a_heedless_call_is_left_behind_and_its_late_value_is_recorded_and_told(
    bench: Bench, signals: Signals
) -> None:
    told: list[list[Message]] = []

    def last(request: ModelRequest) -> Completion:
        told.append(request.messages)
        return say("Done.")

    tools = [heedless("thread", signals), pausing(signals)]
    async with bench.serving(one_agent(tools, [ACT, call(("pause", {})), last])) as client:
        began = time.monotonic()
        started = await client.start("agent", "go", id=fresh_id())
        await seen(signals.paused)
        took = time.monotonic() - began
        left = await only_action(client, started.id)
        ledger = await client.ledger()
        with pytest.raises(SettlementRefused, match="may be at work"):
            await ledger.settle(left.key, Outcome.ok("1"), by="ada")
        signals.release.set()

        async def recorded() -> bool:
            return (await only_action(client, started.id)).state == "ok"

        await eventually(recorded, seconds=SOON)
        late = await only_action(client, started.id)
        signals.go_on.set()
        await started.result()

    notices = [m.text for m in told[0] if m.role == "user" and m.text.startswith("[notice]")]
    assert took < SOON
    assert "NODE_TIMEOUT_002" in reason_of(left)
    assert left.leased
    assert CALLED["act"] == 1
    assert (late.result, late.decided_by) == ('"acted late"', None)
    assert len(notices) == 1
    assert "act at 0.0, which was unknown, has been settled by its own late answer" in notices[0]
    assert '"acted late"' in notices[0]


def refuse() -> str:
    raise ToolRefused("no money")


def fail() -> str:
    raise ValueError("a fault")


async def test_a_late_refusal_is_recorded_as_an_error_without_effect(
    bench: Bench, signals: Signals
) -> None:
    tools = [heedless("thread", signals, ends=refuse), pausing(signals)]
    async with bench.serving(one_agent(tools, [ACT, call(("pause", {})), say("Done.")])) as client:
        started = await client.start("agent", "go", id=fresh_id())
        await seen(signals.paused)
        signals.release.set()

        async def recorded() -> bool:
            return (await only_action(client, started.id)).state == "error"

        await eventually(recorded, seconds=SOON)
        late = await only_action(client, started.id)
        signals.go_on.set()
        await started.result()

    assert late.effect_possible is False


@pytest.mark.parametrize(
    ("kind", "ends"),
    [("thread", fail), ("coroutine", lambda: "I was cancelled, sorry"), ("coroutine", refuse)],
    ids=["fault", "value of a cancelled one", "refusal of a cancelled one"],
)
async def test_a_late_end_that_proves_nothing_leaves_the_action_unknown(
    bench: Bench, signals: Signals, kind: str, ends: Callable[[], str]
) -> None:
    tools = [heedless(kind, signals, ends=ends), pausing(signals)]
    ended_late = {"ledger.late_recorded", "tool.ended_late", "tool.ended_cancelled"}
    with capture_logs() as logs:
        async with bench.serving(
            one_agent(tools, [ACT, call(("pause", {})), say("Done.")])
        ) as client:
            started = await client.start("agent", "go", id=fresh_id())
            await seen(signals.paused)
            signals.release.set()

            async def ended() -> bool:
                return any(log["event"] in ended_late for log in logs)

            await eventually(ended, seconds=SOON)
            signals.go_on.set()
            await started.result()
            left = await only_action(client, started.id)

    assert "NODE_TIMEOUT_002" in reason_of(left)


async def test_a_late_value_of_an_earlier_attempt_does_not_touch_the_later_ones_row(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.IDEMPOTENT, name="act", tool_timeout=0.3)
    def act() -> str:
        CALLED["act"] += 1
        if CALLED["act"] > 1:
            return "the second"
        signals.release.wait(HANGS)
        CALLED["ended late"] += 1
        return "the first, late"

    with capture_logs() as logs:
        tools = [act, pausing(signals)]
        async with bench.serving(
            one_agent(tools, [ACT, call(("pause", {})), say("Done.")])
        ) as client:
            started = await client.start("agent", "go", id=fresh_id())
            await seen(signals.paused)
            signals.release.set()

            async def ended() -> bool:
                return any("late_record" in log["event"] for log in logs)

            await eventually(ended, seconds=SOON)
            signals.go_on.set()
            ran = await bench.outcome(started)

    assert json.loads(ran.results[0].content) == "the second"
    assert [(a.state, a.result) for a in ran.actions] == [("ok", '"the second"')]


# --- a process of its own


def written(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


async def pids_in(file: Path) -> list[int]:
    async def ask() -> list[int]:
        return written(file)

    return await eventually(ask, seconds=SOON)


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


async def all_gone(pids: Sequence[int]) -> bool:
    async def ask() -> bool:
        return all(gone(pid) for pid in pids)

    return await eventually(ask, seconds=SOON)


@tool(effect=Effect.READ)
async def quick() -> str:
    return "quick"


async def test_a_process_past_its_deadline_is_killed_with_its_children(
    bench: Bench, signals: Signals, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    spins = call(("spins", {"file": str(file)}))
    tools = [isolated_tools.spins, quick]

    ran = await bench.run(one_agent(tools, [spins, call(("quick", {})), say("Done.")]))

    pids = await pids_in(file)
    assert len(pids) == 2
    assert await all_gone(pids)
    assert [r.status for r in ran.results] == ["unknown", "ok"]
    (action,) = ran.actions
    assert "NODE_TIMEOUT_002" in reason_of(action)
    assert not action.leased


async def test_the_process_of_a_stopped_run_is_killed_with_its_children(
    bench: Bench, signals: Signals, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    sleeps = call(("sleeps", {"file": str(file)}))

    async with bench.serving(one_agent([isolated_tools.sleeps], [sleeps, say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        pids = await pids_in(file)
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        status = await run.stop()
        action = await only_action(client, run.id)

    assert alive == pids
    assert status.state == "canceled"
    assert await all_gone(pids)
    assert action.state == "unknown"
    assert not action.leased


async def test_what_a_tool_in_a_process_does_comes_back_as_it_would_from_a_thread(
    bench: Bench, signals: Signals
) -> None:
    much = 1_000_000
    calls: list[tuple[str, dict[str, Any]]] = [
        ("returns", {"text": "the text"}),
        ("awaits", {"text": "awaited"}),
        ("refuses", {}),
        ("raises", {}),
        ("prints", {}),
        ("exits", {}),
        ("dies", {}),
        ("returns_much", {"characters": much}),
        ("returns_no_json", {}),
    ]
    tools = [getattr(isolated_tools, name) for name, _ in calls]

    ran = await bench.run(
        one_agent([*tools, quick], [call(*calls), call(("quick", {})), say("Done.")])
    )

    told = {result.name: result for result in ran.results}
    rows = {action.tool: action for action in ran.actions}
    returned = json.loads(told["returns"].content)
    assert {name: result.status for name, result in told.items()} == {
        "returns": "ok",
        "awaits": "ok",
        "refuses": "error",
        "raises": "unknown",
        "prints": "ok",
        "exits": "unknown",
        "dies": "unknown",
        "returns_much": "ok",
        "returns_no_json": "error",
        "quick": "ok",
    }
    assert (returned["text"], returned["key"]) == ("the text", rows["returns"].key)
    assert returned["pid"] != psutil.Process().pid
    assert json.loads(told["awaits"].content) == "awaited \ud83d"
    assert json.loads(told["prints"].content) == "printed"
    assert json.loads(told["refuses"].content)["error"]["effect"] == "none"
    assert "no money" in told["refuses"].content
    assert reason_of(rows["raises"]).startswith("ValueError: a fault")
    assert reason_of(rows["exits"]).startswith("SystemExit: 3")
    assert reason_of(rows["dies"]) == "ToolProcessDied: its process ended with 7"
    assert json.loads(told["returns_much"].content)["characters"] == much + 2
    assert len(rows["returns_much"].result or "") == much + 2
    assert rows["returns_no_json"].effect_possible is True


async def test_what_a_process_had_answered_before_it_was_cancelled_counts(tmp_path: Path) -> None:
    file, go_on = tmp_path / "pids", tmp_path / "go on"
    context = ToolContext("", ActionKey(""), RunKey(""), Position(""), "", taken_over=False)
    args = json.dumps({"file": str(file), "go_on": str(go_on)})
    running = asyncio.ensure_future(run_isolated(isolated_tools.waits_for_a_file, args, context))
    (pid,) = await pids_in(file)

    go_on.touch()
    while not gone(pid):
        time.sleep(0.02)  # noqa: ASYNC251 - so the answer is there, and nobody has read it
    running.cancel()

    assert await running == Outcome.ok('"answered"')


async def test_a_killed_worker_takes_the_process_with_it(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    client = AgentClient(bench.temporal, bench.settings)
    environment = {
        "TEMPORAL_ADDRESS": bench.temporal.service_client.config.target_host,
        "COMMITLINE_DATABASE_URL": bench.settings.database_url,
        "COMMITLINE_TASK_QUEUE": bench.settings.task_queue,
        "COMMITLINE_HEARTBEAT_SECONDS": "1",
    }
    app = "commitline.tests.integration.runs.isolated_tools:app"

    run = await client.start("agent", str(file), id=fresh_id())
    with WorkerProcess(app, environment=environment, log=tmp_path / "log") as worker:
        pids = await pids_in(file)
        alive = psutil.pid_exists(pids[0])
        await asyncio.to_thread(worker.kill)
        all_ended = await all_gone(pids)
    await bench.temporal.get_workflow_handle(run.id).terminate()

    assert alive
    assert all_ended


# --- a call's deadline, with its retries


def failing(error: Callable[[], BaseException], effect: Effect, **given: Any) -> Tool:
    @tool(effect=effect, name="act", tries=1000, **given)
    async def act() -> str:
        CALLED["act"] += 1
        raise error()

    return act


def cut() -> BaseException:
    return ConnectionResetError("cut")


def in_progress() -> BaseException:
    return StillInProgress("409", retry_after=timedelta(seconds=0.2))


@pytest.mark.parametrize(
    ("error", "effect"),
    [
        (cut, Effect.IDEMPOTENT),
        (in_progress, Effect.IDEMPOTENT),
        (in_progress, Effect.AT_MOST_ONCE),
    ],
)
async def test_a_call_that_fails_for_ever_ends_unknown_when_its_time_is_up(
    bench: Bench, signals: Signals, error: Callable[[], BaseException], effect: Effect
) -> None:
    # An attempt that is lost to a busy machine would be unknown for another reason.
    patient = Bench(bench.temporal, bench.settings.model_copy(update={"heartbeat_seconds": 10.0}))

    ran = await run(patient, failing(error, effect, node_timeout=2))

    (action,) = ran.actions
    assert "NODE_TIMEOUT_001" in reason_of(action)
    assert ran.results[0].status == "unknown"
    assert CALLED["act"] > 1


async def test_a_read_that_fails_for_ever_ends_as_an_error_when_its_time_is_up(
    bench: Bench, signals: Signals
) -> None:
    ran = await run(bench, failing(cut, Effect.READ, node_timeout=2))

    assert ran.results[0].status == "error"
    assert CALLED["act"] > 1


async def test_a_call_that_hangs_is_cancelled_when_the_time_of_its_node_is_up(
    bench: Bench, signals: Signals
) -> None:
    made = hanging(Effect.IDEMPOTENT, tool_timeout=None, node_timeout=0.5)

    ran = await run(bench, made)

    assert "NODE_TIMEOUT_001" in reason_of(ran.actions[0])
    assert CALLED == {"act": 1, "cleaned up": 1}


class Hanging:
    """A model that hangs the first times that it is asked."""

    name = "hanging"

    def __init__(self, times: int) -> None:
        self.asked = 0
        self.cancelled = 0
        self._times = times

    async def complete(self, request: ModelRequest) -> Completion:
        self.asked += 1
        if self.asked > self._times:
            return say("Done.")
        try:
            await asyncio.sleep(HANGS)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return say("late")


async def test_a_model_request_that_hangs_is_cancelled_and_asked_again(bench: Bench) -> None:
    model = Hanging(1)

    ran = await bench.run(App([Agent("agent", model, "", model_timeout=1, model_tries=2)]))

    assert ran.result.output == "Done."
    assert (model.asked, model.cancelled) == (2, 1)


async def test_a_model_that_hangs_uses_up_its_tries(bench: Bench) -> None:
    model = Hanging(100)
    app = App([Agent("agent", model, "", model_timeout=0.5, model_tries=2)])

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(
            ModelUnavailable, match=r"model request 2 of 2: no answer within 0\.5 s"
        ):
            async with asyncio.timeout(SOON):
                await run.result()

    assert (model.asked, model.cancelled) == (2, 2)


async def test_a_model_whose_time_is_up_fails_the_run_by_kind(bench: Bench) -> None:
    model = Hanging(100)
    app = App([Agent("agent", model, "", model_tries=100)])

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id(), model_timeout=0.5, node_timeout=2)
        with pytest.raises(NodeTimeout, match="no time for another try of the model") as failed:
            async with asyncio.timeout(SOON):
                await run.result()

    assert failed.value.code == "NODE_TIMEOUT_001"
    assert model.asked == model.cancelled == 2


# --- no limit, and which one wins


@tool(effect=Effect.AT_MOST_ONCE, name="act")
async def acts() -> str:
    CALLED["act"] += 1
    return "acted"


@pytest.mark.parametrize("none", [None, 0])
async def test_without_a_limit_the_server_is_told_years_and_the_run_works(
    bench: Bench, signals: Signals, none: Any
) -> None:
    async with bench.serving(one_agent([acts], [ACT, say("Done.")])) as client:
        started = await client.start(
            "agent", "go", id=fresh_id(), tool_timeout=none, node_timeout=none, model_timeout=none
        )
        ran = await bench.outcome(started)
        history = await bench.history(started.id)

    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    of_nodes = [one for one in scheduled if one.activity_type.name in ("act", CALL_MODEL)]
    assert ran.results[0].status == "ok"
    assert len(of_nodes) == 3
    for one in of_nodes:
        assert one.start_to_close_timeout.ToTimedelta() >= NO_LIMIT
        assert not one.schedule_to_close_timeout.ToTimedelta(), "no limit of the server's"


async def test_the_runs_time_for_a_tool_wins_over_the_tools_own(
    bench: Bench, signals: Signals
) -> None:
    made = hanging(Effect.AT_MOST_ONCE, tool_timeout=HANGS)

    ran = await run(bench, made, tool_timeouts={"act": 0.5}, tool_timeout=HANGS)

    assert reason_of(ran.actions[0]).startswith("ToolTimeout: no answer within 0.5 s")


async def test_the_tools_own_time_wins_over_the_runs_for_all_tools(
    bench: Bench, signals: Signals
) -> None:
    made = hanging(Effect.AT_MOST_ONCE, tool_timeout=timedelta(seconds=0.5))

    ran = await run(bench, made, tool_timeout=HANGS, tool_timeouts={"another": 0.1})

    assert reason_of(ran.actions[0]).startswith("ToolTimeout: no answer within 0.5 s")


# --- the run's deadline


async def test_a_run_past_its_deadline_is_stopped_from_within(
    bench: Bench, signals: Signals
) -> None:
    app = one_agent([hanging(Effect.AT_MOST_ONCE), quick], [ACT, call(("quick", {})), say("Done.")])

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id(), run_deadline=1.5)
        with pytest.raises(RunDeadlineExceeded, match="run_deadline has passed") as failed:
            async with asyncio.timeout(SOON):
                await run.result()
        cleaned_up = CALLED["cleaned up"]
        status = await run.status()
        action = await only_action(client, run.id)
        row = await bench.sql("select state, stopped_at is not null, stop_reason from agent_runs")
        history = await bench.history(run.id)

    names = [e.activity_task_scheduled_event_attributes.activity_type.name for e in history.events]
    assert failed.value.code == "CL506"
    assert (CALLED["act"], cleaned_up) == (1, 1)
    assert status.state == "failed"
    assert action.state == "unknown"
    assert row == [("ended", True, "its run_deadline has passed")]
    assert names.count(CALL_MODEL) == 1
    assert "quick" not in names


@pytest.mark.parametrize("kind", KINDS)
async def test_a_heedless_tool_holds_no_run_beyond_its_deadline(
    bench: Bench, signals: Signals, kind: str
) -> None:
    app = one_agent([heedless(kind, signals)], [ACT, say("Done.")])

    async with bench.serving(app) as client:
        run = await client.start(
            "agent", "go", id=fresh_id(), run_deadline=1.5, tool_timeouts={"act": None}
        )
        with pytest.raises(RunDeadlineExceeded):
            async with asyncio.timeout(SOON):
                await run.result()
        left = await only_action(client, run.id)
        signals.release.set()

        async def recorded() -> bool:
            return (await only_action(client, run.id)).state == "ok"

        if kind == "thread":
            await eventually(recorded, seconds=SOON)

    assert left.state == "unknown"
    assert left.leased


async def test_a_model_that_hangs_is_cancelled_at_the_runs_deadline(bench: Bench) -> None:
    model = Hanging(100)

    async with bench.serving(App([Agent("agent", model, "", run_deadline=1)])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(RunDeadlineExceeded):
            async with asyncio.timeout(SOON):
                await run.result()

    assert (model.asked, model.cancelled) == (1, 1)


async def test_a_deadline_that_a_run_does_not_reach_does_nothing(
    bench: Bench, signals: Signals
) -> None:
    ran = await run(bench, acts, run_deadline=HANGS)

    assert ran.result.output == "Done."
    assert await bench.sql("select state, stopped_at from agent_runs") == [("ended", None)]


# --- nothing leaks, nothing blocks


async def test_hung_calls_leave_the_worker_as_it_was(bench: Bench, signals: Signals) -> None:
    @tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.2)
    async def swallows(number: int) -> int:
        while not signals.release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                CALLED["swallowed"] += 1
        return number

    @tool(effect=Effect.AT_MOST_ONCE, tool_timeout=0.2)
    def blocks(number: int) -> int:
        signals.release.wait(HANGS)
        return number

    in_process = isolated_tools.hangs_in_a_process
    # More of each kind than the worker has places.
    hung = call(
        *((made.name, {"number": n}) for made in (swallows, blocks, in_process) for n in range(8))
    )
    script = ScriptedModel("scripted", [hung, say("Done.")])
    next_one = ScriptedModel("next", [call(("quick", {}), ("act", {})), say("Done.")])
    app = App(
        [
            Agent("agent", script, "", [swallows, blocks, in_process]),
            Agent("next", next_one, "", [quick, acts]),
        ]
    )
    few = Bench(bench.temporal, bench.settings.model_copy(update={"max_concurrent_activities": 5}))

    async with few.serving(app) as client:
        first = await few.start(client)
        children = psutil.Process().children(recursive=True)
        processes = [one for one in children if "commitline.activities.isolated" in one.cmdline()]
        began = time.monotonic()
        second = await few.outcome(await client.start("next", "go", id=fresh_id()))
        took = time.monotonic() - began
        signals.release.set()

        async def late() -> bool:
            states = Counter(action.state for action in await client.run(first.id).actions())
            return states == {"ok": 8, "unknown": 16}

        recorded = await eventually(late, seconds=SOON)

    assert Counter(result.status for result in first.results) == {"unknown": 24}
    assert CALLED["swallowed"] >= 8
    assert processes == []
    assert [result.status for result in second.results] == ["ok", "ok"]
    assert took < SOON  # far less than what hangs
    assert recorded


async def test_calls_that_wait_for_a_lock_leave_the_workers_places_to_others(bench: Bench) -> None:
    @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
    async def charge(order_id: str) -> str:
        """Charge an order."""
        CALLED["charge"] += 1
        return "charged"

    # More than the worker has places.
    many = call(*[("charge", {"order_id": "4821"})] * 15)
    waiter = ScriptedModel("waiter", [many, say("Done.")])
    other = ScriptedModel("other", [call(("quick", {}), ("act", {})), say("Done.")])
    app = App([Agent("agent", waiter, "", [charge]), Agent("other", other, "", [quick, acts])])
    few = Bench(bench.temporal, bench.settings.model_copy(update={"max_concurrent_activities": 5}))

    async with await psycopg.AsyncConnection.connect(bench.settings.database_url) as application:
        await intend(application, charge, {"order_id": "4821"})
        with capture_logs() as logs:
            async with few.serving(app) as client:
                waiting = await client.start("agent", "go", id=fresh_id())

                async def full() -> bool:
                    return [log["event"] for log in logs].count("ledger.key_busy") >= 5

                await eventually(full, seconds=SOON)
                began = time.monotonic()
                beside = [await client.start("other", "go", id=fresh_id()) for _ in range(3)]
                ended = await asyncio.gather(*(few.outcome(run) for run in beside))
                took = time.monotonic() - began
                still_waits = (await waiting.status()).state == "running"
                await application.rollback()
                ran = await few.outcome(waiting)

    assert [[one.status for one in run.results] for run in ended] == [["ok", "ok"]] * 3
    assert took < 20, "an attempt that waits keeps its place for seconds"
    assert still_waits
    assert [one.status for one in ran.results] == ["ok"] * 15
    assert CALLED["charge"] == 1


async def test_a_tool_that_blocks_the_tools_loop_blocks_nothing_else(
    bench: Bench, signals: Signals
) -> None:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def block() -> str:
        CALLED["block"] += 1
        signals.began.set()
        signals.release.wait(HANGS)
        return "blocked"

    @tool(effect=Effect.AT_MOST_ONCE)
    def in_a_thread() -> str:
        return "in a thread"

    blocker = ScriptedModel("blocker", [call(("block", {})), say("Done.")])
    other = ScriptedModel("other", [call(("in_a_thread", {})), say("Done.")])
    app = App([Agent("agent", blocker, "", [block]), Agent("other", other, "", [in_a_thread])])

    with capture_logs() as logs:
        async with bench.serving(app) as client:
            run = await client.start("agent", "go", id=fresh_id())
            await seen(signals.began)
            began = time.monotonic()
            beside = await bench.outcome(await client.start("other", "go", id=fresh_id()))
            still_blocked = CALLED["block"] == 1 and (await run.status()).state == "running"
            # Past the heartbeat timeout of 1 s three times over.
            await asyncio.sleep(max(0.0, began + 3 - time.monotonic()))
            signals.release.set()
            ran = await bench.outcome(run)

            async def unblocked() -> bool:
                return any(log["event"] == "tools.loop_unblocked" for log in logs)

            assert await eventually(unblocked, seconds=SOON)

    blocked = [log["tools"] for log in logs if log["event"] == "tools.loop_blocked"]
    assert [result.status for result in beside.results] == ["ok"]
    assert still_blocked
    assert blocked == [["block"]]
    assert CALLED["block"] == 1
    assert [(a.state, a.tries) for a in ran.actions] == [("ok", 1)]


# --- the app's hooks


async def test_the_apps_hooks_run_once_each_on_the_loop_of_the_async_tools(
    bench: Bench, signals: Signals
) -> None:
    loops: dict[str, asyncio.AbstractEventLoop] = {}

    def hook(name: str) -> Callable[[], Awaitable[None]]:
        async def note() -> None:
            CALLED[name] += 1
            loops[name] = asyncio.get_running_loop()

        return note

    @tool(effect=Effect.READ, name="act")
    async def act() -> list[bool]:
        loops["tool"] = asyncio.get_running_loop()
        return [CALLED["start"] == 1, CALLED["stop"] == 0]

    script = ScriptedModel("scripted", [ACT, say("Done.")])
    app = App(
        [Agent("agent", script, "", [act])],
        on_start=hook("start"),  # type: ignore[arg-type]
        on_stop=hook("stop"),  # type: ignore[arg-type]
    )

    ran = await bench.run(app)

    assert json.loads(ran.results[0].content) == [True, True]
    assert (CALLED["start"], CALLED["stop"]) == (1, 1)
    assert loops["start"] is loops["tool"] is loops["stop"]
    assert loops["tool"] is not asyncio.get_running_loop()


async def test_a_start_that_fails_keeps_the_worker_from_starting(bench: Bench) -> None:
    async def fails() -> None:
        raise RuntimeError("no pool")

    model = ScriptedModel("scripted", [say("Done.")])
    app = App([Agent("agent", model, "")], on_start=fails)
    client = AgentClient(bench.temporal, bench.settings)
    run = await client.start("agent", "go", id=fresh_id())

    with pytest.raises(RuntimeError, match="no pool"):
        async with bench.serving(app):
            pytest.fail("the worker started")

    assert model.calls == 0
    assert await bench.sql("select * from agent_runs") == []
    assert (await run.status()).state == "running"
    await bench.temporal.get_workflow_handle(run.id).terminate()
