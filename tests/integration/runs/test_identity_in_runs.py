"""Position and domain key in whole runs: what is the same action, and what is not."""

from __future__ import annotations

import json

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from commitline import Effect, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.activities.runs.missing_runs import MissingRuns
from commitline.errors import InvalidRunId
from commitline.examples.shop.app import charge_card, send_receipt
from commitline.testing.processes import ProviderProcess
from commitline.workflows import RunInput

from .bench import Bench, eventually, fresh_id, one_agent
from .relay_bench import ledger_of

CHARGE = ("charge_card", {"order_id": "4821", "amount_cents": 4900})
RECEIPT = ("send_receipt", {"order_id": "4821", "to": "ada@example.com"})


async def test_identical_calls_with_a_domain_key_are_one_fact_and_without_one_are_two(
    bench: Bench, provider: ProviderProcess
) -> None:
    provider.behave(delay_seconds=0.1)
    script = [call(RECEIPT, RECEIPT, CHARGE, CHARGE), say("Done.")]

    ran = await bench.run(one_agent([charge_card, send_receipt], script))

    assert provider.requests("mail") == 2
    assert (provider.requests("charge"), provider.effects("charge:4821")) == (1, 1)
    assert [r.status for r in ran.results] == ["ok", "ok", "ok", "ok"]
    charges = [json.loads(r.content) for r in ran.results[2:]]
    first = next(charge for charge in charges if "existing" not in charge)
    second = next(charge for charge in charges if "existing" in charge)
    assert second["existing"] is True
    assert second["result"] == first
    rows = {a.key: a for a in ran.actions if a.tool == "charge_card"}
    assert len(rows) == 2
    assert second["action"] in rows
    assert {a.duplicate_of for a in rows.values()} == {None, second["action"]}


async def test_another_run_gets_the_receipt_of_the_first_marked_as_existing(
    bench: Bench, provider: ProviderProcess
) -> None:
    app = one_agent([charge_card], [call(CHARGE), say("Done.")])

    async with bench.serving(app) as client:
        first = await bench.start(client)
        second = await bench.start(client)

    assert provider.requests("charge") == 1
    receipt = json.loads(second.results[0].content)
    assert receipt["existing"] is True
    assert receipt["action"] == first.actions[0].key
    assert receipt["result"] == json.loads(first.results[0].content)
    assert second.actions[0].duplicate_of == first.actions[0].key
    assert second.actions[0].idempotency_key is None


async def test_a_domain_key_asked_for_with_other_arguments_is_refused_before_any_request(
    bench: Bench, provider: ProviderProcess
) -> None:
    script = [
        call(CHARGE),
        call(("charge_card", {"order_id": "4821", "amount_cents": 5900})),
        say("Done."),
    ]

    ran = await bench.run(one_agent([charge_card], script))

    assert provider.requests("charge") == 1
    error = json.loads(ran.results[1].content)["error"]
    assert ran.results[1].status == "error"
    assert error["type"] == "IdempotencyKeyConflict"
    assert "4900" in error["message"]
    assert "5900" in error["message"]
    assert error["existing_action"] == ran.actions[0].key
    assert error["existing_action_stands"] is True
    assert [a.idempotency_key for a in ran.actions] == ["order-4821-charge", None]


async def test_a_conflict_stays_a_conflict_when_the_run_is_reset(
    bench: Bench, provider: ProviderProcess
) -> None:
    script = [
        call(CHARGE),
        call(("charge_card", {"order_id": "4821", "amount_cents": 5900})),
        say("Done."),
    ]

    async with bench.serving(one_agent([charge_card], script)) as client:
        live = await bench.start(client)
        replayed = await bench.rerun(client, live.id)

    assert replayed.messages == live.messages
    assert provider.requests("charge") == 1


async def test_only_the_parameters_named_by_same_tell_two_calls_of_one_key_apart(
    bench: Bench,
) -> None:
    sent: list[str] = []

    @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-ship", same=("order_id",))
    async def ship(ctx: ToolContext, order_id: str, note: str) -> str:
        sent.append(f"{ctx.idempotency_key} {note}")
        return note

    script = [
        call(("ship", {"order_id": "1", "note": "by the door"})),
        call(("ship", {"order_id": "1", "note": "By the door!"})),
        say("Done."),
    ]

    ran = await bench.run(one_agent([ship], script))

    assert sent == ["order-1-ship by the door"]
    assert json.loads(ran.results[1].content)["result"] == "by the door"


async def test_a_call_without_a_domain_key_has_a_key_of_its_own_position(bench: Bench) -> None:
    keys: list[str] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def post(ctx: ToolContext) -> str:
        keys.append(ctx.idempotency_key)
        return ctx.position

    ran = await bench.run(one_agent([post], [call(("post", {}), ("post", {})), say("Done.")]))

    assert sorted(keys) == sorted(a.idempotency_key or "" for a in ran.actions)
    assert len(set(keys)) == 2
    assert all(key.startswith("cl_") and len(key) == 43 for key in keys)
    assert [r.content for r in ran.results] == ['"0.0"', '"0.1"']


@pytest.mark.parametrize(
    "unusable", ["", " ", "a\x00b", "a\nb", "bestellung-ü", "x" * 181, "x" * 9_000, "\ud83d"]
)
async def test_an_unusable_id_is_refused_at_the_start(bench: Bench, unusable: str) -> None:
    async with bench.serving(one_agent([], [say("Done.")])) as client:
        with pytest.raises(InvalidRunId) as refused:
            await client.start("agent", "go", id=unusable)

    assert refused.value.code == "CL102"


async def test_an_unusable_id_that_comes_by_another_client_fails_the_run(bench: Bench) -> None:
    from commitline.activities.contract.encoding import pack

    run = await bench.temporal.start_workflow(
        "AgentRun",
        pack(RunInput("agent", "go")),
        id=fresh_id("bestellung-ü"),
        task_queue=bench.settings.task_queue,
    )

    async def is_listed() -> bool:
        return [one.id async for one in bench.temporal.list_workflows(query)] == [run.id]

    query = f"TaskQueue = '{bench.settings.task_queue}'"
    await eventually(is_listed)
    async with ledger_of(bench) as ledger:  # a worker's look at all runs does not break
        queue = bench.settings.task_queue
        await MissingRuns(ledger, bench.temporal, task_queue=queue).tell()
    async with bench.serving(one_agent([], [say("Done.")])):
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()

    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "InvalidRunId"


async def test_ids_that_look_like_keys_share_no_row(bench: Bench) -> None:
    calls: list[str] = []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def note(ctx: ToolContext) -> str:
        calls.append(ctx.action_key)
        return "noted"

    base = fresh_id()
    app = one_agent([note], [call(("note", {}), ("note", {})), say("Done.")])
    async with bench.serving(app) as client:
        for name in (base, f"{base}:0.0", f"{base}/x:0.0", base.upper(), f"{base}%3A0.0"):
            ran = await bench.outcome(await client.start("agent", "go", id=name))
            assert len(ran.actions) == 2

    assert len(set(calls)) == 10
