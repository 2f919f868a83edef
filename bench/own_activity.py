"""The plain side of `integrations.py`: a workflow that calls an activity, and no model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from commitline import Effect
from commitline.bench.harness import Run
from commitline.bench.job import DONE, Job, receipt_of
from commitline.integrations import effect

TIMEOUT: Final = timedelta(minutes=15)


@effect(Effect.IDEMPOTENT)
@activity.defn
async def charge_card(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(order_id)


@workflow.defn
class PlainCharges:
    """Makes the calls of a job, and asks no model."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Go on until all are made."""
        job = Job.of(prompt)
        for turn in range(job.turns):
            for given in job.arguments(turn):
                await workflow.execute_activity(
                    charge_card, args=[*given.values()], start_to_close_timeout=TIMEOUT
                )
        return DONE


@asynccontextmanager
async def with_own_activity(
    address: str, *, queue: str, more: Sequence[Any] = ()
) -> AsyncIterator[Run]:
    """Serve the plain workflow while the body runs."""
    client = await Client.connect(address, plugins=more)
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[PlainCharges],
        activities=[charge_card],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("commitline")
        ),
    )

    async def run(id: str, prompt: str) -> str:
        return await client.execute_workflow(PlainCharges.run, prompt, id=id, task_queue=queue)

    async with worker:
        yield run
