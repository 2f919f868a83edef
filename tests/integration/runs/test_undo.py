"""Taking back what a run did: in which order, what of it is unknown, and what stands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.common import RetryPolicy

from commitline import (
    Agent,
    AgentClient,
    App,
    Effect,
    Intervention,
    RunHandle,
    ScriptedModel,
    Tool,
    ToolContext,
    ToolRefused,
    tool,
)
from commitline.activities.app.never_happened import NEVER_HAPPENED
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, call, say
from commitline.errors import (
    CommitlineError,
    MaxStepsExceeded,
    ModelUnavailable,
    NotAuthorized,
    ResetRefused,
    RunError,
    RunNotRunning,
    ThreadDeleted,
    UndoRefused,
)
from commitline.identity import RunKey, undo_workflow
from commitline.ledger import Outcome, Run, RunLedger, UndoReport
from commitline.workflows import undo

from .bench import Bench, commitline, eventually, fresh_id
from .playing import SOON, Says, Signals, asked, seen
from .test_long_runs import chain


class Shop:
    """Charges and refunds, and what reached it, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.keys: list[str] = []
        self.refusing: set[str] = set()
        self.lost: set[str] = set()
        """Orders whose charge goes through and whose answer is lost."""
        self.failing: set[str] = set()
        """Orders whose refund gets no answer, and does not go through."""
        self.held = asyncio.Event()
        self.held.set()
        self.refunding = asyncio.Event()

        @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund", tries=2)
        async def refund(ctx: ToolContext, order_id: str, result: str) -> str:
            """Refund a charge."""
            assert ctx.undoes is not None
            assert ctx.undoes.arguments["order_id"] == order_id
            self.refunding.set()
            await self.held.wait()
            if order_id in self.refusing:
                raise ToolRefused("the bank is closed")
            if order_id in self.failing:
                raise TimeoutError("the bank does not answer")
            self._seen(f"refund {order_id} {result}", ctx)
            return "refunded"

        @tool(
            effect=Effect.IDEMPOTENT,
            idempotency_key="order-{order_id}-charge",
            compensate=refund,
            tries=1,
        )
        async def charge(ctx: ToolContext, order_id: str, cents: int = 100) -> str:
            """Charge an order."""
            self._seen(f"charge {order_id}", ctx)
            if order_id in self.lost:
                self.lost.remove(order_id)
                raise TimeoutError("no answer")
            return f"receipt-{order_id}"

        @tool(effect=Effect.AT_MOST_ONCE)
        async def mail(text: str) -> str:
            """Send a mail."""
            self.log.append(f"mail {text}")
            return "sent"

        self.charge, self.refund, self.mail = charge, refund, mail

    def _seen(self, what: str, ctx: ToolContext) -> None:
        if ctx.idempotency_key not in self.keys:
            self.keys.append(ctx.idempotency_key)
            self.log.append(what)

    def app(self, *answers: Answer, extra: Sequence[Tool] = ()) -> App:
        tools = [self.charge, self.mail, *extra]
        model = ScriptedModel("scripted", answers)
        steps = len(answers)
        return App([Agent("agent", model, "Do it.", tools=tools, max_steps=steps, model_tries=1)])


def charges(*orders: str) -> Completion:
    return call(*(("charge", {"order_id": order}) for order in orders))


def fates(report: UndoReport) -> list[tuple[str, str]]:
    return [(one.position, one.fate) for one in report.actions]


async def failed(client: AgentClient, **options: Any) -> tuple[RunHandle, str]:
    run = await client.start("agent", "go", id=fresh_id(), **options)
    with pytest.raises(CommitlineError) as raised:
        async with asyncio.timeout(60):
            await run.result()
    return run, str(raised.value)


async def test_what_a_failed_run_did_is_undone_in_reverse_order(bench: Bench) -> None:
    shop = Shop()

    async with bench.serving(shop.app(charges("1"), charges("2"), charges("3"))) as client:
        run, told = await failed(client)
        report = await run.undo_report()
        actions = await run.actions()

    assert shop.log == [
        *("charge 1", "charge 2", "charge 3"),
        *("refund 3 receipt-3", "refund 2 receipt-2", "refund 1 receipt-1"),
    ]
    assert "The run is compensated: 3 undone" in told
    assert report.state == "compensated"
    assert [(one.position, one.fate) for one in report.actions] == [
        ("2.0", "undone"),
        ("1.0", "undone"),
        ("0.0", "undone"),
    ]
    undo = {str(one.position): one for one in actions}["undo-1.0"]
    undone = {str(one.position): one for one in actions}["1.0"]
    assert (undo.tool, undo.undoes, undone.undone_by) == ("refund", undone.key, undo.key)


