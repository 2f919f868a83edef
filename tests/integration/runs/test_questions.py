"""Calls that ask a person midway: what is asked, what an answer does, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from commitline import AgentClient, App, Effect, Intervention, RunHandle, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.canonical import parse
from commitline.errors import AnswerRefused, NotAuthorized, RunFailed
from commitline.ledger import Question
from commitline.tests.integration.runs.isolated_tools import asks_elsewhere

from .bench import Bench, eventually, fresh_id, one_agent
from .playing import replies_of, within

PAYLOAD = {"cents": 900, "odd": [None, 1.5, "a\x00b \ud83d"]}
ANSWER = {"go": False, "note": ["☃", "\ud83d", None]}

Body = Callable[[ToolContext, str], Awaitable[Any]]


class Asks:
    """A tool that may ask; and what it began, with the order and the key, and ended with."""

    def __init__(self, body: Body, *, effect: Effect = Effect.AT_MOST_ONCE, **options: Any) -> None:
        self.begun: list[str] = []
        self.keys: set[str] = set()
        self.ended: list[Any] = []

        @tool(effect=effect, name="refund", **options)
        async def refund(ctx: ToolContext, order_id: str) -> Any:
            """Refund an order."""
            self.begun.append(order_id)
            self.keys.add(ctx.idempotency_key)
            self.ended.append(await body(ctx, order_id))
            return self.ended[-1]

        self.tool = refund


async def once(ctx: ToolContext, order_id: str) -> Any:
    """Ask one question and return its answer."""
    return await ctx.interrupt(PAYLOAD, message=f"Refund {order_id}?")


async def twice(ctx: ToolContext, order_id: str) -> Any:
    return [await ctx.interrupt("first"), await ctx.interrupt("second")]


def refunds(*orders: str) -> Any:
    return call(*(("refund", {"order_id": one}) for one in orders))


async def asked(run: RunHandle, *payloads: Any) -> Sequence[Question]:
    """Wait until the run's calls ask just this."""

    async def found() -> Sequence[Question] | None:
        waiting = await run.questions()
        return waiting if [parse(one.payload) for one in waiting] == list(payloads) else None

    waiting = await eventually(found)
    assert waiting is not None
    return waiting


async def test_a_call_waits_and_is_made_again_with_its_answer(bench: Bench) -> None:
    asks, begun = Asks(once), []

    @tool(effect=Effect.AT_MOST_ONCE)
    async def mail(order_id: str) -> str:
        """Write a mail."""
        begun.append(order_id)
        return "sent"

    message = call(("mail", {"order_id": "1"}), ("refund", {"order_id": "1"}))

    with capture_logs() as logs:
        async with bench.serving(one_agent([asks.tool, mail], [message, say("Done.")])) as client:
            run = await client.start("agent", "go", id=fresh_id())
            (question,) = await asked(run, PAYLOAD)

            async def shown() -> Any:
                progress = (await run.status()).progress
                return (
                    progress if progress and progress.calls[-1].state == "awaiting_answer" else None
                )

            progress = await eventually(shown)
            # Side by side: either may have its row first.
            waiting = {one.tool: one for one in await run.actions()}["refund"]
            await run.answer("0.1", ANSWER, by="ada")
            result = await run.result()
            ended = {one.tool: one for one in await run.actions()}
            mailed, refunded = ended["mail"], ended["refund"]
            (answered,) = await run.questions(only_waiting=False)
            history = await bench.history(run.id)

    assert (question.tool, question.position, question.message) == ("refund", "0.1", "Refund 1?")
    assert question.expires_at is not None
    assert timedelta(hours=71) < question.expires_at - question.now <= timedelta(hours=72)
    assert [one.state for one in progress.calls] == ["ok", "awaiting_answer"]
    assert "| **waits for an answer**: Refund 1? |" in progress.markdown()
    assert (waiting.state, waiting.tries, waiting.failures) == ("intent", 0, 0)
    assert (result.output, asks.ended) == ("Done.", [ANSWER])
    assert (asks.begun, len(asks.keys), begun) == (["1", "1"], 1, ["1"])
    assert (mailed.tries, refunded.state, refunded.tries, refunded.failures) == (1, "ok", 1, 0)
    assert (answered.answered_by, answered.state) == ("ada", "answered")
    assert [one["event"] for one in logs if one["event"].startswith("question.")] == [
        "question.asked",
        "question.answered",
    ]
    assert not [one for one in logs if one["event"] == "tool.raised"]
    failed = [
        one for one in history.events if one.HasField("activity_task_failed_event_attributes")
    ]
    assert failed == []


