"""What an operator does with the `temporal` command to a run of ours: each line of the docs' table.

`docs/guarantees.md` has the table. Resets are in `test_activity_reset` and `test_reset_and_fork`,
cancellations in `test_stop`, terminations in `test_relay_gone` and `test_undo`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.workflowservice.v1 import (
    PauseActivityRequest,
    PauseWorkflowExecutionRequest,
    RespondActivityTaskCompletedByIdRequest,
    RespondActivityTaskFailedByIdRequest,
    UnpauseActivityRequest,
    UnpauseWorkflowExecutionRequest,
    UpdateActivityOptionsRequest,
)
from temporalio.client import WorkflowUpdateFailedError

from commitline import AgentClient, Effect, NotAttempted, RunHandle, Tool, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.runs import OPEN_RUN
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.errors import CommitlineError
from commitline.operating.run_list import newest_runs

from .bench import Bench, Ran, eventually, fresh_id, one_agent
from .playing import Signals, computed_app, failed_once, seen, turn_of, within

CALLED: Counter[str] = Counter()
Ending = Literal["complete", "fail"]
ENDINGS: list[Ending] = ["complete", "fail"]


def holding(effect: Effect, signals: Signals) -> Tool:
    """Return a tool whose first call is at work until it is cancelled, or released."""

    @tool(effect=effect, name="charge")
    async def charge(ctx: ToolContext) -> str:
        CALLED[ctx.idempotency_key] += 1
        if CALLED[ctx.idempotency_key] == 1:
            signals.began.set()
            while not signals.release.is_set():  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0.02)
        return "charged"

    return charge


async def end(bench: Bench, run: RunHandle, activity: str, how: Ending) -> None:
    """End an activity as `temporal activity complete --result '"done"'` does, or as `fail`."""
    service, of = bench.temporal.workflow_service, bench.temporal.namespace
    if how == "complete":
        result = Payload(metadata={"encoding": b"json/plain"}, data=b'"done"')
        await service.respond_activity_task_completed_by_id(
            RespondActivityTaskCompletedByIdRequest(
                namespace=of,
                workflow_id=run.id,
                activity_id=activity,
                result=Payloads(payloads=[result]),
            )
        )
        return
    info = ApplicationFailureInfo(non_retryable=True)
    failure = Failure(message="by ada", source="CLI", application_failure_info=info)
    await service.respond_activity_task_failed_by_id(
        RespondActivityTaskFailedByIdRequest(
            namespace=of, workflow_id=run.id, activity_id=activity, failure=failure
        )
    )


async def pending(run: RunHandle, kind: str) -> str | None:
    """Return the id of an activity that is at work."""
    described = (await run.describe()).raw_description
    ids = [
        one.activity_id for one in described.pending_activities if one.activity_type.name == kind
    ]
    return ids[0] if ids else None


@pytest.mark.parametrize("how", ENDINGS)
async def test_a_call_at_work_that_is_ended_is_unknown_and_the_run_goes_on(
    bench: Bench, signals: Signals, how: Ending
) -> None:
    app = one_agent([holding(Effect.AT_MOST_ONCE, signals)], [call(("charge", {})), say("Done.")])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        await end(bench, run, "0.0", how)
        ran = await within(bench.outcome(run))
        signals.release.set()

    (told,), (row,) = ran.results, ran.actions
    assert (told.status, row.state, ran.result.output) == ("unknown", "unknown", "Done.")
    assert "an operator ended its activity in Temporal [CL512]" in (row.parked_reason or "")
    assert sum(CALLED.values()) == 1


async def test_a_call_that_was_not_sent_is_made_all_the_same(bench: Bench) -> None:
    class Later(NotAttempted):
        retry_after = timedelta(minutes=10)

    @tool(effect=Effect.AT_MOST_ONCE)
    async def charge(ctx: ToolContext) -> str:
        CALLED[ctx.idempotency_key] += 1
        if CALLED[ctx.idempotency_key] == 1:
            raise Later("closed")
        return "charged"

    async with bench.serving(one_agent([charge], [call(("charge", {})), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await failed_once(run)
        await end(bench, run, "0.0", "complete")  # `fail` is refused between two attempts
        ran = await within(bench.outcome(run))

    assert ([one.status for one in ran.results], ran.actions[0].state) == (["ok"], "ok")


async def test_what_only_calls_the_ledger_is_run_again_and_in_the_end_fails_by_name(
    bench: Bench,
) -> None:
    async with bench.serving(one_agent([], [say("Done.")])) as client, locked(bench):
        good = await client.start("agent", "go", id=fresh_id())
        bad = await client.start("agent", "go", id=fresh_id())
        for how in ENDINGS:
            await end(bench, good, await another(good), how)
        for how in (*ENDINGS, ENDINGS[0]):
            await end(bench, bad, await another(bad), how)
        with pytest.raises(CommitlineError, match="gave no answer 3 times") as raised:
            await within(bad.result())
        await eventually(lambda: pending(good, OPEN_RUN))
    async with bench.serving(one_agent([], [say("Done.")])):
        assert (await within(good.result())).output == "Done."
    assert raised.value.code == "CL512"


ENDED: set[tuple[str, str]] = set()


async def another(run: RunHandle) -> str:
    """Return the id of an activity that opens the run, and was not ended yet."""

    async def found() -> str | None:
        one = await pending(run, OPEN_RUN)
        return None if one is None or (run.id, one) in ENDED else one

    one = await eventually(found)
    assert one is not None
    ENDED.add((run.id, one))
    return one


@asynccontextmanager
async def locked(bench: Bench) -> AsyncIterator[None]:
    """Keep every run from being opened in the ledger."""
    async with await psycopg.AsyncConnection.connect(bench.settings.database_url) as session:
        await session.execute("lock table agent_runs in exclusive mode")
        yield


@pytest.mark.parametrize("how", ENDINGS)
async def test_a_model_turn_that_is_ended_is_taken_again(
    bench: Bench, signals: Signals, how: Ending
) -> None:
    def answer(request: ModelRequest) -> Completion:
        CALLED["model"] += 1
        if CALLED["model"] == 1:
            signals.began.set()
            signals.release.wait()
        return say(f"Done at turn {turn_of(request)}.")

    app, _ = computed_app(answer)
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        await end(bench, run, "0.model", how)
        result = await within(run.result())
        signals.release.set()

    assert result.output == "Done at turn 0."


@pytest.mark.parametrize(
    ("effect", "status", "called"),
    [(Effect.IDEMPOTENT, "ok", 2), (Effect.AT_MOST_ONCE, "unknown", 1)],
)
async def test_a_call_at_work_that_is_paused_is_cancelled_and_taken_over_when_it_goes_on(
    bench: Bench, signals: Signals, effect: Effect, status: str, called: int
) -> None:
    app = one_agent([holding(effect, signals)], [call(("charge", {})), say("Done.")])
    service, namespace = bench.temporal.workflow_service, bench.temporal.namespace
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        of: dict[str, Any] = {
            "namespace": namespace,
            "execution": WorkflowExecution(workflow_id=run.id),
        }
        await service.pause_activity(PauseActivityRequest(**of, id="0.0"))
        await failed_once(run)  # the attempt has ended
        signals.release.set()
        await service.unpause_activity(UnpauseActivityRequest(**of, id="0.0"))
        ran = await within(bench.outcome(run))

    assert [one.status for one in ran.results] == [status]
    assert list(CALLED.values()) == [called], "under one key"


async def test_a_time_out_that_an_operator_sets_ends_a_call_as_unknown(
    bench: Bench, signals: Signals
) -> None:
    app = one_agent([holding(Effect.AT_MOST_ONCE, signals)], [call(("charge", {})), say("Done.")])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        await bench.temporal.workflow_service.update_activity_options(
            UpdateActivityOptionsRequest(
                namespace=bench.temporal.namespace,
                execution=WorkflowExecution(workflow_id=run.id),
                id="0.0",
                activity_options=ActivityOptions(schedule_to_close_timeout=Duration(seconds=2)),
                update_mask=FieldMask(paths=["schedule_to_close_timeout"]),
            )
        )
        ran = await within(bench.outcome(run))
        signals.release.set()

    assert [one.status for one in ran.results] == ["unknown"]


async def test_a_paused_run_is_seen_and_stopped_and_ends_when_it_goes_on(
    bench: Bench, signals: Signals
) -> None:
    app = one_agent([holding(Effect.IDEMPOTENT, signals)], [call(("charge", {})), say("Done.")])
    service, namespace = bench.temporal.workflow_service, bench.temporal.namespace
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        of: dict[str, Any] = {"namespace": namespace, "workflow_id": run.id}
        await service.pause_workflow_execution(
            PauseWorkflowExecutionRequest(**of, reason="to look", request_id=str(uuid.uuid4()))
        )
        paused = await run.status()
        assert await eventually(lambda: _listed(client, run.id, "paused"))
        stopping = await run.stop(reason="enough", wait_seconds=0.1)
        (row,) = await bench.sql("select stop_reason from agent_runs where stopped_at is not null")
        await service.unpause_workflow_execution(
            UnpauseWorkflowExecutionRequest(**of, request_id=str(uuid.uuid4()))
        )
        ended = await run.stop(reason="enough")
        signals.release.set()

    assert (paused.state, stopping.state, ended.state) == ("paused", "stopping", "canceled")
    assert row == ("enough",)


async def _listed(client: AgentClient, id: str, state: str) -> bool:
    runs = await newest_runs(client, limit=100)
    return any((one.id, one.state) == (id, state) for one in runs)


async def test_signals_and_updates_that_nobody_can_read_harm_no_run(
    bench: Bench, signals: Signals
) -> None:
    app = one_agent([holding(Effect.IDEMPOTENT, signals)], [call(("charge", {})), say("Done.")])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await seen(signals.began)
        workflow = bench.temporal.get_workflow_handle(run.id)
        for args in ([], ["what?"], [{"run_key": 1}], ["a", "b"]):
            await workflow.signal("word_given", args=args)
        await workflow.signal("no such signal", "what?")
        for update in ("decide", "answer", "message", "no such update"):
            for args in ([], ["what?"]):
                with pytest.raises(WorkflowUpdateFailedError):
                    await within(workflow.execute_update(update, args=args))
        signals.release.set()
        ran: Ran = await within(bench.outcome(run))

    assert [one.status for one in ran.results] == ["ok"]


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLED.clear()
