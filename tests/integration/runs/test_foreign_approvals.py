"""Approvals of calls that a workflow of somebody else makes, guarded by the plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import DataConverter, PayloadCodec
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from commitline import AgentClient
from commitline.errors import ApprovalRefused, InvalidArguments, PayloadUnreadable
from commitline.integrations import EffectRule, LedgerPlugin, effect
from commitline.ledger import Approval, Effect

from .bench import Bench, eventually, fresh_id
from .relay_bench import ledger_of

CALLED: list[tuple[Any, ...]] = []
"""What the activities were called with."""


@activity.defn
async def pay(order_id: str, cents: int, currency: str = "eur") -> str:
    CALLED.append((order_id, cents, currency))
    return f"paid {cents}"


@workflow.defn
class Clerk:
    """Pays; it has an update and a signal with the names that ours have."""

    def __init__(self) -> None:
        self._heard: list[str] = []

    @workflow.run
    async def run(self, amounts: list[int]) -> list[str]:
        said = []
        for cents in amounts:
            try:
                paid = await workflow.execute_activity(
                    pay, args=["4821", cents], start_to_close_timeout=timedelta(seconds=10)
                )
                said.append(paid)
            except ActivityError as err:
                failed = cast("ApplicationError", err.cause)
                said.append(f"{failed.type}: {failed.message}")
        return [*said, *self._heard]

    @workflow.update
    async def decide(self, word: str) -> str:
        self._heard.append(word)
        return f"heard {word}"

    @workflow.signal
    async def word_given(self, word: str) -> None:
        self._heard.append(word)


ONCE = effect(Effect.AT_MOST_ONCE, approve=True)


@dataclass
class Shop:
    """Workers of somebody else, and a client of ours."""

    bench: Bench
    client: AgentClient
    plugin_queue: str

    async def start(self, *amounts: int) -> WorkflowHandle[Any, list[str]]:
        return await self.bench.temporal.start_workflow(
            Clerk.run,
            list(amounts),
            id=fresh_id(),
            task_queue=self.plugin_queue,
            execution_timeout=timedelta(seconds=60),
        )

    async def waiting(self, id: str) -> Approval:
        async def one() -> Sequence[Approval]:
            try:
                return await self.client.run(id).approvals()
            except Exception:  # the run is not there yet
                return []

        return (await eventually(one))[0]

    @asynccontextmanager
    async def serving(
        self, rule: EffectRule = ONCE, *, pays: Callable[..., Any] = pay
    ) -> AsyncIterator[None]:
        plugin = LedgerPlugin(self.bench.settings.database_url, effects={"pay": rule})
        theirs = await Client.connect(
            self.bench.temporal.service_client.config.target_host, plugins=[plugin]
        )
        async with Worker(
            theirs,
            task_queue=self.plugin_queue,
            workflows=[Clerk],
            activities=[pays],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_cached_workflows=0,
        ):
            yield


class Codec(PayloadCodec):
    """Stands for an encryption: what it has encoded is no JSON any more."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata={"encoding": b"binary/theirs"}, data=one.data) for one in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata={"encoding": b"json/plain"}, data=one.data) for one in payloads]


@pytest.fixture
async def shop(bench: Bench) -> AsyncIterator[Shop]:
    async with AgentClient(bench.temporal, bench.settings) as client:
        yield Shop(bench, client, bench.settings.task_queue)


async def test_a_call_waits_in_its_workflow_until_a_person_approves_it(shop: Shop) -> None:
    async with shop.serving():
        handle = await shop.start(4900)
        found = await shop.waiting(handle.id)
        described = await handle.describe()
    # No worker is there, and none is needed to decide.
    run = shop.client.run(handle.id)
    await run.decide(found, approve=True, by="ada")
    async with shop.serving():
        told = await handle.result()
        actions = await run.actions()

    assert (found.tool, found.args, found.position) == (
        "pay",
        '{"order_id":"4821","cents":4900,"currency":"eur"}',
        "pay#0",
    )
    assert not described.raw_description.pending_activities
    assert told == ["paid 4900"]
    assert CALLED == [("4821", 4900, "eur")]
    assert [(one.state, one.args) for one in actions] == [("ok", '["4821",4900,"eur"]')]