async def test_the_answers_of_a_call_outlive_a_reset_and_a_restart(bench: Bench) -> None:
    asks = Asks(twice)
    answers = [refunds("1"), say("Done.")]

    async with bench.serving(one_agent([asks.tool], answers)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await asked(run, "first")
        await run.answer("0.0", 1, by="ada")
        (second,) = await asked(run, "second")
        await run.reset(to_step=0)
        await eventually(lambda: _begun(asks, 3))
    async with bench.serving(one_agent([asks.tool], answers)) as client:
        run = client.run(run.id)
        (still,) = await asked(run, "second")
        await run.answer(second, [2], by="bob")
        result = await run.result()
        both = await run.questions(only_waiting=False)

    assert (result.output, asks.ended, still.number) == ("Done.", [[1, [2]]], 2)
    assert [(one.number, one.answered_by) for one in both] == [(1, "ada"), (2, "bob")]


async def _begun(asks: Asks, times: int) -> bool:
    return len(asks.begun) >= times


async def test_one_of_many_answers_counts_and_for_the_question_that_was_seen(
    bench: Bench,
) -> None:
    asks = Asks(twice)

    async def authorize(by: str, wanted: Intervention) -> bool:
        return by != "eve" and wanted.verb == "answer" and wanted.value is not None

    async with bench.serving(one_agent([asks.tool], [refunds("1"), say("Done.")])) as served:
        guarded = AgentClient(served.temporal, bench.settings, authorize=authorize)
        async with guarded as client:
            run = await client.start("agent", "go", id=fresh_id())
            (first,) = await asked(run, "first")
            with pytest.raises(NotAuthorized, match="'eve'"):
                await run.answer("0.0", 1, by="eve")
            for at, value, why in (
                ("0.0", None, "needs a value"),
                ("0.7", 1, "nothing was asked"),
                ("0.0", "x" * 300_000, "is over"),
            ):
                with pytest.raises(AnswerRefused, match=why):
                    await run.answer(at, value, by="ada")
            said = await asyncio.gather(
                *(run.answer(first, by, by=by) for by in "abcde"), return_exceptions=True
            )
            (second,) = await asked(run, "second")
            (winner,) = [by for by, one in zip("abcde", said, strict=True) if one is None]
            await run.answer(first, winner, by=winner)
            with pytest.raises(AnswerRefused, match=f"was answered by {winner}"):
                await run.answer(first, "other", by=winner)
            still = await run.questions()
            await run.answer(second, 2, by="ada")
            await run.result()

    assert {type(one) for one in said if one is not None} == {AnswerRefused}
    assert [one.number for one in still] == [2]
    assert (asks.ended, len(asks.begun)) == ([[winner, 2]], 3)


@pytest.mark.parametrize("by", ["ad\x00a", "ad\udce9a"], ids=["nul", "surrogate"])
async def test_a_name_that_cannot_be_stored_wedges_nothing(bench: Bench, by: str) -> None:
    asks = Asks(once)

    async with bench.serving(one_agent([asks.tool], [refunds("1"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (question,) = await asked(run, PAYLOAD)
        for _ in range(2):
            await run.answer(question, ANSWER, by=by)
        result = await run.result()
        (answered,) = await run.questions(only_waiting=False)

    assert (result.output, asks.ended) == ("Done.", [ANSWER])
    assert answered.answered_by == "ad?a"


async def test_an_answer_is_for_its_call_alone_and_for_what_was_asked(bench: Bench) -> None:
    prices = iter((100, 120, 120, 120, 300, 300))

    async def quoted(ctx: ToolContext, order_id: str) -> Any:
        price = next(prices)
        return price, await ctx.interrupt({"price": price})

    asks = Asks(quoted)
    answers = [refunds("1"), refunds("1"), say("Done.")]

    async with bench.serving(one_agent([asks.tool], answers)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (first,) = await asked(run, {"price": 100})
        await run.answer(first, "yes", by="ada")
        (second,) = await asked(run, {"price": 120})
        with pytest.raises(AnswerRefused, match="raised another question"):
            await run.answer(first, "no", by="bob")
        await run.answer(second, "dear", by="ada")
        (third,) = await asked(run, {"price": 120})
        await run.answer(third, "no", by="ada")
        (fourth,) = await asked(run, {"price": 300})
        await run.answer(fourth, "never", by="ada")
        await run.result()
        everything = await run.questions(only_waiting=False)

    assert asks.ended == [(120, "dear"), (300, "never")]
    assert [(one.position, one.number, one.state) for one in everything] == [
        ("0.0", 1, "replaced"),
        ("0.0", 2, "answered"),
        ("1.0", 1, "replaced"),
        ("1.0", 2, "answered"),
    ]


async def test_what_nobody_answers_in_time_is_not_executed_and_holds_nothing(
    bench: Bench,
) -> None:
    async def first_only(ctx: ToolContext, order_id: str) -> Any:
        return "done" if len(asks.begun) > 1 else await once(ctx, order_id)

    soon = timedelta(seconds=1)
    asks = Asks(first_only, idempotency_key="refund-{order_id}", approval_expires=soon)

    @tool(effect=Effect.READ, approval_expires=soon)
    async def look_up(ctx: ToolContext) -> Any:
        """Look an order up."""
        return await ctx.interrupt("Which?")

    order = fresh_id("order")
    both = call(("refund", {"order_id": order}), ("look_up", {}))
    answers = [both, refunds(order), say("Done.")]

    async with bench.serving(one_agent([asks.tool, look_up], answers)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await run.result()
        results, actions = await replies_of(run), await run.actions()
        with pytest.raises(AnswerRefused, match="has ended: completed"):
            await run.answer("0.0", "late", by="ada")
        await run.reset(to_step=0)
        await run.result()
        again = await replies_of(run)

    assert [status for status, _ in results] == ["error", "error", "ok"]
    assert all("not executed: nobody answered" in content for _, content in results[:2])
    assert [(one.position, one.state) for one in actions] == [("0.0", "error"), ("1.0", "ok")]
    assert (asks.ended, again[0], again[2]) == (["done"], results[0], results[2])


async def test_a_business_fact_that_waits_for_an_answer_is_left_to_whoever_asked(
    bench: Bench,
) -> None:
    asks = Asks(once, idempotency_key="refund-{order_id}")
    order = fresh_id("order")

    def app() -> App:
        return one_agent([asks.tool], [refunds(order), say("Done.")])

    async with bench.serving(app()) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (question,) = await asked(run, PAYLOAD)
        other = await bench.start(client)
        begun = list(asks.begun)
        await run.answer(question, 1, by="ada")
        await run.result()
        (action,) = await run.actions()
        after = await bench.start(client)

    assert (begun, asks.ended, len(asks.keys)) == ([order], [1], 1)
    (away,) = other.results
    assert away.status == "error"
    assert f"not executed: {question.key} carries it out, and waits for a person" in away.content
    assert (action.state, [one.state for one in other.actions]) == ("ok", ["error"])
    assert '"existing":true' in after.results[0].content


async def test_a_question_after_a_try_that_may_have_sent_something_goes_by_the_effect(
    bench: Bench,
) -> None:
    async def second_try(ctx: ToolContext, order_id: str) -> Any:
        if len(asks.begun) == 1:
            raise ConnectionError("cut")
        return await once(ctx, order_id)

    asks = Asks(second_try, effect=Effect.IDEMPOTENT, idempotency_key="refund-{order_id}")
    order = fresh_id("order")

    async with bench.serving(one_agent([asks.tool], [refunds(order), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (question,) = await asked(run, PAYLOAD)
        (waiting,) = await run.actions()
        other = await bench.start(client)
        begun = len(asks.begun)
        await run.answer(question, 1, by="ada")
        await run.result()
        (action,) = await run.actions()

    assert (waiting.state, waiting.leased, waiting.failures) == ("dispatched", False, 1)
    assert (other.results[0].status, begun) == ("error", 2)
    assert (action.state, action.failures, len(asks.keys), asks.ended) == ("ok", 1, 1, [1])


async def test_a_stop_ends_the_wait_and_nothing_is_called_any_more(bench: Bench) -> None:
    asks = Asks(once)

    async with bench.serving(one_agent([asks.tool], [refunds("1"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        (question,) = await asked(run, PAYLOAD)
        status = await run.stop()
        with pytest.raises(AnswerRefused, match="has ended: canceled"):
            await run.answer(question, 1, by="ada")
        left, (action,) = await run.questions(), await run.actions()
        with pytest.raises(RunFailed):
            await run.result()

    assert (status.state, asks.begun, left, action.state) == ("canceled", ["1"], [], "intent")


async def test_a_gated_call_and_a_read_may_ask_too(bench: Bench) -> None:
    asks = Asks(once, approval=True)

    @tool(effect=Effect.READ)
    async def look_up(ctx: ToolContext) -> Any:
        """Look an order up."""
        return [await ctx.interrupt("Which?"), await ctx.interrupt("Sure?")]

    message = call(("refund", {"order_id": "1"}), ("look_up", {}))

    async with bench.serving(one_agent([asks.tool, look_up], [message, say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await asked(run, "Which?")
        await run.answer("0.1", "this", by="ada")
        await asked(run, "Sure?")
        await run.answer("0.1", True, by="ada")
        await run.decide("0.0", approve=True, by="ada")
        await asked(run, PAYLOAD)
        await run.answer("0.0", "go", by="bob")
        await run.result()
        results = await replies_of(run)

    assert results == [("ok", '"go"'), ("ok", '["this",true]')]


async def test_only_what_lets_the_pause_through_waits(bench: Bench) -> None:
    async def swallowed(ctx: ToolContext, order_id: str) -> Any:
        try:
            return await once(ctx, order_id)
        except BaseException:
            return "swallowed"

    async def guarded(ctx: ToolContext, order_id: str) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(once(ctx, order_id))
                group.create_task(asyncio.sleep(60 if len(asks.begun) == 2 else 0))
        except Exception:
            return "caught"
        return task.result()

    async def either(ctx: ToolContext, order_id: str) -> Any:
        return await (swallowed if order_id == "1" else guarded)(ctx, order_id)

    asks = Asks(either)

    async with bench.serving(
        one_agent([asks.tool], [refunds("1"), refunds("2"), say("Done.")])
    ) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await asked(run, PAYLOAD)
        await run.answer("1.0", "yes", by="ada")
        await run.result()

    assert asks.ended == ["swallowed", "yes"]


@pytest.mark.parametrize("effect", [Effect.AT_MOST_ONCE, Effect.IDEMPOTENT])
async def test_what_a_call_does_beside_its_question_is_not_done_a_second_time(
    bench: Bench, effect: Effect
) -> None:
    sent: list[str] = []

    async def send(order_id: str) -> None:
        await asyncio.sleep(0.05)
        sent.append(order_id)

    async def beside(ctx: ToolContext, order_id: str) -> Any:
        return (await asyncio.gather(ctx.interrupt(PAYLOAD), send(order_id)))[0]

    asks = Asks(beside, effect=effect)

    async with bench.serving(one_agent([asks.tool], [refunds("1"), say("Done.")])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        if effect is Effect.IDEMPOTENT:
            (question,) = await asked(run, PAYLOAD)
            await run.answer(question, "yes", by="ada")
        await within(run.result())
        (action,) = await run.actions()

    known = effect is Effect.IDEMPOTENT
    assert action.state == ("ok" if known else "unknown")
    assert (len(asks.begun), len(sent)) == ((2, 1) if known else (1, 0))


async def test_nobody_is_asked_from_a_plain_function_or_another_process(bench: Bench) -> None:
    @tool(effect=Effect.READ)
    def plain(ctx: ToolContext) -> Any:
        """Ask without an event loop."""
        return ctx.interrupt("What?")

    message = call(("plain", {}), ("asks_elsewhere", {}))
    ran = await bench.run(one_agent([plain, asks_elsewhere], [message, say("Done.")]))

    assert [one.status for one in ran.results] == ["error", "error"]
    assert [parse(one.content)["error"]["type"] for one in ran.results] == [
        "CannotInterrupt",
        "CannotInterrupt",
    ], ran.results
