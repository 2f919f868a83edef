"""Undo and relay for the guarded activities of somebody else's workflow."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

import commitline
from commitline import AgentClient, ToolRefused
from commitline.errors import DefinitionError
from commitline.integrations import LedgerPlugin, act, effect
from commitline.integrations.rules import Rules
from commitline.ledger import ActionLedger, Effect, Outcome
from commitline.operating.run_list import newest_runs

from .bench import Bench, eventually, fresh_id
from .test_forgotten_runs import forgotten

CALLED: list[tuple[Any, ...]] = []
DECLINES = threading.Event()


@dataclass
class Receipt:
    id: str


@effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
@activity.defn
async def refund(order_id: str, result: Receipt, note: str = "sorry") -> str:
    if DECLINES.is_set():
        raise ToolRefused("not today")
    CALLED.append(("refund", order_id, result, note, commitline.current().idempotency_key))
    return "refunded"


@effect(Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", compensate=refund)
@activity.defn
async def charge(order_id: str, cents: int) -> Receipt:
    CALLED.append(("charge", order_id, cents))
    return Receipt(f"receipt-{order_id}")


@effect(Effect.AT_MOST_ONCE)
@activity.defn
async def unship(order_id: str) -> None:
    CALLED.append(("unship", order_id))


@effect(Effect.AT_MOST_ONCE, compensate="unship")
@activity.defn
async def ship(order_id: str) -> str:
    CALLED.append(("ship", order_id))
    raise RuntimeError("half way through")


@effect(Effect.IDEMPOTENT, compensate=refund)
async def book(order_id: str, seats: int = 1) -> Receipt:
    CALLED.append(("book", order_id, seats))
    return Receipt(f"ticket-{order_id}")


@effect(Effect.AT_MOST_ONCE, compensate=unship)
async def reserve(order_id: str) -> str:
    CALLED.append(("reserve", order_id))
    raise RuntimeError("half way through")


@effect(Effect.IDEMPOTENT, compensate="nobody")
async def promise(order_id: str) -> str:
    CALLED.append(("promise", order_id))
    return "promised"


@activity.defn
async def segment(order_id: str) -> None:
    """Make calls of its own, the last of which nothing could undo."""
    await act(book, order_id)
    with suppress(ApplicationError):
        await act(reserve, order_id)
    await act(promise, order_id)


@workflow.defn
class Clerk:
    @workflow.run
    async def run(self, tools: list[str]) -> None:
        for tool in tools:
            args = ["4821", 4900] if tool == "charge" else ["4821"]
            await workflow.execute_activity(
                tool, args=args, start_to_close_timeout=timedelta(seconds=10)
            )
        raise ApplicationError("changed my mind")


@pytest.fixture(autouse=True)
def _accepts() -> None:
    DECLINES.clear()


@dataclass
class Shop:
    bench: Bench
    client: AgentClient

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ActionLedger]:
        theirs = await Client.connect(
            self.bench.temporal.service_client.config.target_host,
            plugins=[LedgerPlugin(self.bench.settings.database_url, coarse=["segment"])],
        )
        async with Worker(
            theirs,
            task_queue=self.bench.settings.task_queue,
            workflows=[Clerk],
            activities=[charge, refund, ship, unship, segment],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            yield await self.client.ledger()

    async def failed(self, *tools: str) -> WorkflowHandle[Any, None]:
        """Run the workflow, which fails after its calls."""
        handle = await self.bench.temporal.start_workflow(
            Clerk.run, list(tools), id=fresh_id(), task_queue=self.bench.settings.task_queue
        )
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        return handle


@pytest.fixture
async def shop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    monkeypatch.setenv("COMMITLINE_RELAY_SECONDS", "1")
    async with AgentClient(bench.temporal, bench.settings) as client:
        yield Shop(bench, client)


async def test_what_a_run_did_is_undone_once_with_its_arguments_and_its_result(
    shop: Shop,
) -> None:
    async with shop.serving():
        run = shop.client.run((await shop.failed("charge")).id)
        report = await run.undo(by="ada", reason="changed my mind")
        again = await run.undo(by="ada")
        actions = await run.actions()

    assert report.state == again.state == "compensated"
    assert [
        ("charge", "4821", 4900),
        ("refund", "4821", Receipt("receipt-4821"), "sorry", "order-4821-refund"),
    ] == CALLED
    assert [(one.position, one.tool, one.args, one.state) for one in actions] == [
        ("charge#0", "charge", '["4821",4900]', "ok"),
        ("undo-charge#0", "refund", '["4821",{"id":"receipt-4821"},"sorry"]', "ok"),
    ]


async def test_calls_inside_one_activity_are_undone_as_others_are(shop: Shop) -> None:
    async def undone() -> bool:
        return ("unship", "4821") in CALLED

    async with shop.serving() as ledger:
        handle = await shop.failed("segment")
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        run = shop.client.run(handle.id)
        report = await run.undo()
        (unknown,) = [one for one in await run.actions() if one.state == "unknown"]
        failures = await newest_runs(shop.client, limit=100, state="failed")
        others = await newest_runs(shop.client, limit=100, state="completed")
        await ledger.settle(unknown.key, Outcome.ok('"reserved"'), by="ada")
        await eventually(undone)

    (listed,) = [one for one in failures if one.id == handle.id]
    assert (listed.agent, listed.undone, listed.run_id) == (
        "Clerk",
        "partly",
        handle.first_execution_run_id,
    )
    assert "'nobody' is to undo 'promise'" in (listed.why or "")
    assert handle.id not in [one.id for one in others]
    assert isinstance(failed.value.cause, ActivityError)
    assert "'nobody' is to undo 'promise'" in str(failed.value.cause.cause)
    assert report.state == "partly compensated"
    assert [(one.tool, one.fate) for one in report.actions] == [
        ("reserve", "unknown"),
        ("book", "undone"),
    ]
    assert [
        ("book", "4821", 1),
        ("reserve", "4821"),
        ("refund", "4821", Receipt("ticket-4821"), "sorry", "order-4821-refund"),
        ("unship", "4821"),
    ] == CALLED


async def test_an_undo_that_is_declined_is_made_when_it_is_ordered_again_also_if_the_run_is_gone(
    shop: Shop,
) -> None:
    DECLINES.set()
    async with shop.serving():
        run = shop.client.run((await shop.failed("charge")).id)
        declined = await run.undo()
        DECLINES.clear()
        await forgotten(shop.bench, run.id)
        state = await run.state()
        undone = await run.undo()

    assert state == "gone"
    assert (declined.state, undone.state) == ("partly compensated", "compensated")
    assert [one[0] for one in CALLED] == ["charge", "refund"]


async def test_an_unknown_call_that_is_settled_after_the_undo_is_undone_by_the_relay(
    shop: Shop,
) -> None:
    async def undone() -> bool:
        return ("unship", "4821") in CALLED

    async with shop.serving() as ledger:
        run = shop.client.run((await shop.failed("charge", "ship")).id)
        report = await run.undo()
        (unknown,) = [one for one in await run.actions() if one.state == "unknown"]
        await ledger.settle(unknown.key, Outcome.ok('"shipped"'), by="ada")
        await eventually(undone)

    assert report.state == "partly compensated"
    assert [(one.tool, one.fate) for one in report.actions] == [
        ("ship", "unknown"),
        ("charge", "undone"),
    ]
    assert [one[0] for one in CALLED] == ["charge", "ship", "refund", "unship"]


async def test_a_workflow_that_has_ended_closes_its_run_in_the_ledger(shop: Shop) -> None:
    async with shop.serving() as ledger:
        handle = await shop.failed("charge")

        async def ended() -> bool:
            (run,) = await ledger.runs.list(workflow_id=handle.id)
            return run.state == "ended" and run.workflow_status is None

        await eventually(ended, seconds=30)


def test_what_cannot_undo_is_refused() -> None:
    @effect(Effect.AT_MOST_ONCE)
    @activity.defn
    async def take_back(parcel: str) -> None: ...

    @effect(Effect.AT_MOST_ONCE, compensate=take_back)
    @activity.defn
    async def send(order_id: str) -> None: ...

    with pytest.raises(DefinitionError, match="'take_back' undoes 'send', which does not have"):
        Rules({}).add([take_back, send])
    with pytest.raises(DefinitionError, match="'take_back' is to undo 'send', and is no activity"):
        Rules({}).add([send])
    rules = Rules({})
    rules.add([refund, unship])
    rules.check_compensator("book", effect(Effect.AT_MOST_ONCE, compensate=refund), ["order_id"])
    for compensator, parameters in (("nobody", ["order_id"]), ("unship", ["parcel"])):
        with pytest.raises(DefinitionError, match=compensator):
            rules.check_compensator(
                "book", effect(Effect.AT_MOST_ONCE, compensate=compensator), parameters
            )
    with pytest.raises(DefinitionError, match="nothing to undo"):
        effect(Effect.READ, compensate="refund")
