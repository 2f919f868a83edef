"""What Temporal's list shows of runs, and of a run whose server loses the attributes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import EventType
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowExecution

from commitline import Agent, App, Effect, ScriptedModel, tool
from commitline.activities.contract.search_attributes import AGENT, STATE, THREAD
from commitline.activities.model.scripted_model import call, say
from commitline.activities.runs.search_attributes import register_attributes
from commitline.ledger import Outcome
from commitline.operating.search_attributes import search_attributes

from .bench import Bench, eventually, fresh_id
from .relay_bench import look


@pytest_asyncio.fixture
async def listing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A bench in a namespace of its own, to which `commitline doctor --fix` adds the attributes."""
    address = bench.temporal.service_client.config.target_host
    name = fresh_id("listing")
    await bench.temporal.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=name,
            workflow_execution_retention_period=Duration(seconds=86_400),
        )
    )
    monkeypatch.setenv("TEMPORAL_ADDRESS", address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", name)

    async def lacks() -> bool:
        # At first the server does not know the namespace.
        return STATE.name in (await search_attributes()).found

    await eventually(lacks)
    fixed = await search_attributes(fix=True)
    assert (fixed.state, fixed.remedy) == ("ok", "")
    yield replace(bench, temporal=await Client.connect(address, namespace=name))


@tool(effect=Effect.AT_MOST_ONCE)
async def mail(to: str) -> str:
    """Send a mail."""
    raise ConnectionError("no answer")


@tool(effect=Effect.IDEMPOTENT, approval=True)
async def pay(cents: int) -> str:
    """Pay."""
    return "paid"


def app_of(*turns: Any) -> App:
    clerk = Agent("clerk", ScriptedModel("scripted", list(turns)), "Do it.", tools=[mail, pay])
    return App([clerk, Agent("greeter", ScriptedModel("brief", [say("Hello.")]), "Greet.")])


async def states(bench: Bench, id: str) -> list[str]:
    """Return each state that a workflow has shown, from its history."""
    history = await bench.history(id)
    upserts = [
        event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
    ]
    return [fields[STATE.name].data.decode().strip('"') for fields in upserts]


async def found(bench: Bench, query: str) -> list[WorkflowExecution]:
    return [one async for one in bench.temporal.list_workflows(query)]


async def test_the_list_is_filtered_to_what_needs_a_person_and_a_state_is_one_upsert(
    listing: Bench,
) -> None:
    app = app_of(call(("mail", {"to": "a"}), ("pay", {"cents": 5})), say("Done."))
    needs = f"{STATE.name} in ('waits for approval', 'unknown') and ExecutionStatus = 'Running'"

    async with listing.serving(app) as client:
        run = await client.start("clerk", "go", thread="order 4821")

        async def waits() -> list[WorkflowExecution]:
            return await found(listing, needs)

        (waiting,) = await eventually(waits)
        handle = listing.temporal.get_workflow_handle(run.id)
        shown_now: WorkflowMetadata = await handle.query(
            "__temporal_workflow_metadata", result_type=WorkflowMetadata
        )
        await run.decide("0.1", approve=True, by="ada")
        await run.result()
        await look(listing)

        async def shown() -> bool:
            return [one.id for one in await waits()] == [f"settle:{unknown}"]

        (unknown,) = [one.key for one in await run.actions() if one.tool == "mail"]
        await eventually(shown)
        (settling,) = await waits()
        await client.settle(unknown, Outcome.ok("null"), by="ada")
        await look(listing)
        await listing.temporal.get_workflow_handle(f"settle:{unknown}").result()
        other = await client.start("greeter", "go", id=fresh_id())
        await other.result()
        histories = [await states(listing, one) for one in (run.id, other.id, settling.id)]

    assert "- `commitline approve 'thread:order 4821:0.1'` or" in shown_now.current_details
    defined = shown_now.definition
    handlers = [
        *defined.update_definitions,
        *defined.signal_definitions,
        *defined.query_definitions,
    ]
    assert [one.name for one in handlers if not one.description and one.name[0] != "_"] == []
    given = [(one.typed_search_attributes[AGENT], one.id) for one in (waiting, settling)]
    assert given == [("clerk", run.id), ("clerk", f"settle:{unknown}")]
    assert [one.typed_search_attributes[THREAD] for one in (waiting, settling)] == [
        "order 4821",
        "order 4821",
    ]
    assert histories == [
        ["running", "waits for approval", "unknown"],
        ["running", "done"],
        ["unknown", "done"],
    ]


async def test_a_run_whose_server_loses_an_attribute_goes_on_when_it_is_back(
    listing: Bench,
) -> None:
    app = app_of(call(("pay", {"cents": 5})), say("Done."))

    async with listing.serving(app) as client:
        run = await client.start("clerk", "go", id=fresh_id())
        await eventually(run.approvals)
        await listing.temporal.operator_service.remove_search_attributes(
            RemoveSearchAttributesRequest(
                namespace=listing.temporal.namespace, search_attributes=[STATE.name]
            )
        )
        late = await client.start("greeter", "go", id=fresh_id())  # its worker was told before
        await run.decide("0.0", approve=True, by="ada")

        async def refused() -> bool:
            failed = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
            return any(e.event_type == failed for e in (await listing.history(run.id)).events)

        await eventually(refused)
        await register_attributes(listing.temporal)
        ended = [await one.result() for one in (run, late)]

    assert [one.output for one in ended] == ["Done.", "Hello."]
