"""Runs that Temporal has forgotten, as after retention: nothing begins them anew."""

from __future__ import annotations

import asyncio

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.service import RPCError, RPCStatusCode

from commitline import Agent, App, Effect, Plan, PlanHandle, RunHandle, step, tool
from commitline.activities.model.scripted_model import ScriptedModel, call, say
from commitline.client import AgentClient
from commitline.errors import RunInputConflict, RunNotFound
from commitline.identity import thread_workflow

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import Signals, seen, within

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


async def forgotten_all(bench: Bench, *ids: str) -> None:
    await asyncio.gather(*(forgotten(bench, one) for one in ids))


async def gone(run: RunHandle | PlanHandle) -> bool:
    """Whether Temporal has no such run, so that nothing of it is begun anew."""
    try:
        await within(run.result())
    except RunNotFound as err:
        return "the ledger has what it did" in err.message
    return False


async def test_runs_plans_and_conversations_that_temporal_has_forgotten_are_joined(
    bench: Bench,
) -> None:
    run_id, plan_id, thread = fresh_id(), fresh_id("plan"), fresh_id("thread")
    model = ScriptedModel("scripted", [MAIL, say("Done.")])
    agent = Agent("agent", model, "Do it.", tools=[mail])
    plan, other = (Plan("tell", [step(mail, {"to": to})]) for to in ("ada", "bob"))

    async with bench.serving(App(agents=[agent], tools=[mail])) as client:
        await (await client.start("agent", "go", id=run_id)).result()
        await (await client.start_plan(plan, id=plan_id)).result()
        asked = await client.start("agent", "go", thread=thread, request_id="r1")
        replies = [await asked.result()]
        await forgotten_all(bench, run_id, plan_id, thread_workflow(thread))
        run = await client.start("agent", "go", id=run_id)
        planned = await client.start_plan(plan, id=plan_id)
        joined = [await gone(run), await gone(planned)]
        with pytest.raises(RunInputConflict):
            await client.start("agent", "another", id=run_id)
        with pytest.raises(RunInputConflict):
            await client.start_plan(other, id=plan_id)
        states = [[one.state for one in await each.actions()] for each in (run, planned)]
        replies.append(await within(client.send(thread, "go", request_id="r1")))
        again = await client.start("agent", "go", thread=thread, request_id="r1")
        replies.append(await within(again.result()))

    assert joined == [True, True]
    assert states == [["ok"], ["ok"]]
    assert [one.output for one in replies] == ["Done."] * 3
    assert CALLED == {"mail": 3}


async def test_runs_that_had_not_ended_when_temporal_forgot_them_are_not_begun_anew(
    bench: Bench, signals: Signals
) -> None:
    run_id, stopped_id = fresh_id(), fresh_id("stopped")

    @tool(effect=Effect.AT_MOST_ONCE, name="mail")
    async def slow_mail(to: str) -> str:
        CALLED["mail"] = CALLED.get("mail", 0) + 1
        signals.began.set()
        await asyncio.to_thread(signals.release.wait)
        return f"sent to {to}"

    async with AgentClient(bench.temporal, bench.settings) as early:
        await early.start("agent", "go", id=stopped_id)  # no worker is there yet
        await early.run(stopped_id).stop(reason="a mistake", wait_seconds=0)
        await early.temporal.get_workflow_handle(stopped_id).terminate()
    async with bench.serving(one_agent([slow_mail], [MAIL, say("Done.")]), cached=0) as client:
        await client.start("agent", "go", id=run_id)
        await seen(signals.began)
        await forgotten_all(bench, run_id, stopped_id)
        runs = [await client.start("agent", "go", id=one) for one in (run_id, stopped_id)]
        signals.release.set()
        joined = [await gone(one) for one in runs]

    assert joined == [True, True]
    assert CALLED == {"mail": 1}
