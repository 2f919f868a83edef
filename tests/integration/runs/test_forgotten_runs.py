"""Runs that Temporal has forgotten, as after retention: nothing begins them anew."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from commitline import Agent, App, Effect, Plan, step, tool
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.client import AgentClient
from commitline.errors import RunInputConflict, RunNotFound
from commitline.identity import thread_workflow

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import Signals, seen

CALLED: dict[str, int] = {}


@tool(effect=Effect.AT_MOST_ONCE)
async def mail(to: str) -> str:
    CALLED["mail"] = CALLED.get("mail", 0) + 1
    return f"sent to {to}"


MAIL = call(("mail", {"to": "ada"}))


async def forgotten(bench: Bench, id: str) -> None:
    """Delete a workflow's history, and wait until Temporal does not know the workflow."""
    await bench.temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=bench.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=id),
        )
    )

    async def gone() -> bool:
        try:
            await bench.temporal.get_workflow_handle(id).describe()
        except RPCError as err:
            return err.status is RPCStatusCode.NOT_FOUND
        return False

    await eventually(gone)


async def test_a_run_that_temporal_has_forgotten_is_joined_and_not_begun_anew(
    bench: Bench,
) -> None:
    run_id = fresh_id()

    async with bench.serving(one_agent([mail], [MAIL, say("Done.")])) as client:
        await (await client.start("agent", "go", id=run_id)).result()
        await forgotten(bench, run_id)
        again = await client.start("agent", "go", id=run_id)
        with pytest.raises(RunNotFound, match="the ledger has what it did"):
            await again.result()
        with pytest.raises(RunInputConflict):
            await client.start("agent", "another", id=run_id)
        actions = await again.actions()

    assert CALLED == {"mail": 1}
    assert [(one.tool, one.state) for one in actions] == [("mail", "ok")]


async def test_a_run_whose_history_is_deleted_under_way_is_not_begun_anew(
    bench: Bench, signals: Signals
) -> None:
    run_id = fresh_id()

    @tool(effect=Effect.AT_MOST_ONCE, name="mail")
    async def slow_mail(to: str) -> str:
        CALLED["mail"] = CALLED.get("mail", 0) + 1
        signals.began.set()
        await asyncio.to_thread(signals.release.wait)
        return f"sent to {to}"

    app = one_agent([slow_mail], [MAIL, say("Done.")])
    async with bench.serving(app, cached=0) as client:
        await client.start("agent", "go", id=run_id)
        await seen(signals.began)
        await forgotten(bench, run_id)
        again = await client.start("agent", "go", id=run_id)
        with pytest.raises(RunNotFound):
            await again.result()
        signals.release.set()

    assert CALLED == {"mail": 1}


async def test_a_plan_that_temporal_has_forgotten_is_joined_and_not_begun_anew(
    bench: Bench,
) -> None:
    run_id = fresh_id("plan")
    plan = Plan("tell", [step(mail, {"to": "ada"})])

    async with bench.serving(App(tools=[mail])) as client:
        await (await client.start_plan(plan, id=run_id)).result()
        await forgotten(bench, run_id)
        again = await client.start_plan(plan, id=run_id)
        with pytest.raises(RunNotFound):
            await again.result()
        with pytest.raises(RunInputConflict):
            await client.start_plan(Plan("tell", [step(mail, {"to": "bob"})]), id=run_id)
        actions = await again.actions()

    assert CALLED == {"mail": 1}
    assert [one.state for one in actions] == ["ok"]


async def test_a_request_whose_run_temporal_has_forgotten_has_its_reply_all_the_same(
    bench: Bench,
) -> None:
    thread = fresh_id("thread")

    async with bench.serving(one_agent([mail], [MAIL, say("Done.")])) as client:
        said = await _twice(client, bench, thread)

    assert said == ["Done."] * 3
    assert CALLED == {"mail": 1}


async def _twice(client: AgentClient, bench: Bench, thread: str) -> list[str]:
    """Say the same before and after Temporal forgets the run that answered it."""
    first = await client.start("agent", "go", thread=thread, request_id="r1")
    results = [await first.result()]
    await forgotten(bench, thread_workflow(thread))
    results.append(await client.send(thread, "go", request_id="r1"))
    again = await client.start("agent", "go", thread=thread, request_id="r1")
    results.append(await again.result())
    return [str(one.output) for one in results]


async def test_a_stopped_run_that_never_opened_is_joined_after_temporal_forgot_it(
    bench: Bench,
) -> None:
    run_id = fresh_id()
    model = ScriptedModel("scripted", [MAIL, say("Done.")])
    app = App(agents=[Agent("agent", model, "Do it.", tools=[mail])])

    async with AgentClient(bench.temporal, bench.settings) as client:
        await client.start("agent", "go", id=run_id)  # no worker is there yet
        await client.run(run_id).stop(reason="a mistake", wait_seconds=0)
        await forgotten(bench, run_id)
    async with bench.serving(app) as client:
        again = await client.start("agent", "go", id=run_id)
        with pytest.raises(RunNotFound):
            await again.result()

    assert CALLED == {}
