"""Who may do what to a run, a call or a conversation: the application is asked before each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from commitline import AgentClient, App, Effect, Intervention, Tool, intend, tool
from commitline.activities.model.scripted_model import call, say
from commitline.errors import NotAuthorized
from commitline.ledger import Action, Outcome, UndoReport, ledger_pool

from .bench import Bench, eventually, fresh_id, one_agent
from .relay_bench import relaying


class Charges:
    """A tool that charges and one that refunds, and what they did."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

        @tool(effect=Effect.IDEMPOTENT)
        async def refund(order_id: str) -> None:
            """Refund it."""
            self.done.append(("refund", order_id))

        @tool(effect=Effect.IDEMPOTENT, idempotency_key="{order_id}", compensate=refund)
        async def charge(order_id: str) -> None:
            """Charge it."""
            self.done.append(("charge", order_id))

        self.tools: list[Tool] = [charge, refund]


class Asked:
    """An application's `authorize`: ada may do everything, everybody else nothing."""

    def __init__(self) -> None:
        self.of: list[Intervention] = []

    def __call__(self, by: str, wanted: Intervention) -> bool:
        self.of.append(wanted)
        return by == "ada"


Act = Callable[..., Awaitable[Any]]


async def _refused(act: Act, **given: Any) -> None:
    for by in ("eve", ""):
        with pytest.raises(NotAuthorized, match="may not"):
            await act(**given, by=by)


async def test_an_application_is_asked_before_a_run_is_stopped_undone_reset_or_forked(
    bench: Bench,
) -> None:
    charges, asked = Charges(), Asked()
    answers = [call(("charge", {"order_id": "1"})), say("Done.")]

    async with (
        bench.serving(one_agent(charges.tools, answers)) as served,
        AgentClient(served.temporal, bench.settings, authorize=asked) as client,
    ):
        run = await client.start("agent", "go", id=fresh_id())
        await run.result()
        await _refused(run.reset, to_step=0)
        await _refused(run.reset, to_step=1, fork=True)
        await _refused(run.stop, compensate=True)
        await _refused(run.undo)
        untouched = (await run.status(), await run.result(), list(charges.done))
        forked = await run.reset(to_step=1, fork=True, by="ada")
        await run.result()
        await run.undo(by="ada")

    assert (untouched[0].state, untouched[1].output) == ("completed", "Done.")
    assert untouched[2] == [("charge", "1")]
    assert forked.epoch == 1
    assert charges.done == [("charge", "1"), ("refund", "1")]
    told = list(dict.fromkeys((it.verb, it.run_key, it.step) for it in asked.of))
    key = untouched[0].run_key
    assert told == [
        ("reset", key, 0),
        ("fork", key, 1),
        ("stop", key, None),
        ("undo", key, None),
    ]
    (report,) = {it.about.actions[0].tool for it in asked.of if isinstance(it.about, UndoReport)}
    assert report == "charge"


async def test_a_stop_that_undoes_is_asked_about_as_both(bench: Bench) -> None:
    charges, at_work = Charges(), asyncio.Event()

    @tool(effect=Effect.READ)
    async def hang() -> None:
        """Hang."""
        at_work.set()
        await asyncio.Event().wait()

    def may_only_stop(by: str, wanted: Intervention) -> bool:
        return wanted.verb == "stop"

    async with (
        bench.serving(one_agent([*charges.tools, hang], [call(("hang", {}))])) as served,
        AgentClient(served.temporal, bench.settings, authorize=may_only_stop) as client,
    ):
        run = await client.start("agent", "go", id=fresh_id())
        await at_work.wait()
        with pytest.raises(NotAuthorized, match="undo"):
            await run.stop(compensate=True)
        running = await run.status()
        stopped = await run.stop()

    assert (running.state, stopped.state) == ("running", "canceled")


async def test_an_application_is_asked_before_work_of_the_outbox_is_reopened_or_settled(
    bench: Bench,
) -> None:
    asked, bench = Asked(), relaying(bench)

    @tool(effect=Effect.AT_MOST_ONCE)
    async def mail(to: str) -> None:
        """Mail it, and lose the answer."""
        raise TimeoutError

    async def parked(client: AgentClient, key: Any) -> Action | None:
        found = await (await client.ledger()).get(key)
        return found if found is not None and found.parked else None

    app = App(one_agent([], []).agents, tools=[mail])
    async with (
        bench.serving(app) as served,
        AgentClient(served.temporal, bench.settings, authorize=asked) as client,
    ):
        async with (
            ledger_pool(bench.settings.database_url) as pool,
            pool.connection() as conn,
            conn.transaction(),
        ):
            mailed = await intend(conn, mail, {"to": "a@b"})
        found = await eventually(lambda: parked(client, mailed))
        assert found is not None
        await _refused(client.reopen, key=mailed)
        await _refused(client.settle, key=mailed, outcome=Outcome.ok("null"))

    assert {(it.verb, it.key, it.args) for it in asked.of} == {
        (verb, mailed, '{"to":"a@b"}') for verb in ("reopen", "settle")
    }


async def test_an_application_is_asked_before_a_conversation_is_deleted(bench: Bench) -> None:
    asked = Asked()

    async with (
        bench.serving(one_agent([], [say("Hello.")])) as served,
        AgentClient(served.temporal, bench.settings, authorize=asked) as client,
    ):
        thread = client.thread(fresh_id())
        await thread.send("Hi", agent="agent")
        await _refused(thread.delete)
        kept = await thread.messages()
        await thread.delete(by="ada")

    assert len(kept) == 2
    assert {(it.verb, it.target) for it in asked.of} == {("delete", thread.id)}