async def test_an_undo_goes_on_in_another_history_where_one_is_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        undo, "history_is_full", lambda: workflow.info().get_current_history_length() > 15
    )
    shop, orders = Shop(), [str(number) for number in range(1, 8)]
    shop.refusing.add("7")

    async with bench.serving(shop.app(charges(*orders))) as client:
        run, told = await failed(client)
        report = await run.undo_report()
        executions = await chain(bench, undo_workflow(await bench.run_key(run)))

    refunds = [line for line in shop.log if line.startswith("refund")]
    assert sorted(refunds) == [f"refund {order} receipt-{order}" for order in orders[:-1]]
    assert len(executions) > 1
    assert [one.fate for one in report.actions].count("undone") == 6
    assert "The run is partly compensated: 6 undone" in told
    assert "the bank is closed" in told


async def test_a_result_too_deep_to_be_given_on_stands_and_the_others_are_undone(
    bench: Bench,
) -> None:
    refunded: list[int] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def refund(result: Any) -> None:
        refunded.append(len(result))

    @tool(effect=Effect.IDEMPOTENT, compensate=refund)
    async def charge(kind: str) -> Any:
        deep: list[Any] = []
        for _ in range(199):
            deep = [deep]
        return {"deep": deep, "small": "x"}[kind]

    script = call(*((charge.name, {"kind": kind}) for kind in ("small", "deep", "small")))
    agent = Agent("agent", ScriptedModel("s", [script]), "", tools=[charge], max_steps=1)
    async with bench.serving(App([agent])) as client:
        _, told = await failed(client)

    assert refunded == [1, 1]
    assert "2 undone; charge at 0.1 stands (" in told
    assert "nested over 200 levels deep" in told


async def test_parallel_calls_are_undone_the_last_first_and_a_mail_stands(bench: Bench) -> None:
    shop = Shop()
    turn = call(*(("charge", {"order_id": order}) for order in "123"), ("mail", {"text": "hi"}))

    async with bench.serving(shop.app(turn)) as client:
        run, told = await failed(client)
        report = await run.undo_report()
        with pytest.raises(ResetRefused):
            await run.reset(to_step=0)

    charged = [what.split()[1] for what in shop.log if what.startswith("charge")]
    refunded = [what.split()[1] for what in shop.log if what.startswith("refund")]
    assert refunded == charged[::-1]
    assert report.state == "compensated"
    [standing] = report.standing
    assert (standing.tool, standing.fate) == ("mail", "stands")
    assert "mail at 0.3 stands (its tool names no other to undo it)" in told
    assert MaxStepsExceeded.code in told
    assert MaxStepsExceeded.remedy not in told, "it says that everything stands"


