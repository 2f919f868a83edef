"""Guarded calls of somebody else's workflow whose activity the server gives up by a time-out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from commitline.identity import Position, run_key
from commitline.integrations import LedgerPlugin, effect, followed_call
from commitline.ledger import ActionLedger, ActionRequest, Attempt, Effect, Outcome, ledger_pool
from commitline.operating.check import Check
from commitline.operating.doctor import examine

from .bench import Bench, eventually, fresh_id
from .relay_bench import expire

CALLED: list[str] = []
GO_ON = threading.Event()


@activity.defn
async def pay(order_id: str) -> str:
    CALLED.append(order_id)
    while not GO_ON.is_set():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return f"paid {order_id}"


@workflow.defn
class Clerk:
    @workflow.run
    async def run(self, queues: list[str]) -> list[str]:
        return [await self._pay(queue) for queue in queues]

    async def _pay(self, queue: str) -> str:
        try:
            return await workflow.execute_activity(
                pay,
                "4821",
                task_queue=queue or None,
                schedule_to_close_timeout=timedelta(seconds=2),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)),
            )
        except ActivityError as err:
            failed = cast("ApplicationError", err.cause)
            return f"{failed.type}: {failed.message}"


@pytest.fixture(autouse=True)
def _waits() -> Iterator[None]:
    GO_ON.clear()
    yield
    GO_ON.set()


@dataclass
class Shop:
    bench: Bench
    ledger: ActionLedger

    @property
    def plugin(self) -> LedgerPlugin:
        return LedgerPlugin(
            self.bench.settings.database_url, effects={"pay": effect(Effect.AT_MOST_ONCE)}
        )

    async def client(self, *, guarded: bool = True) -> Client:
        return await Client.connect(
            self.bench.temporal.service_client.config.target_host,
            plugins=[self.plugin] if guarded else [],
        )

    @asynccontextmanager
    async def serving(
        self, *, guarded: bool = True, activities: bool = True
    ) -> AsyncIterator[None]:
        async with Worker(
            await self.client(guarded=guarded),
            task_queue=self.bench.settings.task_queue,
            workflows=[Clerk],
            activities=[pay] if activities else [],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            yield

    async def start(self, *queues: str) -> WorkflowHandle[Any, list[str]]:
        return await self.bench.temporal.start_workflow(
            Clerk.run,
            list(queues),
            id=fresh_id(),
            task_queue=self.bench.settings.task_queue,
        )


@pytest.fixture
async def shop(bench: Bench) -> AsyncIterator[Shop]:
    async with ledger_pool(bench.settings.database_url, size=2) as pool:
        yield Shop(bench, ActionLedger(pool, statement_seconds=10))


async def test_a_call_that_the_server_gives_up_at_work_is_told_as_unknown(shop: Shop) -> None:
    async with shop.serving():
        handle = await shop.start("")
        (told,) = await handle.result()
        (parked,) = await shop.ledger.list()

    assert told.startswith("OutcomeUnknown: ")
    assert parked.state == "unknown"
    # On a slow machine the attempt itself, whose time ends with the server's, is the first to say.
    assert parked.parked_reason in (
        "the server ended its activity by the time-out schedule_to_close",
        "NodeTimeout: no answer until the node's time was up [NODE_TIMEOUT_001]",
    )
    assert CALLED == ["4821"]


async def test_a_call_that_no_attempt_began_in_time_is_never_made(shop: Shop) -> None:
    """Its queue has a worker only after the time-out."""
    queue = f"{shop.bench.settings.task_queue}-late"
    GO_ON.set()
    async with shop.serving():
        handle = await shop.start("", queue)

        async def asked() -> bool:
            history = await handle.fetch_history()
            return any(
                event.activity_task_scheduled_event_attributes.activity_type.name
                == "commitline.settle_call"
                for event in history.events
            )

        await eventually(asked)
        async with Worker(await shop.client(), task_queue=queue, activities=[pay]):
            paid, told = await handle.result()
        _, row = await shop.ledger.list()

    assert paid == "paid 4821"
    assert told.startswith("GivenUp: nothing was sent until the server ended its activity")
    assert (row.position, row.state, row.effect_possible) == ("pay#1", "error", False)
    assert CALLED == ["4821"]


async def test_a_call_whose_queue_has_no_worker_is_settled_on_the_queue_of_its_workflow(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_call, "_NO_WORKER", timedelta(seconds=1))
    queue = f"{shop.bench.settings.task_queue}-none"
    GO_ON.set()
    async with shop.serving():
        handle = await shop.start("", queue)
        _, told = await handle.result()
        _, row = await shop.ledger.list()

    assert told.startswith("GivenUp: nothing was sent until the server ended its activity")
    assert (row.position, row.state, row.effect_possible) == ("pay#1", "error", False)
    assert CALLED == ["4821"]
    await Replayer(
        workflows=[Clerk], plugins=[shop.plugin], workflow_runner=UnsandboxedWorkflowRunner()
    ).replay_workflow(await handle.fetch_history())


async def test_a_call_that_no_worker_can_ask_about_is_told_as_unknown(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_call, "_NO_WORKER", timedelta(seconds=1))
    queue = f"{shop.bench.settings.task_queue}-none"
    async with shop.serving(activities=False):
        (told,) = await (await shop.start(queue)).result()

    assert told.startswith("OutcomeUnknown: ")
    assert "no worker is there to read the ledger" in told
    assert CALLED == []


async def test_a_time_out_of_a_history_without_the_plugin_replays_as_it_is(shop: Shop) -> None:
    async with shop.serving(guarded=False):
        handle = await shop.start("")
        (told,) = await handle.result()
    history = await handle.fetch_history()

    await Replayer(
        workflows=[Clerk], plugins=[shop.plugin], workflow_runner=UnsandboxedWorkflowRunner()
    ).replay_workflow(history)

    assert "ScheduleToClose" in told


async def test_doctor_names_a_call_whose_workflow_has_ended_and_that_no_relay_parks(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", shop.bench.temporal.service_client.config.target_host)
    monkeypatch.setenv("COMMITLINE_DATABASE_URL", shop.bench.settings.database_url)

    async def looked() -> Check:
        return next(one for one in await examine() if one.name == "calls")

    handle = await shop.start()
    run = run_key(handle.id, handle.first_execution_run_id or "")
    now = datetime.now(tz=UTC)
    await shop.ledger.runs.open(
        run_key=run, workflow_id=handle.id, agent="Clerk", input_digest="", attempt_at=now
    )
    wanted = ActionRequest(run, Position("pay#0"), "pay", "{}", Effect.AT_MOST_ONCE, "r", "e")
    await shop.ledger.claim(wanted, Attempt(now, uuid4(), timedelta(seconds=60)))
    at_work = await looked()
    await expire(shop.bench, wanted.key)
    goes_on = await looked()
    await handle.terminate()
    left = await looked()
    never = Outcome.error(kind="Never", message="it did not happen", effect_possible=False)
    await shop.ledger.settle(wanted.key, never, by="ada")
    settled = await looked()

    assert [one.state for one in (at_work, goes_on, settled)] == ["ok"] * 3
    assert left.state == "wrong"
    assert wanted.key in left.found
    assert "commitline actions settle" in left.remedy
