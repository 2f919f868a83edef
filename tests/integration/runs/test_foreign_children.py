"""Child workflows of other frameworks: their calls belong to their parent's run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import commitline
from commitline import AgentClient, Effect
from commitline.errors import ApprovalRefused, InvalidArguments
from commitline.integrations import LedgerPlugin, effect
from commitline.ledger import Approval

from .bench import Bench, eventually, fresh_id
from .bench import commitline as command
from .relay_bench import ledger_of, look
from .test_forgotten_runs import forgotten

CALLS: Counter[str] = Counter()


@effect(Effect.IDEMPOTENT)
@activity.defn
async def pay(order_id: str) -> str:
    CALLS[order_id] += 1
    return commitline.current().idempotency_key


@workflow.defn
class Payer:
    @workflow.run
    async def run(self, order_id: str, again: bool) -> list[str]:
        key = await workflow.execute_activity(
            pay, order_id, start_to_close_timeout=timedelta(seconds=10)
        )
        if again:
            workflow.continue_as_new(args=[order_id, False])
        return [key]


@workflow.defn
class Clerk:
    @workflow.run
    async def run(self) -> list[Any]:
        return [
            await workflow.execute_child_workflow(
                Payer.run, args=[order_id, again], id=f"payer-{workflow.uuid4()}"
            )
            for order_id, again in (("4821", False), ("4822", True))
        ]


@effect(Effect.AT_MOST_ONCE, approve=True)
@activity.defn
async def wire(order_id: str, cents: int) -> str:
    CALLS[f"{order_id} {cents}"] += 1
    return f"wired {cents}"


@workflow.defn
class Wirer:
    """Makes one call that a person approves; goes on as new before it, if it is told to."""

    @workflow.run
    async def run(self, order_id: str, again: bool) -> str:
        if again:
            workflow.continue_as_new(args=[order_id, False])
        try:
            return await workflow.execute_activity(
                wire, args=[order_id, 4900], start_to_close_timeout=timedelta(seconds=10)
            )
        except ActivityError as err:
            failed = cast("ApplicationError", err.cause)
            return f"{failed.type}: {failed.message}"


@workflow.defn
class Boss:
    """Begins children that outlive it; goes on as new when it is told to, and ends then."""

    def __init__(self) -> None:
        self._on = False

    @workflow.run
    async def run(self, children: list[str]) -> None:
        for at, child in enumerate(children):
            await workflow.start_child_workflow(
                Wirer.run,
                args=[f"order-{at}", at % 2 == 1],
                id=child,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            )
        await workflow.wait_condition(lambda: self._on)
        if children:
            workflow.continue_as_new([])

    @workflow.signal
    def on(self) -> None:
        self._on = True


@asynccontextmanager
async def serving(bench: Bench) -> AsyncIterator[Client]:
    """Run a worker with the plugin; yield its client."""
    target = bench.temporal.service_client.config.target_host
    plugin = LedgerPlugin(bench.settings.database_url)
    client = await Client.connect(target, plugins=[plugin])
    async with Worker(
        client,
        task_queue=bench.settings.task_queue,
        workflows=[Clerk, Payer, Boss, Wirer],
        activities=[pay, wire],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=0,
    ):
        yield client


async def test_a_decision_reaches_the_child_that_waits_whatever_became_of_its_parent(
    bench: Bench,
) -> None:
    CALLS.clear()
    run_id, queue = fresh_id(), bench.settings.task_queue
    children = [
        f"{run_id}-{name}" for name in ("approved", "rejected", "edited", "at-the-end", "gone")
    ]
    async with (
        serving(bench) as temporal,
        AgentClient(bench.temporal, bench.settings) as client,
        ledger_of(bench) as ledger,
    ):
        boss = await temporal.start_workflow(Boss.run, children, id=run_id, task_queue=queue)
        run = client.run(run_id)

        async def all_wait() -> Sequence[Approval]:
            found = await run.approvals()
            return found if len(found) == len(children) else ()

        async def told(name: str) -> str:
            ended = temporal.get_workflow_handle(f"{run_id}-{name}")
            async with asyncio.timeout(20):
                return cast("str", await ended.result())

        async def is_over() -> bool:
            first = temporal.get_workflow_handle(run_id, run_id=boss.first_execution_run_id)
            return (await first.describe()).close_time is not None

        found = await eventually(all_wait)
        waiting = sorted(found, key=lambda one: one.position)
        said = await command(bench, "approve", f"{run_id}:{waiting[0].at}")
        approved = await told("approved")
        await boss.signal(Boss.on)
        await eventually(is_over)  # this execution is; the next one has no children
        await run.decide(waiting[1], approve=False, by="ada", reason="too much")
        rejected = await told("rejected")
        with pytest.raises(InvalidArguments, match="no parameter 'euros'"):
            await run.decide(waiting[2], approve=True, by="ada", args={"euros": 1})
        edited_args = {"order_id": "order-2", "cents": 100}
        await run.decide(waiting[2], approve=True, by="ada", args=edited_args)
        edited = await told("edited")
        last = temporal.get_workflow_handle(run_id)
        await last.signal(Boss.on)
        await last.result()
        await look(bench)
        (open_still,) = await ledger.runs.list()
        await forgotten(bench, run_id)  # by its namespace's retention
        await run.decide(waiting[3], approve=True, by="ada")
        at_the_end = await told("at-the-end")
        await temporal.get_workflow_handle(children[4]).terminate()
        with pytest.raises(ApprovalRefused, match="has ended: the call is not made"):
            await run.decide(waiting[4], approve=True, by="ada")
        await look(bench)
        (over,) = await ledger.runs.list()

    assert said.returncode == 0, said.stderr
    assert (approved, edited, at_the_end) == ("wired 4900", "wired 100", "wired 4900")
    assert rejected == "Rejected: not executed: rejected by ada: too much"
    assert CALLS == {"order-0 4900": 1, "order-2 100": 1, "order-3 4900": 1}
    assert (open_still.workflow_id, open_still.state, over.state) == (run_id, "running", "ended")


async def test_a_child_waits_for_its_own_run_alone_and_is_stopped_with_one_that_has_ended(
    bench: Bench,
) -> None:
    ids, queue = [fresh_id(), fresh_id()], bench.settings.task_queue
    child = fresh_id("child")
    async with (
        serving(bench) as temporal,
        AgentClient(bench.temporal, bench.settings) as client,
        ledger_of(bench) as ledger,
    ):
        bosses: list[WorkflowHandle[Any, Any]] = []
        asked: list[Approval] = []
        for one in ids:  # the second one has a child of the same id
            boss = await temporal.start_workflow(Boss.run, [child], id=one, task_queue=queue)
            asked += await eventually(client.run(one).approvals)
            bosses.append(boss)
            if one == ids[0]:
                await boss.terminate()
                await temporal.get_workflow_handle(child).terminate()
        with pytest.raises(ApprovalRefused, match="has ended: the call is not made"):
            await client.run(ids[0]).decide(asked[0], approve=True, by="ada")
        await look(bench)
        looked = {one.workflow_id: one.state for one in await ledger.runs.list()}
        await bosses[1].cancel()
        with pytest.raises(WorkflowFailureError):
            await bosses[1].result()
        await client.run(ids[1]).stop(reason="enough")  # its child waits still
        with pytest.raises(ApprovalRefused):
            await client.run(ids[1]).decide(asked[1], approve=True, by="ada")

    assert [one.waiting_workflow for one in asked] == [child, child]
    assert looked == {ids[0]: "ended", ids[1]: "running"}


async def test_a_reset_parent_that_starts_its_children_anew_finds_their_rows(
    bench: Bench,
) -> None:
    CALLS.clear()
    run_id, queue = fresh_id(), bench.settings.task_queue
    async with serving(bench) as client, ledger_of(bench) as ledger:
        first = await client.execute_workflow(Clerk.run, id=run_id, task_queue=queue)
        await bench.reset(run_id)
        again = await client.get_workflow_handle(run_id).result()
        actions = await ledger.list()

    assert again == first
    assert CALLS == {"4821": 1, "4822": 2}
    assert sorted(one.position for one in actions) == [
        "child.Payer#0.pay#0",
        "child.Payer#1.pay#0",
        "child.Payer#1.pay#1",
    ]
    assert {one.run_key.rpartition("/")[0] for one in actions} == {run_id}
