"""The loop of a run: every call once, every call answered once, side by side, in order."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from commitline import Effect, Tool, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.errors import ConversationTooLarge, PlanDivergence
from commitline.examples.shop import payments
from commitline.examples.shop.app import charge_card, lookup_order, send_receipt
from commitline.testing.processes import ProviderProcess

from .bench import Bench, one_agent


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
async def refund(ctx: ToolContext, order_id: str) -> str:
    """Refund an order."""
    sent = await payments.post(
        "/refunds", {"order_id": order_id}, idempotency_key=ctx.idempotency_key
    )
    return str(sent["id"])


async def test_a_plain_answer_is_a_run_of_one_step_without_actions(bench: Bench) -> None:
    ran = await bench.run(one_agent([], [say("Hello.")]))

    assert (ran.result.output, ran.result.steps, ran.result.finish_reason) == ("Hello.", 1, "stop")
    assert ran.actions == []


async def test_history_names_the_build_of_the_worker(bench: Bench) -> None:
    named = Bench(bench.temporal, bench.settings.model_copy(update={"build_id": "5888c44"}))

    ran = await named.run(one_agent([], [say("Hello.")]))

    tasks = [
        event.workflow_task_completed_event_attributes
        for event in (await bench.history(ran.id)).events
        if event.HasField("workflow_task_completed_event_attributes")
    ]
    assert {task.worker_version.build_id for task in tasks} == {"5888c44"}


async def test_a_message_with_three_calls_runs_each_once_and_answers_in_order(
    bench: Bench, provider: ProviderProcess
) -> None:
    script = [
        call(
            ("lookup_order", {"order_id": "4821"}),
            ("charge_card", {"order_id": "4821", "amount_cents": 4900}),
            ("send_receipt", {"order_id": "4821", "to": "ada@example.com"}),
            text="I will do that.",
        ),
        say("Done."),
    ]

    ran = await bench.run(one_agent([lookup_order, charge_card, send_receipt], script))

    assert ran.result.output == "Done."
    assert [(a.position, a.tool, a.state) for a in ran.actions] == [
        ("0.1", "charge_card", "ok"),
        ("0.2", "send_receipt", "ok"),
    ]
    assert [(r.position, r.call_id, r.name, r.status) for r in ran.results] == [
        ("0.0", "call_1", "lookup_order", "ok"),
        ("0.1", "call_2", "charge_card", "ok"),
        ("0.2", "call_3", "send_receipt", "ok"),
    ]
    assert [message.role for message in ran.messages] == ["user", "assistant", "tool"]
    assert ran.messages[1].completion is not None
    assert ran.messages[1].completion.text == "I will do that."
    assert provider.effects("charge:4821") == 1
    assert [key for key, _ in provider.sent("charge")] == ["order-4821-charge"]
    assert provider.requests("mail") == 1


async def test_repeated_and_missing_call_ids_hide_no_call(
    bench: Bench, provider: ProviderProcess
) -> None:
    charge = ("charge_card", {"order_id": "4821", "amount_cents": 4900})
    script = [
        call(charge, ids=["call_1"]),
        call(("refund", {"order_id": "4821"}), ids=["call_1"]),
        call(
            ("refund", {"order_id": "1"}),
            ("refund", {"order_id": "2"}),
            ids=["call_1", "call_1"],
        ),
        call(("refund", {"order_id": "3"}), ids=[""]),
        say("Done."),
    ]

    ran = await bench.run(one_agent([charge_card, refund], script))

    assert [(r.position, r.call_id, r.name, r.status) for r in ran.results] == [
        ("0.0", "call_1", "charge_card", "ok"),
        ("1.0", "call_1", "refund", "ok"),
        ("2.0", "call_1", "refund", "ok"),
        ("2.1", "call_1", "refund", "ok"),
        ("3.0", "", "refund", "ok"),
    ]
    assert sorted(a.position for a in ran.actions) == ["0.0", "1.0", "2.0", "2.1", "3.0"]
    assert provider.stats()["effects"] == {
        "charge:4821": 1,
        "refund:4821": 1,
        "refund:1": 1,
        "refund:2": 1,
        "refund:3": 1,
    }


async def test_one_failing_call_abandons_no_sibling_and_leaves_no_call_unanswered(
    bench: Bench,
) -> None:
    finished: list[str] = []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def slow() -> str:
        await asyncio.sleep(0.3)
        finished.append("slow")
        return "slow done"

    @tool(effect=Effect.AT_MOST_ONCE)
    async def silent() -> str:
        raise Exception

    @tool(effect=Effect.AT_MOST_ONCE)
    async def empty() -> list[str]:
        return []

    @tool(effect=Effect.READ)
    async def broken_read() -> str:
        raise KeyError("shelf")

    names = ["silent", "slow", "empty", "broken_read", "missing"]
    script = [call(*[(name, {}) for name in names], text="All at once."), say("Done.")]

    ran = await bench.run(one_agent([slow, silent, empty, broken_read], script))

    assert finished == ["slow"]
    assert [(r.name, r.status) for r in ran.results] == [
        ("silent", "unknown"),
        ("slow", "ok"),
        ("empty", "ok"),
        ("broken_read", "error"),
        ("missing", "error"),
    ]
    assert [r.call_id for r in ran.results] == ["call_1", "call_2", "call_3", "call_4", "call_5"]
    assert ran.results[1].content == '"slow done"'
    assert ran.results[2].content == "[]"
    assert "Exception without a message" in ran.results[0].content
    assert {a.tool: a.state for a in ran.actions} == {
        "slow": "ok",
        "silent": "unknown",
        "empty": "ok",
    }


async def test_a_call_that_ends_the_run_lets_its_siblings_settle_first(bench: Bench) -> None:
    calls: list[str] = []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def slow() -> str:
        await asyncio.sleep(0.3)
        calls.append("slow")
        return "slow done"

    @tool(effect=Effect.AT_MOST_ONCE)
    async def quick() -> str:
        calls.append("quick")
        return "quick done"

    app = one_agent([slow, quick], [call(("quick", {}), ("slow", {})), say("Done.")])
    async with bench.serving(app) as client:
        run = await bench.start(client)
        await bench.sql("delete from agent_actions where tool = 'slow'")
        await bench.sql("update agent_actions set requested_digest = 'another call'")
        await bench.reset(run.id)
        with pytest.raises(PlanDivergence):
            await client.run(run.id).result()
        settled = list(calls)
        actions = await client.run(run.id).actions()

    assert settled == ["quick", "slow", "slow"]
    assert {a.tool: a.state for a in actions} == {"quick": "ok", "slow": "ok"}


async def test_the_calls_of_one_message_overlap(bench: Bench) -> None:
    intervals: list[tuple[float, float]] = []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def work(number: int) -> int:
        begun = time.monotonic()
        await asyncio.sleep(0.2)
        intervals.append((begun, time.monotonic()))
        return number

    script = [call(*[("work", {"number": number}) for number in range(3)]), say("Done.")]

    ran = await bench.run(one_agent([work], script))

    assert [r.content for r in ran.results] == ["0", "1", "2"]
    assert max(begun for begun, _ in intervals) < min(ended for _, ended in intervals)


async def test_a_plain_function_holds_up_neither_its_siblings_nor_the_loop(bench: Bench) -> None:
    released = threading.Event()
    contexts: list[str] = []

    @tool(effect=Effect.IDEMPOTENT)
    def waits_for_its_sibling(ctx: ToolContext) -> bool:
        contexts.append(ctx.position)
        return released.wait(60)

    @tool(effect=Effect.AT_MOST_ONCE)
    async def releases() -> str:
        released.set()
        return "released"

    script = [call(("waits_for_its_sibling", {}), ("releases", {})), say("Done.")]

    ran = await bench.run(one_agent([waits_for_its_sibling, releases], script))

    assert [r.content for r in ran.results] == ["true", '"released"']
    assert contexts == ["0.0"]


async def test_the_next_request_holds_what_the_calls_returned(bench: Bench) -> None:
    seen: list[list[str]] = []

    def answer(request: ModelRequest) -> Completion:
        seen.append([result.content for result in request.messages[-1].results])
        return say("Done.")

    await bench.run(one_agent([echo()], [call(("echo", {"text": "héllo"})), answer]))

    assert seen == [['"h\\u00e9llo"']]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (say("It was a dark and", finish_reason="length"), "length"),
        (say("I cannot do that.", finish_reason="refusal"), "refusal"),
        (say(""), "empty"),
    ],
    ids=["cut off", "refused", "empty"],
)
async def test_a_last_text_that_is_no_whole_answer_is_told_as_such(
    bench: Bench, answer: Completion, reason: str
) -> None:
    ran = await bench.run(one_agent([], [answer]))

    assert (ran.result.output, ran.result.finish_reason) == (answer.text, reason)


async def test_a_reset_to_the_start_repeats_no_call_and_reads_the_same_messages(
    bench: Bench, provider: ProviderProcess
) -> None:
    script = [
        call(
            ("charge_card", {"order_id": "4821", "amount_cents": 4900}),
            ("send_receipt", {"order_id": "4821", "to": "ada@example.com"}),
        ),
        say("Done."),
    ]
    app = one_agent([charge_card, send_receipt], script)

    async with bench.serving(app) as client:
        live = await bench.start(client)
        again = await bench.rerun(client, live.id)

    assert again.messages == live.messages
    assert again.result == live.result
    assert [a.key for a in again.actions] == [a.key for a in live.actions]
    assert (provider.requests("charge"), provider.requests("mail")) == (1, 1)


def echo() -> Tool:
    @tool(effect=Effect.AT_MOST_ONCE)
    async def echo(text: Any) -> Any:
        return text

    return echo


@tool(effect=Effect.AT_MOST_ONCE)
async def export(part: int) -> str:
    """Return as much as a result may carry to the model."""
    return "x" * 250_000


async def test_results_that_are_too_large_together_travel_in_part_and_the_run_goes_on(
    bench: Bench,
) -> None:
    script = [call(*[("export", {"part": part}) for part in range(7)]), say("Done.")]

    ran = await bench.run(one_agent([export], script))

    assert ran.result.output == "Done."
    told = [json.loads(result.content) for result in ran.results]
    assert [one["whole_value"] for one in told] == [
        f"in the ledger, as the result of {action.key}"
        for action in sorted(ran.actions, key=lambda action: action.position)
    ]
    assert [action.state for action in ran.actions] == ["ok"] * 7
    assert {len(action.result or "") for action in ran.actions} == {250_002}


async def test_a_conversation_may_grow_beyond_what_temporal_carries(bench: Bench) -> None:
    answers = [call(*[("export", {"part": 3 * turn + n}) for n in range(3)]) for turn in range(4)]

    ran = await bench.run(one_agent([export], [*answers, say("Done.")]))

    assert ran.result.output == "Done."
    assert [len(result.content) for result in ran.results] == [250_002] * 12


async def test_a_prompt_that_does_not_fit_a_request_ends_the_run_and_not_in_a_loop(
    bench: Bench,
) -> None:
    async with bench.serving(one_agent([], [say("Done.")])) as client:
        run = await client.start("agent", "x" * 1_750_000, id="too-large-a-prompt")
        with pytest.raises(ConversationTooLarge, match="turn 1 has 17"):
            await run.result()


async def test_a_result_over_the_limit_reaches_the_model_cut_and_stays_whole_in_the_ledger(
    bench: Bench,
) -> None:
    ran = await bench.run(one_agent([dump], [call(("dump", {})), say("Done.")]))

    told = json.loads(ran.results[0].content)
    assert (told["truncated"], told["characters"]) == (True, 5_000_002)
    assert told["whole_value"] == f"in the ledger, as the result of {ran.actions[0].key}"
    assert len(ran.actions[0].result or "") == 5_000_002


@tool(effect=Effect.AT_MOST_ONCE)
async def dump() -> str:
    """Return five million characters."""
    return "x" * 5_000_000
