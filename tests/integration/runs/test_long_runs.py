"""Runs of many turns: they continue as new, lose nothing, and leave the pool to others."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from commitline import Agent, App, Effect, RunHandle, Tool, ToolContext, tool
from commitline.activities.contract.approvals import DECIDE
from commitline.activities.contract.conversation import Completion, Usage
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.errors import RunFailed
from commitline.ledger import ApprovalLedger
from commitline.workflows.progress import Progress

from .bench import Bench, eventually, fresh_id
from .playing import Says, turn_of

SOON = 300.0
"""Seconds: far longer than anything here takes, on a busy machine too."""


def charging(called: Counter[str]) -> Tool:
    @tool(effect=Effect.IDEMPOTENT)
    async def charge(ctx: ToolContext, order: str) -> dict[str, str]:
        """Charge an order."""
        called[order] += 1
        return {"order": order, "at": ctx.position}

    return charge


@tool(effect=Effect.READ)
async def read(text: str) -> int:
    """Read so much that a history is soon too long: of arguments, a history has the whole."""
    return len(text)


def reads() -> list[tuple[str, dict[str, str]]]:
    """Three calls that fill a history."""
    return [("read", {"text": "x" * 190_000})] * 3


async def chain(bench: Bench, id: str) -> list[WorkflowExecutionStatus | None]:
    """Return how each execution of a run ended, newest first, by following the links back."""
    found: list[WorkflowExecutionStatus | None] = []
    run_id: str | None = None
    while True:
        handle = bench.temporal.get_workflow_handle(id, run_id=run_id)
        found.append((await handle.describe()).status)
        (first, *_) = (await handle.fetch_history()).events
        run_id = first.workflow_execution_started_event_attributes.continued_execution_run_id
        if not run_id:
            return found


@pytest.mark.parametrize(
    ("turns", "beside"),
    [
        pytest.param(8, reads(), id="large"),
        pytest.param(400, [], id="many", marks=pytest.mark.slow),
    ],
)
async def test_a_run_that_goes_on_as_new_ends_well_with_an_agents_defaults(
    bench: Bench, turns: int, beside: list[tuple[str, dict[str, str]]]
) -> None:
    called: Counter[str] = Counter()

    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        used = Usage(input_tokens=turn + 1, output_tokens=2)
        if turn == turns:
            return Completion(text="Done.", usage=used)
        made = call(("charge", {"order": f"{turn}"}), *beside)
        return Completion(calls=made.calls, finish_reason="tool_calls", usage=used)

    model = Says(answer)
    app = App([Agent("agent", model, "Do it.", tools=[charging(called), read])])
    # A request whose heartbeat is late is made again, and would be one too many.
    patient = Bench(bench.temporal, bench.settings.model_copy(update={"heartbeat_seconds": 10.0}))
    async with patient.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        async with asyncio.timeout(SOON):
            result = await run.result()
        actions = await run.actions()
        messages = await (await run.thread()).messages()
        progress = await eventually(lambda: _progress(run))
        executions = await chain(bench, run.id)
        runs = await bench.sql("select state, input_tokens, output_tokens from agent_runs")

    asked = turns + 1
    assert (result.output, result.steps) == ("Done.", asked)
    assert executions[0] is WorkflowExecutionStatus.COMPLETED
    assert len(executions) >= 2
    assert set(executions[1:]) == {WorkflowExecutionStatus.CONTINUED_AS_NEW}
    assert called == {f"{turn}": 1 for turn in range(turns)}
    assert model.calls == asked
    assert [one.position for one in actions] == [f"{turn}.0" for turn in range(turns)]
    assert {one.state for one in actions} == {"ok"}
    assert [one.step for one in messages if one.role == "assistant"] == list(range(asked))
    assert [one.version for one in messages if one.role == "assistant"] == list(range(1, asked + 1))
    # Over all executions: nothing is forgotten, nothing is counted twice.
    assert result.usage == Usage(asked * (asked + 1) // 2, 2 * asked)
    assert runs == [("ended", asked * (asked + 1) // 2, 2 * asked)]
    assert progress is not None
    assert (progress.steps, progress.usage) == (asked, result.usage)


async def _progress(run: RunHandle) -> Progress | None:
    """Ask where the run is; a worker that has forgotten it reads its history first."""
    return (await run.status()).progress


@pytest.mark.slow
async def test_ten_conversations_of_fifty_turns_share_a_pool_of_four_connections(
    bench: Bench,
) -> None:
    called: Counter[str] = Counter()

    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        (name,) = [one.text for one in request.messages if one.role == "user"]
        return call(("charge", {"order": f"{name}-{turn}"})) if turn < 49 else say(name)

    app = App([Agent("agent", Says(answer), "Do it.", tools=[charging(called)])])
    names = [f"customer-{index}" for index in range(10)]

    async def talk(client: AgentClient, name: str) -> tuple[str, int]:
        reply = await client.send(fresh_id("thread"), name, agent="agent")
        return reply.output, reply.steps

    async with bench.serving(app) as client:
        async with asyncio.timeout(SOON):
            replies = await asyncio.gather(*(talk(client, name) for name in names))
        threads = await bench.sql(
            "select version, (select count(*) from agent_messages m"
            " where m.thread_id = t.thread_id) from agent_threads t"
        )

    assert replies == [(name, 50) for name in names]
    assert called == {f"{name}-{turn}": 1 for name in names for turn in range(49)}
    assert threads == [(50, 100)] * 10


async def test_a_run_that_continued_as_new_is_stopped_as_any_other(bench: Bench) -> None:
    called: Counter[str] = Counter()
    began = threading.Event()

    @tool(effect=Effect.AT_MOST_ONCE)
    async def hang() -> str:
        called["hang"] += 1
        began.set()
        await asyncio.sleep(600)
        return "never"

    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        if turn < 4:
            return call(*reads())
        return call(("hang", {}))

    app = App([Agent("agent", Says(answer), "Do it.", tools=[read, hang])])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        assert await asyncio.to_thread(began.wait, SOON)
        executions = await chain(bench, run.id)
        stopped = await run.stop(reason="enough")
        actions = await run.actions()
        again: list[Any] = await bench.sql("select state, stop_reason from agent_runs")

    assert len(executions) == 2
    assert stopped.state == "canceled"
    assert [(one.position, one.state) for one in actions] == [("4.0", "unknown")]
    assert again == [("ended", "enough")]
    assert called == {"hang": 1}


def slow_decisions_of_eve(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold what eve decides; return what says that it is held, and what releases it."""
    held, release = asyncio.Event(), asyncio.Event()
    real = ApprovalLedger.decide

    async def slow(self: ApprovalLedger, *args: Any, **options: Any) -> Any:
        if options["by"] == "eve":
            held.set()
            await release.wait()
        return await real(self, *args, **options)

    monkeypatch.setattr(ApprovalLedger, "decide", slow)
    return held, release