async def test_a_stop_that_undoes_is_not_stopped_by_another_nor_by_a_cancellation(
    bench: Bench,
) -> None:
    """A tool hangs in the middle; what it may have done is not known, and the rest is undone."""
    shop = Shop()
    hanging = asyncio.Event()

    @tool(effect=Effect.AT_MOST_ONCE, compensate=shop.refund)
    async def transfer(order_id: str) -> str:
        """Hang."""
        hanging.set()
        await asyncio.Event().wait()
        return ""

    answers = (charges("1"), charges("2"), call(("transfer", {"order_id": "3"})))
    async with bench.serving(shop.app(*answers, extra=[transfer])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await hanging.wait()
        shop.held.clear()
        status = await run.stop(reason="enough", compensate=True, wait_seconds=0)
        await shop.refunding.wait()
        await bench.temporal.get_workflow_handle(run.id).cancel()
        again = await run.stop(wait_seconds=0.5)
        shop.held.set()
        with pytest.raises(RunError, match="canceled"):
            await run.result()
        report = await run.undo_report()
        [found] = await (await client.ledger()).runs.list(workflow_id=run.id)

    assert (status.state, again.state) == ("stopping", "stopping")
    assert shop.log[2:] == ["refund 2 receipt-2", "refund 1 receipt-1"]
    assert fates(report) == [("2.0", "unknown"), ("1.0", "undone"), ("0.0", "undone")]
    assert report.state == "partly compensated"
    assert (found.state, found.stop_reason) == ("ended", "enough")


async def test_a_run_that_is_stopped_during_its_undo_ends_as_it_failed(bench: Bench) -> None:
    shop = Shop()
    shop.held.clear()

    def away(_: Any) -> Completion:
        raise ModelUnavailable("the model is away")

    async with bench.serving(shop.app(charges("1"), away)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await shop.refunding.wait()
        stopping = await run.stop(reason="enough", compensate=True, wait_seconds=0)
        shop.held.set()
        with pytest.raises(ModelUnavailable, match="the model is away") as failed:
            async with asyncio.timeout(60):
                await run.result()
        status = await run.status()
        again = await run.stop(reason="once more")
        [found] = await (await client.ledger()).runs.list(workflow_id=run.id)

    assert "The run is compensated: 1 undone" in str(failed.value)
    assert [stopping.state, status.state, again.state] == ["stopping", "failed", "failed"]
    assert (found.stop_reason or "").startswith("it failed: ModelUnavailable: model request 1")
    assert shop.log == ["charge 1", "refund 1 receipt-1"]


async def test_what_a_run_did_stands_when_its_conversation_is_deleted(bench: Bench) -> None:
    shop = Shop()
    thread = fresh_id("thread")
    charging, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect=Effect.AT_MOST_ONCE, compensate=shop.refund)
    async def transfer(order_id: str) -> str:
        """Take a while."""
        charging.set()
        await go_on.wait()
        return "transferred"

    turns = (charges("1"), call(("transfer", {"order_id": "2"})), say("Done."))
    app = shop.app(*turns, extra=[transfer])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", thread=thread)
        await charging.wait()
        await client.thread(thread).delete()
        go_on.set()
        with pytest.raises(ThreadDeleted):
            async with asyncio.timeout(60):
                await run.result()
        untouched = list(shop.log)
        left = await run.undo_report()
        report = await run.undo(reason="ordered by mistake")

    assert untouched == ["charge 1"]
    assert [one.fate for one in left.actions] == ["stands", "stands"]
    assert report.state == "compensated"


async def test_a_plain_stop_undoes_nothing_until_somebody_asks(bench: Bench) -> None:
    shop = Shop()
    hanging = asyncio.Event()

    @tool(effect=Effect.READ)
    async def wait() -> str:
        """Hang."""
        hanging.set()
        await asyncio.Event().wait()
        return ""

    async with bench.serving(shop.app(charges("1"), call(("wait", {})), extra=[wait])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await hanging.wait()
        with pytest.raises(UndoRefused):
            await run.undo()
        await run.stop()
        stopped = list(shop.log)
        report = await run.undo(reason="after all")
        again = await run.undo()

    assert stopped == ["charge 1"]
    assert shop.log == ["charge 1", "refund 1 receipt-1"]
    assert report == again
    assert report.state == "compensated"


async def test_a_stop_that_undoes_reaches_a_run_that_a_plain_stop_is_just_closing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    hanging, closing, may_close = asyncio.Event(), asyncio.Event(), asyncio.Event()
    end_run = RunLedger.end

    async def slow(self: RunLedger, *args: Any, **options: Any) -> Any:
        closing.set()
        await may_close.wait()
        return await end_run(self, *args, **options)

    @tool(effect=Effect.READ)
    async def wait() -> str:
        """Hang."""
        hanging.set()
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(RunLedger, "end", slow)
    async with bench.serving(shop.app(charges("1"), call(("wait", {})), extra=[wait])) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await hanging.wait()
        await run.stop(wait_seconds=0)
        await closing.wait()
        stopping = asyncio.create_task(run.stop(compensate=True, reason="take it back"))

        async def is_asked_for() -> bool:
            [found] = await (await client.ledger()).runs.list(workflow_id=run.id)
            return found.compensate

        await eventually(is_asked_for)
        may_close.set()
        status = await stopping
        report = await run.undo_report()

    assert status.state == "canceled"
    assert shop.log == ["charge 1", "refund 1 receipt-1"]
    assert report.state == "compensated"


async def test_a_lost_answer_is_asked_for_again_under_its_key_and_then_undone(
    bench: Bench,
) -> None:
    shop = Shop()
    shop.lost = {"1"}

    async with bench.serving(shop.app(charges("1"), charges("2"))) as client:
        run, _ = await failed(client)
        report = await run.undo_report()

    assert shop.log == ["charge 1", "charge 2", "refund 2 receipt-2", "refund 1 receipt-1"]
    assert shop.keys[0] == "order-1-charge"
    assert report.state == "compensated"


async def test_what_became_of_the_unknown_is_asked_or_left_and_the_others_are_undone_past_it(
    bench: Bench,
) -> None:
    shop = Shop()
    asked: list[str] = []

    async def lookup(args: dict[str, Any], key: str) -> Any:
        asked.append(args["order_id"])
        return "receipt-found" if args["order_id"] == "1" else NEVER_HAPPENED

    @tool(
        effect=Effect.LOOKUP,
        lookup=lookup,
        lookup_settles_after=timedelta(),
        compensate=shop.refund,
        refused_on=(),
        retry_on=(),
    )
    async def find(order_id: str) -> str:
        """Charge, and lose the answer."""
        shop.log.append(f"find {order_id}")
        raise TimeoutError("no answer")

    @tool(effect=Effect.IDEMPOTENT, compensate=shop.refund, undo_unknown="park", retry_on=())
    async def leave(order_id: str) -> str:
        """Charge, and lose the answer."""
        shop.log.append(f"leave {order_id}")
        raise TimeoutError("no answer")

    @tool(effect=Effect.AT_MOST_ONCE, compensate=shop.refund)
    async def once(order_id: str) -> str:
        """Charge, and lose the answer."""
        shop.log.append(f"once {order_id}")
        raise TimeoutError("no answer")

    turns = [
        charges("0"),
        call(("find", {"order_id": "1"})),
        call(("find", {"order_id": "2"})),
        call(("leave", {"order_id": "3"})),
        call(("once", {"order_id": "4"})),
    ]
    app = shop.app(*turns, extra=[find, leave, once])
    # The charge's compensator gets what the look-up found.
    async with bench.serving(app) as client:
        run, told = await failed(client)
        report = await run.undo_report()

    assert shop.log[5:] == ["refund 1 receipt-found", "refund 0 receipt-0"]
    assert sorted(asked) == ["1", "2"]
    assert fates(report) == [
        ("4.0", "unknown"),
        ("3.0", "unknown"),
        ("1.0", "undone"),
        ("0.0", "undone"),
    ]
    assert "The run is partly compensated: 2 undone; once at 4.0 is unknown" in told


async def test_what_could_not_be_undone_is_listed_and_is_all_that_is_tried_again(
    bench: Bench,
) -> None:
    """One refund is declined, one gets no answer: both are tried again, and nothing else."""
    shop = Shop()
    shop.refusing, shop.failing = {"2"}, {"3"}

    async with bench.serving(shop.app(charges("1"), charges("2"), charges("3"))) as client:
        run, told = await failed(client)
        before = await run.undo_report()
        tried = list(shop.log)
        shop.refusing.clear()
        shop.failing.clear()
        after = await run.undo(reason="the bank is open")
        rows = {str(one.position): one for one in await run.actions()}

    assert tried[3:] == ["refund 1 receipt-1"]
    assert fates(before) == [("2.0", "unknown"), ("1.0", "stands"), ("0.0", "undone")]
    assert "had no effect: the bank is closed" in before.actions[1].why
    assert "partly compensated" in told
    assert shop.log[4:] == ["refund 3 receipt-3", "refund 2 receipt-2"]
    assert after.state == "compensated"
    assert rows["undo-1.0~2"].idempotency_key == "order-2-refund~2"
    assert rows["undo-2.0"].idempotency_key == "order-3-refund"


async def test_a_receipt_of_another_run_is_not_undone_by_this_one(bench: Bench) -> None:
    shop = Shop()

    async with bench.serving(shop.app(charges("1"))) as client:
        await client.start("agent", "go", id=fresh_id())
        await eventually(lambda: _seen(shop.log, "refund 1 receipt-1"))
    other = Shop()
    app = other.app(charges("1"), say("done"))
    failing = Shop()
    async with bench.serving(app) as client:
        done = await client.start("agent", "go", id=fresh_id())
        await done.result()
    async with bench.serving(failing.app(charges("1"))) as client:
        run, told = await failed(client)
        report = await run.undo_report()

    assert other.keys == ["order-1-charge~2"], "the first charge was undone"
    assert failing.log == []
    assert report.state == "nothing to undo"
    assert "undone" not in told


async def _seen(log: list[str], what: str) -> bool:
    return what in log


async def test_what_the_model_has_refunded_itself_is_not_undone_twice(bench: Bench) -> None:
    shop = Shop()

    @tool(
        effect=Effect.IDEMPOTENT,
        idempotency_key="order-{order_id}-own-refund",
        undoes="order-{order_id}-charge",
    )
    async def give_back(order_id: str) -> str:
        """Refund an order."""
        shop.log.append(f"give back {order_id}")
        return "given back"

    turns = (charges("1"), call(("give_back", {"order_id": "1"})), charges("1"), charges("2"))
    async with bench.serving(shop.app(*turns, extra=[give_back])) as client:
        run, _ = await failed(client)
        report = await run.undo_report()
        rows = {str(one.position): one for one in await run.actions()}

    assert shop.log == [
        *("charge 1", "give back 1", "charge 1", "charge 2"),
        *("refund 2 receipt-2", "refund 1 receipt-1"),
    ]
    assert rows["0.0"].undone_by == rows["1.0"].key
    assert rows["2.0"].idempotency_key == "order-1-charge~2"
    assert rows["undo-2.0"].idempotency_key == "order-1-refund~of2"
    assert report.state == "compensated"


async def test_a_run_that_is_retried_is_undone_only_when_it_fails_for_good(bench: Bench) -> None:
    shop = Shop()
    seen: list[list[str]] = []

    def away(_: Any) -> Completion:
        seen.append(list(shop.log))
        raise ModelUnavailable("away")

    policy = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=10))
    app = shop.app(charges("1"), away, away)
    async with bench.serving(app) as client:
        run, told = await failed(client, retry_policy=policy)
        report = await run.undo_report()

    assert seen == [["charge 1"]] * 2, "not undone between its two executions"
    assert shop.log == ["charge 1", "refund 1 receipt-1"]
    assert report.state == "compensated"
    assert "The run is compensated: 1 undone" in told