async def test_a_rejected_call_is_told_as_an_error_without_effect_and_not_made(shop: Shop) -> None:
    async with shop.serving():
        handle = await shop.start(4900)
        found = await shop.waiting(handle.id)
        run = shop.client.run(handle.id)
        async with ledger_of(shop.bench) as ledger:  # a client that dies before it tells anybody
            await ledger.approvals.decide(
                found.key, approve=False, by="ada", generation=1, reason="too much"
            )
        await run.decide(found, approve=False, by="ada", reason="too much")
        told = await handle.result()
        with pytest.raises(ApprovalRefused, match="rejected by ada"):
            await run.decide(found, approve=True, by="eve")

    assert told == ["Rejected: not executed: rejected by ada: too much"]
    assert (CALLED, await run.actions()) == ([], [])


async def test_a_call_is_made_as_a_person_has_edited_it(shop: Shop) -> None:
    async with shop.serving():
        handle = await shop.start(4900)
        found = await shop.waiting(handle.id)
        run = shop.client.run(handle.id)
        with pytest.raises(InvalidArguments, match="no parameter 'euros'"):
            await run.decide(found, approve=True, by="ada", args={"euros": 1})
        edited = {"order_id": "4821", "cents": 100}
        await run.decide(found, approve=True, by="ada", args=edited)
        told = await handle.result()
        await shop.bench.reset(handle.id)
        again = await shop.bench.temporal.get_workflow_handle(handle.id).result()

    assert told == again == ["paid 100"]
    assert CALLED == [("4821", 100, "eur")]


async def test_a_function_of_the_arguments_says_which_calls_wait(shop: Shop) -> None:
    rule = effect(Effect.AT_MOST_ONCE, approve=lambda given: given["cents"] > 1000)
    async with shop.serving(rule):
        handle = await shop.start(100, 4900)
        found = await shop.waiting(handle.id)
        paid = list(CALLED)
        await shop.client.run(handle.id).decide(found, approve=True, by="ada")
        told = await handle.result()

    assert found.position == "pay#1"
    assert paid == [("4821", 100, "eur")]
    assert told == ["paid 100", "paid 4900"]


async def test_a_call_that_nobody_approves_in_time_is_not_made(shop: Shop) -> None:
    rule = effect(Effect.AT_MOST_ONCE, approve=True, approval_expires=timedelta(milliseconds=300))
    async with shop.serving(rule):
        (told,) = await (await shop.start(4900)).result()

    assert told.startswith("ApprovalExpired: not executed: nobody approved it until")
    assert CALLED == []


async def test_the_workflows_own_handlers_are_left_to_it(shop: Shop) -> None:
    async with shop.serving():
        handle = await shop.start(4900)
        found = await shop.waiting(handle.id)
        heard = await handle.execute_update(Clerk.decide, "one")
        await handle.signal(Clerk.word_given, "two")
        await handle.signal("commitline.word_given", args=["junk", "more junk"])
        await shop.client.run(handle.id).decide(found, approve=True, by="ada")
        told = await handle.result()

    assert heard == "heard one"
    assert told == ["paid 4900", "one", "two"]


async def test_a_person_is_asked_again_where_a_deploy_has_changed_the_tool(shop: Shop) -> None:
    @activity.defn(name="pay")
    async def pay_dollars(order_id: str, cents: int, currency: str = "usd") -> str:
        CALLED.append((order_id, cents, currency))
        return f"paid {cents}"

    @activity.defn(name="pay")
    async def pay_with_note(order_id: str, cents: int, note: str = "") -> str:
        CALLED.append((order_id, cents, note))
        return f"paid {cents}"

    async with shop.serving():
        handle = await shop.start(4900)
        found = await shop.waiting(handle.id)
        run = shop.client.run(handle.id)
    await run.decide(found, approve=True, by="ada")
    async with shop.serving(pays=pay_with_note):
        again = await shop.waiting(handle.id)
        with pytest.raises(ApprovalRefused, match="asked about again"):
            await run.decide(found, approve=True, by="ada")
        await run.decide(again, approve=True, by="ada")
        told = await handle.result()

    assert (again.at, again.args) == (
        "pay#0~2",
        '{"order_id":"4821","cents":4900,"note":""}',
    )
    assert told == ["paid 4900"]
    assert CALLED == [("4821", 4900, "")]


async def test_an_execution_from_before_the_rule_goes_on_and_calls_nothing_unasked(
    shop: Shop,
) -> None:
    """Its history has a call that did not wait; the next call does."""
    async with shop.serving(effect(Effect.AT_MOST_ONCE)):
        handle = await shop.start(100)
        await handle.result()
    history = await handle.fetch_history()
    plugin = LedgerPlugin(shop.bench.settings.database_url, effects={"pay": ONCE})

    await Replayer(
        workflows=[Clerk], plugins=[plugin], workflow_runner=UnsandboxedWorkflowRunner()
    ).replay_workflow(history)


