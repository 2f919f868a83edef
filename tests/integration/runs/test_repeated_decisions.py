"""Decisions that come many times, too late, to a full run, or to another run's workflow."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest
import pytest_asyncio
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import PauseWorkflowExecutionRequest
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from commitline import Agent, App, Effect, RunHandle, ToolContext, tool
from commitline.activities.contract.approvals import Decide
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.encoding import pack
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.client import AgentClient
from commitline.devstack import temporal_server
from commitline.devstack.ports import PortBook
from commitline.errors import AnswerRefused, ApprovalRefused, InvalidArguments
from commitline.handles import decision
from commitline.ledger import Approval, Question
from commitline.workflows.base_run import DECISION, WORD_GIVEN

from .bench import Bench, commitline, eventually, fresh_id, one_agent
from .playing import Says

PAID: list[int] = []
CALLED = PAID


@tool(effect=Effect.IDEMPOTENT, approval=True)
async def pay(cents: int) -> str:
    """Pay so much."""
    PAID.append(cents)
    return f"paid {cents}"


@tool(effect=Effect.IDEMPOTENT)
async def ask(ctx: ToolContext) -> Any:
    """Ask a person."""
    return await ctx.interrupt("how much?")


def pays(count: int = 1) -> App:
    return one_agent([pay], [call(*[("pay", {"cents": 100})] * count), say("Done.")])


async def waiting(run: RunHandle, count: int = 1) -> Sequence[Approval]:
    async def found() -> Sequence[Approval] | None:
        asked = await run.approvals()
        return asked if len(asked) == count else None

    asked = await eventually(found)
    assert asked is not None
    return asked


async def asked(run: RunHandle) -> Question:
    (question,) = await eventually(run.questions)
    return question


async def accepted(bench: Bench, run: RunHandle) -> int:
    """Count the updates that the run's history holds."""
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED
    return sum(one.event_type == kind for one in (await bench.history(run.id)).events)


async def raw(bench: Bench, workflow: str, said: Decide) -> Any:
    """Send a decision past the client, as a program without it would, under an id of its own."""
    handle = bench.temporal.get_workflow_handle(workflow)
    return await handle.execute_update(DECISION, pack(said), result_type=RawValue)