async def test_a_run_whose_deadline_passes_is_undone(bench: Bench) -> None:
    shop = Shop()

    @tool(effect=Effect.READ)
    async def wait() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    async with bench.serving(shop.app(charges("1"), call(("wait", {})), extra=[wait])) as client:
        _, told = await failed(client, run_deadline=2)

    assert shop.log == ["charge 1", "refund 1 receipt-1"]
    assert told.startswith("its run_deadline has passed. The run is compensated: 1 undone")


async def test_a_terminated_run_can_be_undone_and_so_can_one_in_the_middle_of_its_undo(
    bench: Bench,
) -> None:
    """Its worker goes, too, while a refund is at work; the next one goes on."""
    shop = Shop()
    shop.held.clear()
    app = shop.app(charges("1"), charges("2"))

    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await shop.refunding.wait()
        await bench.temporal.get_workflow_handle(run.id).terminate()
        undoing = asyncio.create_task(run.undo())
        await asyncio.sleep(0)
        shop.held.set()
        report = await undoing
        again = await run.undo()

    assert sorted(shop.log[2:]) == ["refund 1 receipt-1", "refund 2 receipt-2"]
    assert report.state == again.state == "compensated"


@pytest.mark.parametrize("at", ["the beginning", "1.model"])
async def test_a_run_that_is_reset_in_the_middle_of_its_undo_goes_on_with_that(
    bench: Bench, at: str
) -> None:
    shop = Shop()
    shop.held.clear()
    requests: list[Any] = []

    def away_once(request: Any) -> Completion:
        requests.append(request)
        if len(requests) == 1:
            raise ModelUnavailable("away")
        return say("Done.")

    async with bench.serving(shop.app(charges("1"), away_once)) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await shop.refunding.wait()
        to = None if at == "the beginning" else await bench.task_before(run.id, at)
        await bench.reset(run.id, to=to)
        shop.held.set()
        with pytest.raises(RunNotRunning, match="The run is compensated: 1 undone"):
            async with asyncio.timeout(60):
                await run.result()
        report = await run.undo_report()
        rows = {one.position: one.state for one in await run.actions()}

    assert shop.log == ["charge 1", "refund 1 receipt-1"]
    assert len(requests) == 1, "no model says anything of what is undone"
    assert report.state == "compensated"
    assert rows == {"0.0": "ok", "undo-0.0": "ok"}


