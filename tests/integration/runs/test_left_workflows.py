"""Workflows on a task queue that no worker polls: seen, gone on with elsewhere, or ended."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from commitline import AgentClient, App, RunHandle
from commitline.activities.contract.encoding import pack
from commitline.activities.contract.relay import SETTLE_ACTION
from commitline.activities.contract.undo import UNDO_RUN, UndoRequest
from commitline.activities.model.scripted_model import say
from commitline.activities.runs.undo_start import start_undo
from commitline.identity import RunKey, settle_workflow, undo_workflow
from commitline.ledger import ActionLedger, Effect, Outcome
from commitline.operating.relay import report
from commitline.tests.builders import action_request, attempt, dispatched

from .bench import Bench, commitline, eventually, fresh_id, one_agent
from .playing import within
from .relay_bench import ends, intend, ledger_of, look, lost
from .test_undo import Shop, charges


@pytest.fixture
def gone(bench: Bench) -> Bench:
    """The same bench as it was before its task queue was renamed."""
    return replace(
        bench, settings=bench.settings.model_copy(update={"task_queue": f"gone-{uuid.uuid4()}"})
    )


async def begun(bench: Bench, client: AgentClient, ledger: ActionLedger) -> tuple[RunHandle, Any]:
    """Start a run that no worker takes up, and have the ledger believe that one has."""
    run = await client.start("agent", "go", id=fresh_id())
    key = await bench.run_key(run)
    given: dict[str, Any] = {"workflow_id": run.id, "agent": "agent", "input_digest": ""}
    namespace = bench.temporal.namespace
    await ledger.runs.open(run_key=key, attempt_at=datetime.now(UTC), namespace=namespace, **given)
    return run, key


async def charged(ledger: ActionLedger, run: RunKey, order: str) -> None:
    """Write down that a run has charged an order."""
    request = action_request(
        run,
        tool="charge",
        args=f'{{"order_id":"{order}","cents":100}}',
        effect=Effect.IDEMPOTENT,
        domain_key=f"order-{order}-charge",
        compensator="refund",
    )
    claim = await dispatched(ledger, request, attempt(-60, since=datetime.now(UTC)))
    await ledger.record(claim, Outcome.ok(f'"receipt-{order}"'))


def served(shop: Shop) -> App:
    return shop.app(charges("1"), say("Done."))


async def test_the_relay_settles_undoes_and_ends_what_waits_on_a_task_queue_without_workers(
    bench: Bench, gone: Bench
) -> None:
    shop = Shop()

    async with (
        ledger_of(bench) as ledger,
        AgentClient(gone.temporal, gone.settings) as before,
        bench.serving(served(shop)) as client,
    ):
        sent = await intend(bench, ledger, "mail", {"text": "3"})
        await bench.temporal.start_workflow(
            SETTLE_ACTION,
            pack(sent),
            id=settle_workflow(sent),
            task_queue=gone.settings.task_queue,
        )
        undoing, undoing_key = await begun(bench, before, ledger)
        await charged(ledger, undoing_key, "4")
        await ledger.undo.begin(
            undoing_key, why="it failed", failed=True, attempt_at=datetime.now(UTC), by=undoing.id
        )
        stopping, stopping_key = await begun(bench, before, ledger)
        unknown = await lost(ledger, stopping_key, "0.0", "charge", {"order_id": "5", "cents": 1})
        await stopping.stop(reason="enough", wait_seconds=0)
        going_on, _ = await begun(bench, before, ledger)

        async def is_seen() -> bool:
            found = {one.task_queue: one for one in (await report(client, limit=10)).left}
            return gone.settings.task_queue in found and (
                found[gone.settings.task_queue].workflows == 4
            )

        await eventually(is_seen)
        looked = await look(bench)
        [row] = await ends(ledger, [sent])

        async def is_undone() -> bool:
            return (await undoing.undo_report()).state == "compensated"

        await eventually(is_undone)
        await look(bench)
        [left] = await ends(ledger, [unknown.key])
        states = [(await run.status()).state for run in (undoing, stopping, going_on)]
        await bench.temporal.get_workflow_handle(going_on.id).terminate()

    assert looked["started"] == 1
    assert row.state == "ok"
    assert sorted(shop.log) == ["mail 3", "refund 4 receipt-4"]
    assert left.state == "unknown"
    assert states == ["terminated", "terminated", "running"]


async def test_a_person_undoes_where_workers_are_whatever_task_queue_the_client_has(
    bench: Bench, gone: Bench
) -> None:
    shop = Shop()

    async with (
        ledger_of(bench) as ledger,
        AgentClient(gone.temporal, gone.settings) as before,
        bench.serving(served(shop)) as client,
    ):
        run = await client.start("agent", "go", id=fresh_id())
        await run.result()
        key = await bench.run_key(run)
        await bench.temporal.start_workflow(
            UNDO_RUN,
            pack(UndoRequest(key, "an undo that was left")),
            id=undo_workflow(key),
            task_queue=gone.settings.task_queue,
        )
        undone = await within(before.run(run.id).undo(reason="by mistake"))
        stopped, stopped_key = await begun(bench, before, ledger)
        await charged(ledger, stopped_key, "2")
        await stopped.stop(wait_seconds=0)
        taken_back = await within(client.run(stopped.id).undo())
        status = await stopped.status()

    assert [undone.state, taken_back.state] == ["compensated", "compensated"]
    assert shop.log == ["charge 1", "refund 1 receipt-1", "refund 2 receipt-2"]
    assert status.state == "terminated"


async def ordered(gone: Bench, run: RunKey, why: str) -> WorkflowHandle[Any, Any]:
    """Order the undo of a run where no worker takes it up."""
    return await start_undo(gone.temporal, run, why, name=run, task_queue=gone.settings.task_queue)


async def is_listed(gone: Bench, *, undos: int) -> None:
    """Wait until Temporal lists the undos that wait."""

    async def so_many() -> bool:
        queue = f"TaskQueue = '{gone.settings.task_queue}' AND WorkflowType = '{UNDO_RUN}'"
        return (await gone.temporal.count_workflows(queue)).count == undos

    await eventually(so_many)


async def test_the_relay_moves_an_undo_that_was_ordered_where_no_worker_polls(
    bench: Bench, gone: Bench
) -> None:
    shop = Shop()

    async with (
        ledger_of(bench) as ledger,
        AgentClient(gone.temporal, gone.settings) as before,
        bench.serving(served(shop)) as client,
    ):
        lost_run, lost_key = await begun(bench, before, ledger)
        await charged(ledger, lost_key, "6")
        await bench.temporal.get_workflow_handle(lost_run.id).terminate()
        person = asyncio.ensure_future(before.run(lost_run.id).undo(reason="it was lost"))
        run = await client.start("agent", "go", id=fresh_id())
        await run.result()
        key = await bench.run_key(run)
        waiting = await ordered(gone, key, "ada changed her mind")
        await is_listed(gone, undos=2)
        told = await commitline(bench, "relay")
        await look(bench)
        undone = await within(person)
        await within(bench.temporal.get_workflow_handle(waiting.id).result())
        again = await run.undo_report()
        row = await ledger.runs.get(key)

    assert "2 of them are undos and settlements: the next look of the relay" in told.stderr
    assert "commitline stop RUN" not in told.stderr
    assert "nothing to do" not in told.stderr
    assert [undone.state, again.state] == ["compensated", "compensated"]
    assert sorted(shop.log) == ["charge 1", "refund 1 receipt-1", "refund 6 receipt-6"]
    assert row is not None
    assert row.stop_reason == "ada changed her mind"


async def test_the_relay_leaves_an_undo_alone_whose_tools_or_run_it_does_not_have_or_that_is_over(
    bench: Bench, gone: Bench
) -> None:
    other = one_agent([], [say("Done.")])

    async with (
        ledger_of(bench) as ledger,
        AgentClient(gone.temporal, gone.settings) as before,
        bench.serving(other),
    ):
        run, key = await begun(bench, before, ledger)
        await charged(ledger, key, "7")
        await ledger.runs.end(key, attempt_at=datetime.now(UTC))
        _, over = await begun(bench, before, ledger)
        await charged(ledger, over, "8")
        waiting = [
            await ordered(gone, one, "ada")
            for one in (key, RunKey(f"{fresh_id()}/of-another-ledger"), over)
        ]
        undo: dict[str, Any] = {
            "attempt_at": datetime.now(UTC) + timedelta(seconds=1),
            "by": waiting[2].id,
        }
        await ledger.undo.begin(over, why="ada", failed=True, **undo)
        (due,) = await ledger.undo.plan(over, by=waiting[2].id)
        assert await ledger.undo.finish(over, passed=frozenset([due.passes]), **undo)
        await is_listed(gone, undos=3)
        await look(bench)
        states = [(await one.describe()).status for one in waiting]
        for one in (waiting[0].id, waiting[1].id, run.id):
            await bench.temporal.get_workflow_handle(one).terminate()

    running, terminated = WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.TERMINATED
    assert states == [running, running, terminated]
