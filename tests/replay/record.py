"""Makes the histories that the replay tests replay: ``python tests/replay/record.py``.

Only those that are missing: what stands here is what runs look like that were started with
earlier code, and they go on. To remake one, delete it, together with a change that old runs
need not survive, and say so in the changelog.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client, WorkflowFailureError

from commitline import (
    Agent,
    AgentClient,
    App,
    Effect,
    Plan,
    ScriptedModel,
    Tool,
    ToolContext,
    ToolRefused,
    result_of,
    step,
    tool,
)
from commitline.activities.app.agent import AgentTool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import Answer, call, say
from commitline.config import Settings
from commitline.devstack import DevStack
from commitline.errors import ModelRejected
from commitline.examples.shop.app import charge_card, lookup_order, send_receipt
from commitline.handles.any_run import AnyRun
from commitline.ledger import ActionLedger, Question, ledger_pool, migrate
from commitline.process import leave
from commitline.testing.processes import ProviderProcess
from commitline.testing.proxy import TcpProxy
from commitline.worker import app_worker

HISTORIES = Path(__file__).parent / "histories"


@tool(effect=Effect.AT_MOST_ONCE)
async def fails() -> str:
    """Leave an outcome unknown."""
    raise RuntimeError("half way through")


@tool(effect=Effect.AT_MOST_ONCE)
async def refuses(why: str) -> str:
    """Decline, without effect."""
    raise ToolRefused(why)


WAITING = threading.Event()
"""The run to cancel has come to its tool."""
PROXIES: list[TcpProxy] = []


@tool(effect=Effect.AT_MOST_ONCE)
async def waits() -> str:
    """Wait until it is cancelled."""
    WAITING.set()
    await asyncio.sleep(600)
    return "never"


@tool(effect=Effect.IDEMPOTENT)
async def outlives_the_database(seconds: float) -> str:
    """Act while the database goes away; it is back by itself some time after."""
    PROXIES[0].cut()
    threading.Timer(seconds, PROXIES[0].restore).start()
    return "acted"


@tool(effect=Effect.AT_MOST_ONCE)
async def asks(ctx: ToolContext) -> str:
    """Ask a person twice."""
    return f"{await ctx.interrupt('first')} and {await ctx.interrupt('second')}"


@tool(effect=Effect.AT_MOST_ONCE, approval_expires=timedelta(seconds=1))
async def asks_in_vain(ctx: ToolContext) -> str:
    """Ask a person who does not answer."""
    return str(await ctx.interrupt("Anybody?"))


FAILED: list[str] = []


@tool(effect=Effect.IDEMPOTENT, local=True, tool_timeout=5)
async def comes_back(ctx: ToolContext) -> str:
    """Fail as a local activity, and act when the server has it called again."""
    if not FAILED:
        FAILED.append(ctx.position)
        raise ConnectionError("reset by peer")
    return "acted"


@tool(effect=Effect.AT_MOST_ONCE, local=True, tool_timeout=5)
async def declines_locally() -> str:
    """Decline, without effect."""
    raise ToolRefused("declined")


@tool(effect=Effect.IDEMPOTENT)
async def puts_back(result: str) -> str:
    """Undo `takes`."""
    return f"{result} is back"


@tool(effect=Effect.IDEMPOTENT, compensate=puts_back)
async def takes(what: str) -> str:
    """Act, and be undone."""
    return what


PLANS = {
    "plan_undone": Plan(
        "undone",
        [
            step(takes, {"what": "one"}, name="first"),
            [
                step(takes, {"what": result_of("first")}, name="second"),
                step(lookup_order, {"order_id": "4821"}),
            ],
            step(refuses, {"why": result_of("lookup_order", "currency")}),
        ],
    ),
}

THREE = call(
    ("lookup_order", {"order_id": "4821"}),
    ("charge_card", {"order_id": "4821", "amount_cents": 4900}),
    ("send_receipt", {"order_id": "4821", "to": "ada@example.com"}),
    text="I look it up, charge it and mail the receipt.",
)
CHECK_QUESTION = call(("lookup_order", {"order_id": "1"}))
ERRORS = call(
    ("fails", {}),
    ("refuses", {"why": "declined"}),
    ("refnd", {"order_id": "4821"}),
    ("refuses", '{"why": "cut off'),
    ("refuses", {"reason": "not a parameter"}),
    ids=["a", "a", "", "b", "c"],
)


def cuts_the_database(request: ModelRequest) -> Completion:
    """Answer while the database goes away; it is back by itself some time after."""
    PROXIES[0].cut()
    threading.Timer(3, PROXIES[0].restore).start()
    return CHECK_QUESTION


SCRIPTS: dict[str, Sequence[Answer]] = {
    "plain_answer": [say("Hello.")],
    "three_calls": [THREE, say("Done.")],
    "errors_and_an_unknown_tool": [
        ERRORS,
        call(("lookup_order", {"order_id": "1"})),
        say("Sorry."),
    ],
    "out_of_steps": [CHECK_QUESTION, CHECK_QUESTION, CHECK_QUESTION],
    "canceled": [call(("waits", {}), ("lookup_order", {"order_id": "4821"})), say("Never.")],
    "within_its_deadline": [THREE, say("Done.")],
    "past_its_deadline": [call(("waits", {}), ("lookup_order", {"order_id": "4821"}))],
    "outcome_recorded_later": [
        call(("outlives_the_database", {"seconds": 3})),
        CHECK_QUESTION,
        say("Done."),
    ],
    "turn_recorded_later": [cuts_the_database, say("Done.")],
    "three_calls_of_a_thread": [THREE, say("Done.")],
    "two_requests_of_a_thread": [CHECK_QUESTION, say("One."), CHECK_QUESTION, say("Two.")],
    "forked": [CHECK_QUESTION, CHECK_QUESTION, say("Done.")],
    "sub_agents": [
        call(("clerk", {"prompt": "Look."}), ("clerk", {"prompt": "Fail."})),
        say("Done."),
    ],
    "structured_output": [
        say("Three."),
        call(("final_result", {"value": "three"})),
        call(("final_result", {"value": 3})),
    ],
    "asked_midway": [call(("asks", {}), ("asks_in_vain", {})), say("Done.")],
    "local_turns": [call(("comes_back", {}), ("declines_locally", {})), say("Done.")],
}
DEADLINES = {"within_its_deadline": 600, "past_its_deadline": 1}


def looks_or_fails(request: ModelRequest) -> Completion:
    """Do what the prompt says."""
    if request.messages[0].text == "Fail.":
        raise ModelRejected("it fails")
    return CHECK_QUESTION if len(request.messages) == 1 else say("Looked.")


CLERK = Agent("clerk", ScriptedModel("clerk's", [looks_or_fails] * 2), "", [lookup_order])


def agent(name: str) -> Agent:
    """Return the agent of one history; its tools are the same in all of them."""
    tools: list[Tool | AgentTool] = [
        *(lookup_order, charge_card, send_receipt),
        *(fails, refuses, waits, outlives_the_database, asks, asks_in_vain),
    ]
    if name == "sub_agents":
        tools = [CLERK.as_tool(description="Looks.")]
    if name == "local_turns":
        tools = [comes_back, declines_locally]
    model = ScriptedModel(f"scripted-{name}", SCRIPTS[name])
    deadline = DEADLINES.get(name)
    output = int if name == "structured_output" else None
    made = Agent(
        name, model, "Help.", tools=tools, max_steps=3, run_deadline=deadline, output_type=output
    )
    return replace(made, local=True, model_timeout=5) if name == "local_turns" else made


async def record(stack: DevStack) -> None:
    """Run every script and write down what happened."""
    settings = Settings(database_url=stack.database_url, heartbeat_seconds=1, relay_seconds=0)
    await migrate(settings.database_url)
    temporal = await Client.connect(stack.temporal_address)
    app = App(agents=[agent(name) for name in SCRIPTS], tools=[takes])
    with TcpProxy.before(settings.database_url) as proxy:
        PROXIES.append(proxy)
        await serve_and_record(app, temporal, settings, proxy.url(settings.database_url))


async def serve_and_record(app: App, temporal: Client, settings: Settings, url: str) -> None:
    """Have a worker whose database is at ``url`` serve every script that is missing."""
    async with ledger_pool(url) as pool:
        ledger = ActionLedger(pool, statement_seconds=1)
        async with (
            app_worker(app, client=temporal, ledger=ledger, settings=settings),
            AgentClient(temporal, settings) as client,
        ):
            for name in (*SCRIPTS, *PLANS):
                if not (HISTORIES / f"{name}.json").exists():
                    await record_one(client, name)


async def record_one(client: AgentClient, name: str) -> None:
    """Run one script to its end, good or bad, and write its history."""
    run: AnyRun
    if name.endswith("_of_a_thread"):
        run = client.thread(name).run
        await asyncio.gather(
            *(
                client.send(name, "Please help.", agent=name, request_id=str(number))
                for number in range(2 if name.startswith("two_requests") else 1)
            )
        )
    elif name in PLANS:
        run = await client.start_plan(PLANS[name], id=name)
    else:
        run = await client.start(name, "Please help with order 4821.", id=name)
    workflow = client.temporal.get_workflow_handle(run.id)
    if name == "canceled":
        await asyncio.to_thread(WAITING.wait)
        await workflow.cancel()
    if name == "asked_midway":
        await answer_both(run)
    with suppress(WorkflowFailureError):
        await workflow.result()
    if name == "forked":
        await run.reset(to_step=1, fork=True)
        await workflow.result()
    if name == "sub_agents":
        await run.reset(to_step=1)  # its calls stand before that, as another execution made them
        await workflow.result()
        (child, *_) = await (await client.ledger()).sub_runs.below((await run.status()).run_key)
        await write(client, child.workflow_id, "sub_agent_of_another")
    await write(client, run.id, name)


async def write(client: AgentClient, id: str, name: str) -> None:
    """Write the history of a workflow."""
    history = await client.temporal.get_workflow_handle(id).fetch_history()
    (HISTORIES / f"{name}.json").write_text(history.to_json() + "\n", encoding="utf-8")


async def answer_both(run: AnyRun) -> None:
    """Answer what ``asks`` asks, as soon as it does."""
    for number in (1, 2):
        asked: Sequence[Question] = ()
        while not asked:
            await asyncio.sleep(0.05)
            asked = [one for one in await run.questions() if one.tool == "asks"]
        await run.answer(asked[0], number, by="ada")


def main() -> None:
    """Start servers of its own, record, stop them."""
    HISTORIES.mkdir(exist_ok=True)
    data_dir = Path(tempfile.mkdtemp(prefix="commitline-record-"))
    try:
        with DevStack(data_dir, ui_port=None, persistent=False) as stack, ProviderProcess() as shop:
            os.environ["SHOP_PROVIDER_URL"] = shop.url
            asyncio.run(record(stack))
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
    leave(0)
