"""A new version of the workers under a run that waits for a person, with real processes.

Each version is a worker process with the same app and a text of its own, in which its tool
answers: so it shows which version carried a call out.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
import pytest
from temporalio.api.workflow.v1 import WorkflowExecutionVersioningInfo
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.service import RPCError

from commitline import Agent, App, Effect, RunHandle, ScriptedModel, tool
from commitline.activities.model.scripted_model import call, say
from commitline.operating import temporal_checks
from commitline.testing.processes import WorkerProcess
from commitline.tests.crash.probe import Probe, free_port
from commitline.tests.crash.stage import Scene, until

BUILD: Final = os.environ.get("COMMITLINE_BUILD_ID", "")


@tool(effect=Effect.IDEMPOTENT)
async def refund(result: str) -> str:
    """Pay back."""
    return f"refunded by {BUILD}"


@tool(effect=Effect.IDEMPOTENT, approval=True, compensate=refund)
async def pay(order_id: str) -> str:
    """Pay for an order, once a person has approved it."""
    return f"paid by {BUILD}"


app = App(
    [
        Agent(
            "support",
            model=ScriptedModel("pays", [call(("pay", {"order_id": "4821"})), say("Paid.")]),
            instructions="",
            tools=[pay],
        )
    ]
)

_APP: Final = "commitline.tests.crash.test_versions:app"


def worker_of(scene: Scene, build: str, **environment: str) -> WorkerProcess:
    """Return a worker of a version; its deployment is the scene's own."""
    named = {"COMMITLINE_DEPLOYMENT": scene.settings.task_queue, "COMMITLINE_BUILD_ID": build}
    return scene.worker(_APP, **named, **environment)


async def make_current(scene: Scene, build: str) -> None:
    """Have Temporal send new work to a version, once its workers poll."""
    asked = SetWorkerDeploymentCurrentVersionRequest(
        namespace=scene.temporal.namespace,
        deployment_name=scene.settings.task_queue,
        build_id=build,
    )

    async def is_set() -> bool:
        try:
            await scene.temporal.workflow_service.set_worker_deployment_current_version(asked)
        except RPCError:
            return False  # it has not heard of the version yet
        return True

    await until(is_set)


async def version_of(run: RunHandle) -> WorkflowExecutionVersioningInfo:
    """Return what Temporal says of a run's version."""
    return (await run.describe()).raw_description.workflow_execution_info.versioning_info


def waits(scene: Scene, run: RunHandle) -> Callable[[], Awaitable[bool]]:
    """Return whether a run waits for a person."""

    async def is_waiting() -> bool:
        open_ones = await (await scene.client.ledger()).approvals.list()
        return any(one.run_key.startswith(f"{run.id}/") for one in open_ones)

    return is_waiting


async def result_of(run: RunHandle, tool: str = "pay") -> str | None:
    """Return what the run's one call of a tool returned."""
    (action,) = [action for action in await run.actions() if action.tool == tool]
    return action.result


async def test_a_run_that_waits_for_a_person_goes_on_with_the_new_version_and_loses_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"COMMITLINE_DEPLOYMENT": scene.settings.task_queue}
    for name, value in {**scene.environment, **named}.items():
        monkeypatch.setenv(name, value)
    port = free_port(scene.log.parent)
    with worker_of(scene, "one", COMMITLINE_HEALTH_ADDRESS=f"127.0.0.1:{port}") as old:
        await Probe(port).becomes(ready=True)
        idle = await temporal_checks.deployment()
        await make_current(scene, "one")
        serving = await temporal_checks.deployment()
        run = await scene.start()
        await until(waits(scene, run))
        before = await version_of(run)
        with worker_of(scene, "two"):
            await make_current(scene, "two")
            left = await asyncio.to_thread(old.terminate)
            async with asyncio.timeout(60):  # for ever, if the run stayed where nobody polls
                await run.decide("0.0", approve=True, by="ada")
                answer = await run.result()
            after = await version_of(run)

    assert (idle.state, serving.state) == ("wrong", "ok")
    assert "set-current-version" in idle.remedy
    assert serving.found == f"{scene.settings.task_queue}, current one"
    assert left == 0
    assert (before.deployment_version.build_id, after.deployment_version.build_id) == ("one", "two")
    assert answer.output == "Paid."
    assert await result_of(run) == '"paid by two"'
    history = await scene.temporal.get_workflow_handle(run.id).fetch_history()
    assert not [
        event for event in history.events if event.HasField("workflow_task_failed_event_attributes")
    ]


async def test_a_pinned_run_ends_on_its_version_while_a_migration_and_new_runs_go_past_it(
    scene: Scene,
) -> None:
    pinned = {"COMMITLINE_VERSIONING": "pinned"}
    with worker_of(scene, "one", **pinned) as old:
        await make_current(scene, "one")
        run = await scene.start()
        await until(waits(scene, run))
        await _migrate_as_the_next_release_would(scene)
        with worker_of(scene, "two", **pinned):
            await make_current(scene, "two")
            newer = await scene.client.start("support", "Pay.", id=f"{scene.run_id}-newer")
            await until(waits(scene, newer))
            for one in (run, newer):
                await one.decide("0.0", approve=True, by="ada")
            answers = [await one.result() for one in (run, newer)]
            await asyncio.to_thread(old.terminate)
            await run.undo(by="ada")

    assert [one.output for one in answers] == ["Paid.", "Paid."]
    assert await result_of(run) == '"paid by one"'
    assert await result_of(newer) == '"paid by two"'
    assert await result_of(run, "refund") == '"refunded by two"'


async def _migrate_as_the_next_release_would(scene: Scene) -> None:
    async with await psycopg.AsyncConnection.connect(scene.settings.database_url) as connection:
        await connection.execute("alter table agent_approvals add column next_release text")
        await connection.execute("alter table agent_actions add column next_release int default 0")
        await connection.execute(
            "insert into agent_schema_migrations (version, name) values (99, '0099_next.sql')"
        )