@pytest_asyncio.fixture
async def strict(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A bench whose Temporal server takes three updates of a workflow, and not 2,000."""
    monkeypatch.setattr(
        temporal_server, "TUNING", (*temporal_server.TUNING, "history.maxTotalUpdates=3")
    )
    folder = Path(tempfile.mkdtemp(prefix="commitline-strict-"))
    server = temporal_server.TemporalServer(folder, persistent=False)
    ports = PortBook(folder / "ports.json").choose({"temporal": 0, "metrics": 0})
    try:
        server.start(port=ports["temporal"], metrics_port=ports["metrics"], ui_port=None)
        client = await Client.connect(f"127.0.0.1:{ports['temporal']}")
        yield replace(bench, temporal=client)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def test_a_decision_that_comes_a_hundred_times_is_one_update_in_history(
    bench: Bench,
) -> None:
    async with bench.serving(pays(2)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run, 2)
        for _ in range(10):
            await asyncio.gather(
                *(run.decide("0.0", approve=True, by="ada") for _ in range(5)),
            )
        for _ in range(50):
            with pytest.raises(ApprovalRefused, match="approved by ada"):
                await run.decide("0.0", approve=False, by="eve")
        taken = await accepted(bench, run)
        await run.decide("0.1", approve=False, by="ada")
        await run.result()

    assert taken == 1
    assert PAID == [100]


async def test_a_decision_that_surely_counts_no_more_leaves_no_event(bench: Bench) -> None:
    async with bench.serving(pays(2)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        # Side by side: either may have been requested first.
        first = min(await waiting(run, 2), key=lambda one: one.position)
        await run.decide("0.0", approve=False, by="ada")

        async def settled() -> bool:
            progress = (await run.status()).progress
            return progress is not None and progress.calls[0].state == "rejected"

        await eventually(settled)
        said = Decide(first.run_key, first.position, approve=True, by="eve")
        refusals = []
        for _ in range(5):
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await raw(bench, run.id, said)
            refusals.append(refused.value.cause)
        taken = await accepted(bench, run)
        await run.decide("0.1", approve=False, by="ada")
        await run.result()

    kinds = [one.type for one in refusals if isinstance(one, ApplicationError)]
    assert kinds == ["ApprovalRefused"] * 5
    assert taken == 1


async def test_a_decision_by_another_runs_workflow_is_refused_by_that(bench: Bench) -> None:
    async with bench.serving(pays()) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (mine,) = await waiting(run)
    async with bench.serving(pays()) as client:
        other = await client.start("agent", "go", id=fresh_id())
        await waiting(other)
        said = Decide(mine.run_key, mine.position, approve=True, by="eve")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await raw(bench, other.id, said)
        (still,) = await run.approvals()
        taken = await accepted(bench, other)
        await asyncio.gather(*(one.decide("0.0", approve=False, by="ada") for one in (run, other)))
        await asyncio.gather(run.result(), other.result())

    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "ApprovalRefused"
    assert f"a call of {mine.run_key}" in refused.value.cause.message
    assert (still.state, taken, PAID) == ("waiting", 0, [])


async def test_a_run_that_takes_no_more_updates_goes_by_the_row(strict: Bench) -> None:
    app = one_agent([pay, ask], [call(("pay", {"cents": 1}), ("ask", {})), say("Done.")])

    async with strict.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (mine,) = await waiting(run)
        await asked(run)
        for number in range(3):
            said = Decide(mine.run_key, mine.position, True, f"p{number}", "", '{"cents":"all"}')
            with pytest.raises(WorkflowUpdateFailedError):
                await raw(strict, run.id, said)
        with pytest.raises(ApprovalRefused, match="only the run can check other arguments"):
            await run.decide("0.0", approve=True, by="ada", args={"cents": 2})
        await run.decide("0.0", approve=True, by="ada")
        with pytest.raises(ApprovalRefused, match="approved by ada"):
            await run.decide("0.0", approve=False, by="eve")
        await run.answer("0.1", 7, by="ada")
        await run.answer("0.1", 7, by="ada")
        async with asyncio.timeout(30):
            result = await run.result()

    assert (result.output, PAID) == ("Done.", [1])


@workflow.defn(name="AgentRun", sandboxed=False)
class Broken:
    """An agent's run after a deploy of a fault: each workflow task fails."""

    @workflow.run
    async def run(self, raw: RawValue) -> None:
        """Fail the task."""
        raise RuntimeError("a fault")


@asynccontextmanager
async def failing(bench: Bench, run: RunHandle) -> AsyncIterator[None]:
    """Have the workflow task of a run fail, while the body runs."""
    faulty = Worker(
        bench.temporal,
        task_queue=bench.settings.task_queue,
        workflows=[Broken],
        max_cached_workflows=0,
    )
    async with faulty:
        handle = bench.temporal.get_workflow_handle(run.id)
        await handle.signal(WORD_GIVEN)

        async def has_failed() -> bool:
            described = (await handle.describe()).raw_description
            return described.pending_workflow_task.attempt > 3

        await eventually(has_failed)
        yield


async def paused(bench: Bench, run: RunHandle) -> None:
    """Pause a run, as `temporal workflow pause` does."""
    await bench.temporal.workflow_service.pause_workflow_execution(
        PauseWorkflowExecutionRequest(
            namespace=bench.temporal.namespace,
            workflow_id=run.id,
            identity="a test",
            request_id=str(uuid.uuid4()),
        )
    )


async def test_other_arguments_for_a_paused_run_are_refused_by_that_name(bench: Bench) -> None:
    async with bench.serving(pays(), cached=0) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        await paused(bench, run)
        with pytest.raises(ApprovalRefused, match="takes no update now") as refused:
            await run.decide("0.0", approve=True, by="ada", args={"cents": 2})
        await run.decide("0.0", approve=True, by="ada")
        (row,) = await run.approvals(only_waiting=False)
        await bench.temporal.get_workflow_handle(run.id).terminate()

    assert "Workflow is paused" in str(refused.value)
    assert row.state == "approved"


@pytest.mark.slow  # Temporal pauses between two tries of a workflow task
async def test_a_run_whose_workflow_task_fails_is_decided_about_by_the_row(bench: Bench) -> None:
    async with bench.serving(pays(), cached=0) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
    async with failing(bench, run), AgentClient(bench.temporal, bench.settings) as client:
        run = client.run(run.id)
        with pytest.raises(ApprovalRefused, match="takes no update now") as refused:
            await run.decide("0.0", approve=True, by="ada", args={"cents": 2})
        await run.decide("0.0", approve=True, by="ada")
        (row,) = await run.approvals(only_waiting=False)
    async with bench.serving(pays(), cached=0) as client:
        await client.run(run.id).result()

    assert "due to Workflow Task in failed state" in str(refused.value)
    assert row.state == "approved"
    assert PAID == [100]


_LOSE_ONCE: Final[LiteralString] = """
create table lost (approval text);
create function lose() returns trigger language plpgsql as $$
begin
    if not exists (select from lost) then
        insert into lost values (new.key);
        update agent_approvals set decision = null, decided_by = null, decided_at = null
         where key = new.key;
    end if;
    return null;
end $$;
create constraint trigger lose after update on agent_approvals
    deferrable initially deferred for each row when (new.decision is not null)
    execute function lose();"""
"""The database loses the first decision, once that has been reported as committed."""


async def test_a_decision_that_the_ledger_has_lost_counts_when_the_same_person_decides_again(
    bench: Bench,
) -> None:
    async with bench.serving(pays()) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (mine,) = await waiting(run)
        await bench.sql(_LOSE_ONCE)
        await run.decide("0.0", approve=True, by="ada")
        lost = await bench.sql("select approval from lost")
        async with asyncio.timeout(30):
            await run.result()

    assert lost == [(mine.key,)]
    assert PAID == [100]


async def test_arguments_that_did_not_fit_may_fit_after_a_deploy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(effect=Effect.IDEMPOTENT, approval=True, name="pay")
    async def pay_anything(cents: int | str) -> str:
        """Pay."""
        PAID.append(1 if cents == "one" else 0)
        return "paid"

    monkeypatch.setattr(decision, "_AGAIN_SECONDS", 0.001)
    edited = {"cents": "one"}
    after = one_agent([pay_anything], [call(("pay", {"cents": 100})), say("Done.")])

    async with bench.serving(pays(), cached=0) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        with pytest.raises(InvalidArguments, match="cents"):
            await run.decide("0.0", approve=True, by="ada", args=edited)
    async with bench.serving(after) as client:
        run = client.run(run.id)
        await run.decide("0.0", approve=True, by="ada", args=edited)
        await run.result()

    assert PAID == [1]


async def test_a_decision_whose_run_ends_before_it_is_committed_says_how_it_ended(
    bench: Bench,
) -> None:
    async with (
        bench.serving(pays(), cached=0) as client,
        await psycopg.AsyncConnection.connect(bench.settings.database_url) as holder,
    ):
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        await holder.execute("select from agent_approvals for update")
        said = asyncio.ensure_future(run.decide("0.0", approve=True, by="ada"))

        async def taken_up() -> bool:
            return await accepted(bench, run) == 1

        await eventually(taken_up)
        await bench.temporal.get_workflow_handle(run.id).terminate()
        with pytest.raises(ApprovalRefused, match="has ended: terminated"):
            await said
        await holder.rollback()


async def test_after_a_fork_nobody_has_to_decide_or_answer_what_it_left(bench: Bench) -> None:
    def answer(request: ModelRequest) -> Completion:
        told = any("asked again" in one.text for one in request.messages if one.role == "user")
        return say("Done.") if told else call(("pay", {"cents": 1}), ("ask", {}))

    app = App([Agent("agent", Says(answer), "Do it.", tools=[pay, ask])])

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (before,) = await waiting(run)
        question = await asked(run)
        await run.reset(to_step=0, fork=True)
        left = (await run.approvals(), await run.questions())
        told: list[str] = [one.state for one in await run.approvals(only_waiting=False)]
        told += [one.state for one in await run.questions(only_waiting=False)]
        with pytest.raises(ApprovalRefused, match="went another way"):
            await run.decide(before.position, approve=True, by="ada")
        with pytest.raises(AnswerRefused, match="went another way"):
            await run.answer(question, 7, by="ada")
        result = await run.result()

    assert (left, told) == (([], []), ["withdrawn", "withdrawn"])
    assert (result.output, PAID) == ("Done.", [])


async def test_the_calls_of_an_ended_run_do_not_wait(bench: Bench) -> None:
    async with bench.serving(pays()) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)
        await run.stop()
        (left,) = await run.approvals(only_waiting=False)
        shown = await commitline(bench, "approvals", "--all")

    assert left.state == "withdrawn"
    assert "withdrawn" in shown.stdout
    assert "waiting" not in shown.stdout


async def test_who_gives_up_deciding_is_let_go_and_may_decide_again(bench: Bench) -> None:
    PAID.clear()
    async with bench.serving(pays(), cached=0) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting(run)

    async with AgentClient(bench.temporal, bench.settings) as client:  # no worker is there
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.run(run.id).decide("0.0", approve=True, by="ada")
    async with bench.serving(pays()) as client:
        await client.run(run.id).decide("0.0", approve=True, by="ada")
        await client.run(run.id).result()

    assert PAID == [100]