async def test_a_conversation_is_told_what_was_undone(bench: Bench) -> None:
    shop = Shop()
    model = ScriptedModel("scripted", [charges("1"), say("I see.")])
    app = App([Agent("agent", model, "Do it.", tools=[shop.charge], max_steps=1)])

    async with bench.serving(app) as client:
        thread = fresh_id("talk")
        with pytest.raises(RunError):
            await client.send(thread, "charge it", agent="agent")
        reply = await client.send(thread, "and now?")
        run = client.thread(thread)
        shown = [message.text for message in await run.messages()]

    assert reply.output == "I see."
    assert any("was undone afterwards" in (text or "") for text in shown)


async def test_who_may_settle_is_the_applications_word_and_a_late_success_is_queued_for_the_relay(
    bench: Bench,
) -> None:
    shop = Shop()

    @tool(effect=Effect.AT_MOST_ONCE, compensate=shop.refund)
    async def once(order_id: str) -> str:
        """Charge, and lose the answer."""
        raise TimeoutError("no answer")

    asked: list[Intervention] = []

    def only_ada(by: str, wanted: Intervention) -> bool:
        asked.append(wanted)
        return by == "ada"

    turns = (charges("1"), call(("once", {"order_id": "2"})))
    async with bench.serving(shop.app(*turns, extra=[once])) as client:
        run, _ = await failed(client)
        unknown = (await run.undo_report()).actions[0]
        guarded = AgentClient(client.temporal, bench.settings, authorize=only_ada)
        async with guarded:
            with pytest.raises(NotAuthorized):
                await guarded.settle(unknown.key, Outcome.ok('"receipt-2"'), by="eve")
            await guarded.settle(unknown.key, Outcome.ok('"receipt-2"'), by="ada")
        queued = await bench.sql("select key, why, tool from agent_relay")

    assert queued == [(unknown.key, "undo", "refund")]
    assert [(one.verb, one.key, one.outcome) for one in asked] == [
        ("settle", unknown.key, Outcome.ok('"receipt-2"'))
    ] * 2


