"""Child workflows of other frameworks: their calls belong to their parent's run."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import commitline
from commitline import Effect
from commitline.integrations import LedgerPlugin, effect
from commitline.ledger import ActionLedger, ledger_pool

from .bench import Bench, fresh_id

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


async def test_a_reset_parent_that_starts_its_children_anew_finds_their_rows(
    bench: Bench,
) -> None:
    CALLS.clear()
    plugin = LedgerPlugin(bench.settings.database_url)
    target = bench.temporal.service_client.config.target_host
    client = await Client.connect(target, plugins=[plugin])
    run_id, queue = fresh_id(), bench.settings.task_queue
    async with Worker(
        client,
        task_queue=queue,
        workflows=[Clerk, Payer],
        activities=[pay],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        first = await client.execute_workflow(Clerk.run, id=run_id, task_queue=queue)
        await bench.reset(run_id)
        again = await client.get_workflow_handle(run_id).result()
        async with ledger_pool(bench.settings.database_url, size=1) as pool:
            actions = await ActionLedger(pool, statement_seconds=10).list()

    assert again == first
    assert CALLS == {"4821": 1, "4822": 2}
    assert sorted(one.position for one in actions) == [
        "child.Payer#0.pay#0",
        "child.Payer#1.pay#0",
        "child.Payer#1.pay#1",
    ]
    assert {one.run_key.rpartition("/")[0] for one in actions} == {run_id}
