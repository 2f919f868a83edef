"""What the relay sees to: runs that are gone, what they left, and what was parked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowExecutionStatus

from commitline import NEVER_HAPPENED, Agent, App, Effect, ScriptedModel, Tool, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.activities.runs.due_actions import DueActions
from commitline.identity import settle_workflow
from commitline.ledger import ActionLedger, Outcome
from commitline.workflows import Relay

from .bench import Bench, eventually, fresh_id
from .relay_bench import ends, ledger_of, look


class Bank:
    """Transfers that hang on their first call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.begun = asyncio.Event()
        self.known: dict[str, str] = {}

        async def asked(args: dict[str, Any], key: str) -> Any:
            return self.known.get(key, NEVER_HAPPENED)

        @tool(effect=Effect.IDEMPOTENT)
        async def ask_only(ctx: ToolContext) -> str:
            """Transfer."""
            return await self._hang("ask_only", ctx)

        @tool(effect=Effect.IDEMPOTENT, relay="resend")
        async def resend(ctx: ToolContext) -> str:
            """Transfer."""
            return await self._hang("resend", ctx)

        @tool(effect=Effect.LOOKUP, lookup=asked, lookup_settles_after=timedelta())
        async def look(ctx: ToolContext) -> str:
            """Transfer."""
            return await self._hang("look", ctx)

        @tool(effect=Effect.AT_MOST_ONCE)
        async def mail(ctx: ToolContext) -> str:
            """Send a mail."""
            raise ConnectionError("no answer")

        self.tools: list[Tool] = [ask_only, resend, look]
        self.mail: Tool = mail

    async def _hang(self, name: str, ctx: ToolContext) -> str:
        self.calls.append(name)
        if self.calls.count(name) > 1:
            return "sent again"
        self.known[ctx.idempotency_key] = "found"
        if len(self.calls) == 3:
            self.begun.set()
        await asyncio.sleep(600)
        return "never"


async def test_what_a_terminated_run_left_is_asked_about_resent_or_parked(bench: Bench) -> None:
    bank = Bank()
    script = [call(("ask_only", {}), ("resend", {}), ("look", {})), say("Done.")]
    app = App([Agent("agent", ScriptedModel("scripted", script), "Do it.", tools=bank.tools)])

    async with bench.serving(app, cached=0) as client:
        run = await client.start("agent", "go", id=fresh_id(), tool_timeout=600)
        await bank.begun.wait()
        await client.temporal.get_workflow_handle(run.id).terminate("a test")
        key = await bench.run_key(run)
        await bench.sql("update agent_runs set created_at = now() - interval '1 minute'")
        await bench.sql("update agent_actions set lease_until = now(), sent_until = now()")
        await client.temporal.execute_workflow(
            Relay.run, id=fresh_id("relay"), task_queue=bench.settings.task_queue
        )
        ledger = await client.ledger()
        ended = await ends(ledger, [one.key for one in await run.actions()], seconds=40)
        actions = {one.tool: one for one in ended}
        gone = await ledger.relay.list_lost()
        await eventually(lambda: _is(ledger.relay.list(), 1), seconds=40)
        (left,) = await ledger.relay.list()

    assert actions["look"].result == '"found"'
    assert actions["resend"].result == '"sent again"'
    assert actions["ask_only"].state == "unknown"
    assert "has no lookup" in (actions["ask_only"].parked_reason or "")
    assert bank.calls.count("ask_only") == bank.calls.count("look") == 1
    assert [(one.run_key, one.workflow_status, one.stands, one.unknown) for one in gone] == [
        (key, "terminated", 2, 1)
    ]
    assert (left.key, left.due_at) == (actions["ask_only"].key, None)


async def test_what_is_unknown_after_its_run_has_ended_is_an_open_workflow_until_it_is_settled(
    bench: Bench,
) -> None:
    script = [call(("mail", {})), say("Done.")]
    app = App([Agent("agent", ScriptedModel("scripted", script), "Do it.", tools=[Bank().mail])])

    async with bench.serving(app) as client, ledger_of(bench) as ledger:
        ((unknown,),) = [[one.key for one in ran.actions] for ran in [await bench.start(client)]]
        showing = bench.temporal.get_workflow_handle(f"settle:{unknown}")
        for _ in range(2):  # the second look finds that the first one did it
            await look(bench)
            await eventually(lambda: _shown(ledger))
        shown = await showing.describe()
        await client.settle(unknown, Outcome.ok('"sent"'), by="ada")
        settled = await ledger.relay.list()
        await look(bench)
        await showing.result()
        ended = await showing.describe()
        left = await ledger.relay.list()

    assert shown.status is WorkflowExecutionStatus.RUNNING
    assert [one.due_at is not None for one in settled] == [True]
    assert (ended.status, ended.run_id) == (WorkflowExecutionStatus.COMPLETED, shown.run_id)
    assert left == []


async def test_a_settlement_that_does_not_go_on_is_told_to_look_less_and_less_often(
    bench: Bench,
) -> None:
    script = [call(("mail", {})), say("Done.")]
    app = App([Agent("agent", ScriptedModel("scripted", script), "Do it.", tools=[Bank().mail])])
    queue = bench.settings.task_queue

    async with bench.serving(app) as client, ledger_of(bench) as ledger:
        (unknown,) = (await bench.start(client)).actions
        stuck = await bench.temporal.start_workflow(
            "Nobody", id=settle_workflow(unknown.key), task_queue=queue
        )
        await ledger.relay.queue_parked(["mail"], most=9, namespace=bench.temporal.namespace)
        await DueActions(app, ledger, bench.temporal, task_queue=queue).start_settlements()
        (entry,) = await ledger.relay.list()
        await stuck.terminate()

    assert entry.due_at is not None
    assert (entry.starts, entry.due_at - entry.now > timedelta(seconds=30)) == (1, True)


async def _shown(ledger: ActionLedger) -> bool:
    return [(one.shown, one.due_at) for one in await ledger.relay.list()] == [(True, None)]


async def _is(asked: Awaitable[Sequence[Any]], count: int) -> bool:
    return len(await asked) == count