async def test_an_operator_stops_undoes_and_sees_what_stands(bench: Bench) -> None:
    shop = Shop()
    shop.refusing = {"1"}
    waiting = asyncio.Event()

    @tool(effect=Effect.READ)
    async def wait() -> str:
        """Hang."""
        waiting.set()
        await asyncio.Event().wait()
        return ""

    async def command(*arguments: str) -> tuple[int, str]:
        done = await commitline(bench, *arguments, columns=120)
        return done.returncode, done.stdout

    app = shop.app(charges("1"), charges("2"), call(("wait", {})), extra=[wait])
    async with bench.serving(app) as client:
        run = await client.start("agent", "go", id=fresh_id())
        await waiting.wait()
        stopped, table = await command("stop", run.id, "--undo")
        shown, json_text = await command("undo", run.id, "--show", "--json")
        shop.refusing.clear()
        undone, end = await command("undo", run.id)
        _, listed = await command("runs", "--json")

    assert (stopped, shown, undone) == (1, 1, 0)
    assert table.startswith(f"{run.id}: canceled\n")
    assert f"{run.id}: Partly undone: 1 of 2.\n" in table
    assert "had no effect: the bank is closed" in " ".join(table.split())
    report = json.loads(json_text)
    assert report["state"] == "partly compensated"
    assert [
        (one["position"], one["fate"], one["args"]["order_id"]) for one in report["actions"]
    ] == [
        ("1.0", "undone", "2"),
        ("0.0", "stands", "1"),
    ]
    assert end.endswith(f"{run.id}: What can be undone of it is undone: 2.\n")
    assert {one["id"]: one["undone"] for one in json.loads(listed)}[run.id] == "yes"


async def test_a_run_that_is_stopped_between_two_executions_is_undone(bench: Bench) -> None:
    shop = Shop()

    def away(_: Any) -> Completion:
        raise ModelUnavailable("away")

    policy = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(seconds=2))
    async with bench.serving(shop.app(charges("1"), away, away)) as client:
        run = await client.start("agent", "go", id=fresh_id(), retry_policy=policy)
        first = (await run.describe()).run_id

        async def is_between() -> bool:
            return (await run.describe()).run_id != first

        await eventually(is_between)
        status = await run.stop(compensate=True)
        report = await run.undo_report()

    assert status.state == "canceled"
    assert shop.log == ["charge 1", "refund 1 receipt-1"]
    assert report.state == "compensated"