@pytest.mark.parametrize("how", ["cancelled", "stopped", "stopped and undone"])
async def test_a_cancellation_is_not_lost_while_a_run_goes_on_as_new(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    called: Counter[str] = Counter()
    held, release = slow_decisions_of_eve(monkeypatch)

    @tool(effect=Effect.IDEMPOTENT)
    async def refund(turn: int) -> str:
        called["refund"] += 1
        return "refunded"

    @tool(effect=Effect.IDEMPOTENT, compensate=refund)
    async def charge(turn: int) -> str:
        called["charge"] += 1
        return "charged"

    @tool(effect=Effect.IDEMPOTENT, approval=True)
    async def pay() -> str:
        return "paid"

    def answer(request: ModelRequest) -> Completion:
        turn = turn_of(request)
        if turn == 0:
            return call(("pay", {}))
        if turn == 8:
            return say("Done.")
        return call(("charge", {"turn": turn}), *reads())

    app = App([Agent("agent", Says(answer), "Do it.", tools=[charge, read, pay])])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await eventually(run.approvals)
        late = asyncio.create_task(run.decide("0.0", approve=True, by="eve"))
        await held.wait()
        await run.decide("0.0", approve=True, by="ada")
        await eventually(lambda: _wants_to_go_on(bench, run))
        charged = called["charge"]
        if how == "cancelled":
            await bench.temporal.get_workflow_handle(run.id).cancel()
        else:
            await run.stop(compensate="undone" in how, wait_seconds=0)
        release.set()
        with pytest.raises(RunFailed, match="was canceled"):
            async with asyncio.timeout(SOON):
                await run.result()
        await asyncio.gather(late, return_exceptions=True)
        state = (await run.status()).state
        executions = await chain(bench, run.id)
        runs = await bench.sql("select state from agent_runs")

    assert state == "canceled"
    assert executions == [WorkflowExecutionStatus.CANCELED]
    assert runs == [("ended",)]
    assert called["charge"] == charged > 0
    assert called["refund"] == (charged if "undone" in how else 0)


async def _wants_to_go_on(bench: Bench, run: RunHandle) -> bool:
    """Whether a run that was told to go on as new waits for nothing but the decision."""
    events = (await bench.history(run.id)).events
    idle = events[-1].HasField("workflow_task_completed_event_attributes")  # it led to nothing
    told = [
        one.workflow_task_started_event_attributes.suggest_continue_as_new
        for one in events
        if one.HasField("workflow_task_started_event_attributes")
    ]
    described = await run.describe()
    pending = [one.activity_type.name for one in described.raw_description.pending_activities]
    still = described.history_length == len(events)
    return idle and still and told[-1] and pending == [DECIDE]