async def test_a_call_that_waits_goes_on_waiting_where_the_rule_is_taken_back(shop: Shop) -> None:
    async with shop.serving():
        handle = await shop.start(4900, 100)
        found = await shop.waiting(handle.id)
    async with shop.serving(effect(Effect.AT_MOST_ONCE)):
        await shop.client.run(handle.id).decide(found, approve=True, by="ada")
        told = await handle.result()

    assert told == ["paid 4900", "paid 100"]


async def test_the_runs_that_cannot_go_on_without_the_plugin_are_found_and_drained(
    shop: Shop,
) -> None:
    """As the page on taking it away says: new runs on another queue, until these have ended."""
    temporal, plain = shop.bench.temporal, f"{shop.plugin_queue}-plain"

    async def left() -> list[str]:
        query = 'TemporalChangeVersion = "commitline" and ExecutionStatus = "Running"'
        return [found.id async for found in temporal.list_workflows(query) if found.id in ids]

    async def drained() -> bool:
        return await left() == []

    ids: set[str] = set()
    async with (
        shop.serving(),
        Worker(
            temporal,
            task_queue=plain,
            workflows=[Clerk],
            activities=[pay],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
    ):
        handle = await shop.start(4900)
        ids.add(handle.id)
        found = await shop.waiting(handle.id)
        without = await temporal.execute_workflow(Clerk.run, [100], id=fresh_id(), task_queue=plain)
        assert await eventually(left) == [handle.id]
        await shop.client.run(handle.id).decide(found, approve=True, by="ada")
        await handle.result()
        await eventually(drained)

    assert without == ["paid 100"]
    replayer = Replayer(workflows=[Clerk], workflow_runner=UnsandboxedWorkflowRunner())
    with pytest.raises(workflow.NondeterminismError):
        await replayer.replay_workflow(await handle.fetch_history())


async def test_a_call_whose_workflow_asked_nobody_is_refused(shop: Shop) -> None:
    """The workflows' worker does not know that the tool's calls are approved."""
    theirs = await Client.connect(
        shop.bench.temporal.service_client.config.target_host,
        plugins=[
            LedgerPlugin(
                shop.bench.settings.database_url, effects={"pay": effect(Effect.AT_MOST_ONCE)}
            )
        ],
    )
    tools = await Client.connect(
        shop.bench.temporal.service_client.config.target_host,
        plugins=[LedgerPlugin(shop.bench.settings.database_url, effects={"pay": ONCE})],
    )
    async with (
        Worker(
            theirs,
            task_queue=shop.plugin_queue,
            workflows=[Clerk],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ),
        Worker(tools, task_queue=shop.plugin_queue, activities=[pay]),
    ):
        (told,) = await (await shop.start(4900)).result()

    assert told.startswith("ApprovalMissing: a person has to approve 'pay'")
    assert CALLED == []


async def test_what_the_ledger_has_lost_is_asked_for_anew_when_somebody_decides(shop: Shop) -> None:
    async with shop.serving():
        handle = await shop.start(4900)
        await shop.waiting(handle.id)
        await shop.bench.sql("delete from agent_approvals")
        await shop.bench.sql("delete from agent_runs")
        run = shop.client.run(handle.id)
        with pytest.raises(ApprovalRefused, match="the ledger has nothing of it"):
            await run.decide("pay#0", approve=True, by="ada")
        await run.decide(await shop.waiting(handle.id), approve=True, by="ada")
        told = await handle.result()

    assert told == ["paid 4900"]
    assert CALLED == [("4821", 4900, "eur")]


async def test_no_word_is_sent_in_plain_text_among_encoded_payloads(shop: Shop) -> None:
    theirs = await Client.connect(
        shop.bench.temporal.service_client.config.target_host,
        data_converter=replace(DataConverter.default, payload_codec=Codec()),
    )
    begun = await theirs.start_workflow(
        Clerk.run, [100], id=fresh_id(), task_queue=fresh_id("nobody")
    )
    without = shop.client.run(begun.id)

    for word in (without.decide("pay#0", approve=True, by="ada"), without.undo()):
        with pytest.raises(PayloadUnreadable, match="binary/theirs"):
            await word
    async with AgentClient(theirs, shop.bench.settings) as with_codec:
        with pytest.raises(ApprovalRefused):  # it is read, and nothing waits
            await with_codec.run(begun.id).decide("pay#0", approve=True, by="ada")