def charging_what_is_asked(shop: Shop) -> App:
    """An agent that charges the order that it is asked for, and says so."""

    def answer(request: ModelRequest) -> Completion:
        order = asked(request)[-1]
        return say(f"charged {order}") if request.messages[-1].role == "tool" else charges(order)

    return App([Agent("agent", Says(answer), "Do it.", tools=[shop.charge])])


async def test_each_run_of_a_conversation_is_undone_and_stopped_by_itself(bench: Bench) -> None:
    shop = Shop()
    thread = fresh_id("thread")

    async with bench.serving(charging_what_is_asked(shop)) as client:
        first = await client.start("agent", "a", thread=thread)
        await first.result()
        await client.send(thread, "b")
        await client.thread(thread).run.result()
        of_first, of_newest = await first.actions(), await client.thread(thread).run.actions()
        stopped = await first.stop(compensate=True)
        untouched = list(shop.log)
        report = await client.run(first.id, run_key=of_first[0].run_key).undo()
        newest = await client.thread(thread).run.undo_report()

    assert ["a" in one.args for one in of_first] == [True]
    assert len(of_newest) == 1
    assert of_first[0].run_key != of_newest[0].run_key
    assert (stopped.state, stopped.run_key) == ("completed", of_first[0].run_key)
    assert untouched == ["charge a", "charge b"]
    assert shop.log == [*untouched, "refund a receipt-a"]
    assert [(one.at, one.fate) for one in report.actions] == [("0.0", "undone")]
    assert [one.fate for one in newest.actions] == ["stands"]


async def test_a_stop_does_not_reach_the_conversations_next_run(bench: Bench) -> None:
    shop = Shop()
    thread = fresh_id("thread")

    async with bench.serving(charging_what_is_asked(shop)) as client:
        first = await client.start("agent", "a", thread=thread)
        shop.held.clear()  # nothing is refunded meanwhile
        await first.result()
        second = await client.start("agent", "b", thread=thread)
        stopped = await first.stop(reason="not this one")
        result = await second.result()

    assert stopped.state == "completed"
    assert result.output == "charged b"
    assert shop.log == ["charge a", "charge b"]


async def test_a_run_that_is_cancelled_while_it_is_opened_again_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    opened: list[RunKey] = []
    again, release = asyncio.Event(), asyncio.Event()
    real = RunLedger.open

    async def slow(self: RunLedger, **options: Any) -> Run:
        run = await real(self, **options)
        opened.append(run.run_key)
        if len(opened) == 2:
            again.set()
            await release.wait()
        return run

    def away(_: Any) -> Completion:
        raise ModelUnavailable("away")

    monkeypatch.setattr(RunLedger, "open", slow)
    policy = RetryPolicy(maximum_attempts=2, initial_interval=timedelta(seconds=0.1))
    async with bench.serving(shop.app(charges("1"), away, say("Done."))) as client:
        run = await client.start("agent", "go", id=fresh_id(), retry_policy=policy)
        await again.wait()
        await bench.temporal.get_workflow_handle(run.id).cancel()
        with pytest.raises(RunError, match="was canceled"):
            async with asyncio.timeout(60):
                await run.result()
        runs = await bench.sql("select state from agent_runs")
        release.set()

    assert runs == [("ended",)]
    assert shop.log == ["charge 1"]


async def test_a_run_of_a_conversation_is_shown_as_it_ended_while_the_next_one_is_at_work(
    bench: Bench, signals: Signals
) -> None:
    thread = fresh_id("thread")

    def answer(request: ModelRequest) -> Completion:
        if asked(request)[-1] == "b":
            signals.began.set()
            signals.release.wait(SOON)
        return say(asked(request)[-1])

    app = App([Agent("agent", Says(answer), "Do it.")])
    async with bench.serving(app) as client:
        first = await client.start("agent", "a", thread=thread)
        await first.result()
        second = await client.start("agent", "b", thread=thread)
        await seen(signals.began)
        status = await first.status()
        signals.release.set()
        await second.result()

    assert status.state == "completed"
    assert status.progress is not None
    assert status.progress.state == "done"
