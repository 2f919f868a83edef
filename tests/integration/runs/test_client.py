"""The client: joining, results and errors by kind and code, status, cancelling, converters."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError

from commitline import Effect, tool
from commitline.activities.contract.encoding import pack
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.errors import (
    CommitlineError,
    ConfigurationError,
    MaxStepsExceeded,
    ModelRejected,
    PlanDivergence,
    RunFailed,
    RunInputConflict,
    RunNotFound,
)
from commitline.workflows import RunInput

from .bench import Bench, eventually, fresh_id, one_agent


@tool(effect=Effect.AT_MOST_ONCE)
async def note(text: str) -> str:
    return text


NOTE = call(("note", {"text": "hello"}))


async def test_starting_twice_with_one_id_is_one_run(bench: Bench) -> None:
    run_id = fresh_id()

    async with bench.serving(one_agent([note], [NOTE, say("Done.")])) as client:
        first = await client.start("agent", "go", id=run_id)
        joined = await client.start("agent", "go", id=run_id)
        results = [await first.result(), await joined.result()]
        after_its_end = await client.start("agent", "go", id=run_id)
        results.append(await after_its_end.result())
        actions = await after_its_end.actions()

    assert [result.output for result in results] == ["Done.", "Done.", "Done."]
    assert len(actions) == 1


async def test_other_input_under_an_id_is_refused_before_and_after_the_end(bench: Bench) -> None:
    run_id = fresh_id()
    client = AgentClient(bench.temporal, bench.settings)

    await client.start("agent", "go", id=run_id)
    with pytest.raises(RunInputConflict) as while_it_runs:
        await client.start("agent", "stay", id=run_id)
    with pytest.raises(RunInputConflict):
        await client.start("another", "go", id=run_id)
    async with bench.serving(one_agent([], [say("Done.")])):
        await client.run(run_id).result()
    with pytest.raises(RunInputConflict) as after_its_end:
        await client.start("agent", "stay", id=run_id)

    assert while_it_runs.value.code == after_its_end.value.code == "CL205"


async def test_a_run_out_of_steps_ends_by_kind_and_what_it_did_stands(bench: Bench) -> None:
    app = one_agent([note], [NOTE, NOTE, NOTE], max_steps=2)

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(MaxStepsExceeded) as failed:
            await run.result()
        actions = await run.actions()
        status = await run.status()
        state = await bench.sql("select state from agent_runs")

    assert failed.value.code == "CL502"
    assert failed.value.message == "no answer within 2 model turns"
    assert [(a.position, a.state) for a in actions] == [("0.0", "ok"), ("1.0", "ok")]
    assert status.state == "failed"
    assert state == [("ended",)]


async def test_a_model_that_refuses_ends_the_run_by_kind(bench: Bench) -> None:
    app = one_agent([], [ModelRejected("no such model")])

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(ModelRejected, match="no such model") as failed:
            await run.result()

    assert failed.value.code == "CL402"


async def test_an_unknown_agent_ends_the_run_and_is_named(bench: Bench) -> None:
    async with bench.serving(one_agent([], [say("Done.")])) as client:
        run = await client.start("nobody", "go", id=fresh_id())
        with pytest.raises(ConfigurationError, match="'nobody'; it has agent") as failed:
            await run.result()

    assert failed.value.code == "CL103"


async def test_a_plan_that_diverged_ends_the_run_and_nothing_is_called(bench: Bench) -> None:
    calls: list[str] = []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def remember(text: str) -> str:
        calls.append(text)
        return text

    app = one_agent([remember], [call(("remember", {"text": "hello"})), say("Done.")])
    async with bench.serving(app) as client:
        ran = await bench.start(client)
        await bench.sql("update agent_actions set requested_digest = repeat('0', 64)")
        await bench.reset(ran.id)
        with pytest.raises(PlanDivergence, match="remember") as failed:
            await client.run(ran.id).result()
        state = await bench.sql("select state from agent_runs")

    assert failed.value.code == "CL201"
    assert calls == ["hello"]
    assert state == [("ended",)]


async def test_a_terminated_run_is_a_failed_one(bench: Bench) -> None:
    client = AgentClient(bench.temporal, bench.settings)
    run = await client.start("agent", "go", id=fresh_id())

    await bench.temporal.get_workflow_handle(run.id).terminate()
    with pytest.raises(RunFailed, match="was terminated") as failed:
        await run.result()

    assert failed.value.code == "CL501"
    assert (await run.status()).state == "terminated"


async def test_cancelling_waits_for_the_tool_at_work_and_leaves_its_outcome_unknown(
    bench: Bench,
) -> None:
    began = asyncio.Event()
    ended: list[WorkflowExecutionStatus | None] = []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def slow() -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            ended.append((await workflow.describe()).status)
        return "done"

    async with bench.serving(one_agent([slow], [call(("slow", {})), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        workflow: WorkflowHandle[Any, Any] = bench.temporal.get_workflow_handle(run.id)
        await began.wait()
        await workflow.cancel()
        with pytest.raises(RunFailed, match="was canceled"):
            await run.result()
        status = await run.status()
        actions = await run.actions()
        state = await bench.sql("select state from agent_runs")

    assert ended == [WorkflowExecutionStatus.RUNNING]
    assert status.state == "canceled"
    assert [(a.tool, a.state) for a in actions] == [("slow", "unknown")]
    assert actions[0].parked_reason == "the run was cancelled while the tool was at work"
    assert state == [("ended",)]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_value_counts_after_a_cancellation_that_its_tool_cannot_have_heeded(
    bench: Bench, kind: str
) -> None:
    began, cancelled = threading.Event(), threading.Event()

    @tool(effect=Effect.AT_MOST_ONCE, name="act")
    async def coroutine() -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
        return "I was cancelled, sorry"

    @tool(effect=Effect.AT_MOST_ONCE, name="act")
    def thread() -> str:
        began.set()
        cancelled.wait(60)
        return "done"

    made = coroutine if kind == "coroutine" else thread
    async with bench.serving(one_agent([made], [call(("act", {})), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        assert await asyncio.to_thread(began.wait, 60)
        await bench.temporal.get_workflow_handle(run.id).cancel()
        cancelled.set()
        with pytest.raises(RunFailed, match="was canceled"):
            await run.result()
        actions = await run.actions()

    expected = ("unknown", None) if kind == "coroutine" else ("ok", '"done"')
    assert [(a.state, a.result) for a in actions] == [expected]


async def test_an_unknown_id_is_not_found(bench: Bench) -> None:
    client = AgentClient(bench.temporal, bench.settings)
    run = client.run(fresh_id())

    asked: list[Callable[[], Any]] = [run.result, run.status, run.actions]
    for ask in asked:
        with pytest.raises(RunNotFound) as missing:
            await ask()
        assert missing.value.code == "CL504"


async def test_a_status_tells_the_progress_while_a_worker_is_there_to_say(bench: Bench) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect=Effect.AT_MOST_ONCE, summary="Wait for {whom}")
    async def wait(whom: str) -> str:
        began.set()
        await go_on.wait()
        return whom

    client = AgentClient(bench.temporal, bench.settings)
    run = await client.start("agent", "go", id=fresh_id())
    without_worker = await run.status()
    app = one_agent([wait], [call(("wait", {"whom": "Ada"})), say("Done.")])
    async with bench.serving(app):
        await began.wait()
        at_work = await run.status()
        go_on.set()
        await run.result()
        at_its_end = await run.status()

    assert (without_worker.state, without_worker.progress) == ("running", None)
    assert at_work.progress is not None
    assert (at_work.progress.agent, at_work.progress.model) == ("agent", "scripted")
    assert [(c.position, c.summary, c.state) for c in at_work.progress.calls] == [
        ("0.0", "Wait for Ada", "running")
    ]
    assert at_its_end.progress is not None
    assert (at_its_end.state, at_its_end.progress.state) == ("completed", "done")
    assert [c.state for c in at_its_end.progress.calls] == ["ok"]
    assert at_its_end.run_key == at_work.run_key == without_worker.run_key


async def test_a_cron_run_is_refused(bench: Bench) -> None:
    async with bench.serving(one_agent([], [say("Done.")])):
        workflow = await bench.temporal.start_workflow(
            "AgentRun",
            pack(RunInput("agent", "go")),
            id=fresh_id(),
            task_queue=bench.settings.task_queue,
            cron_schedule="@every 1s",
        )
        first = bench.temporal.get_workflow_handle(
            workflow.id, run_id=workflow.first_execution_run_id
        )

        async def end() -> Any:
            # Asked of the first tick itself: the next one has been started by its failure.
            last = (await first.fetch_history()).events[-1]
            return last.workflow_execution_failed_event_attributes.failure.message

        told = await eventually(end)
        await bench.temporal.get_workflow_handle(workflow.id).terminate()

    assert f"{workflow.id} has a cron schedule [CL503]" in told
    assert await bench.sql("select * from agent_runs") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["garbage"],
        [{"prompt": "go"}],
        [None],
        [b"\xff"],
        [[1, 2]],
        [],
        [{"agent": "agent", "prompt": "go"}, "and more"],
    ],
    ids=["text", "a field missing", "null", "bytes", "a list", "nothing", "too much"],
)
async def test_a_run_started_with_garbage_fails_and_does_not_loop(
    bench: Bench, arguments: list[Any]
) -> None:
    async with bench.serving(one_agent([], [say("Done.")])):
        workflow = await bench.temporal.start_workflow(
            "AgentRun", args=arguments, id=fresh_id(), task_queue=bench.settings.task_queue
        )
        async with asyncio.timeout(60):
            with pytest.raises(WorkflowFailureError) as failed:
                await workflow.result()

    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "InvalidInput"


HALF = "half a character: \ud83d"


@pytest.mark.parametrize("converter", ["default", "pydantic"])
async def test_half_a_character_anywhere_goes_through_with_either_converter(
    bench: Bench, converter: str
) -> None:
    if converter == "pydantic":
        temporal = await Client.connect(
            bench.temporal.service_client.config.target_host,
            data_converter=pydantic_data_converter,
        )
        bench = replace(bench, temporal=temporal)

    @tool(effect=Effect.AT_MOST_ONCE)
    async def answer() -> str:
        return HALF

    @tool(effect=Effect.AT_MOST_ONCE)
    async def fail() -> str:
        raise RuntimeError(HALF)

    script = [
        call(("note", {"text": HALF}), ("answer", {}), ("fail", {}), text=HALF, ids=[HALF] * 3),
        say(HALF),
    ]

    async with bench.serving(one_agent([note, answer, fail], script)) as client:
        run = await client.start("agent", HALF, id=fresh_id())
        live = await bench.outcome(run)
        status = await run.status()
        replayed = await bench.rerun(client, run.id)

    assert live.result.output == HALF
    assert live.messages[0].text == HALF
    assert [r.status for r in live.results] == ["error", "ok", "unknown"]
    assert json.loads(live.results[1].content) == HALF
    assert live.results[0].call_id == HALF
    assert status.progress is not None
    assert status.progress.prompt == HALF
    assert replayed.messages == live.messages


async def test_every_error_of_a_run_can_be_caught_as_one(bench: Bench) -> None:
    async with bench.serving(one_agent([], [])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        with pytest.raises(CommitlineError):
            await run.result()
