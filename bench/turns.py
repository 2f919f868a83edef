"""What a turn costs: Commitline against a hand-written Temporal workflow.

Both are runs of one-call turns: ask the model, carry out the call that it makes, ask again.
By hand that is a workflow with two activities per turn, the model's, which is given the whole
list of messages, and the tool's; nothing is recorded outside history, so a crash between the
tool's effect and its completion repeats the effect. Commitline's run asks the same questions
and makes the same calls, and its actions and completions go through the ledger.

One process, one Temporal server in memory, one Postgres with fsync on; a worker for each with
the same options; their runs take turns, so that whatever disturbs the machine disturbs them
alike.

    python bench/turns.py [--runs 5] [--turns 50] [--json]
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    import argparse
    import json
    import shutil
    import tempfile
    import time
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import asynccontextmanager, redirect_stderr
    from pathlib import Path
    from statistics import median
    from typing import TextIO

    from rich.console import Console
    from rich.table import Table
    from temporalio.client import Client
    from temporalio.worker import Worker

    from commitline import Agent, App, Effect, ToolContext, tool
    from commitline.activities.scripted_model import ScriptedModel, call, say
    from commitline.client import AgentClient
    from commitline.config import Settings
    from commitline.devstack import DevStack
    from commitline.ledger import ActionLedger, ledger_pool, migrate
    from commitline.logs import configure_logging
    from commitline.process import leave
    from commitline.worker import STICKY_SECONDS, app_worker

TARGET: Final = 1.3
INSTRUCTIONS: Final = "You charge orders, one at a time, and say when you are done."
PROMPT: Final = "Charge every open order."
DONE: Final = "Every open order is charged."
BY_HAND_QUEUE: Final = "by-hand"
CACHED_WORKFLOWS: Final = 1000
SETTINGS: Final = Settings()


def order_of(turn: int) -> dict[str, Any]:
    """Return the arguments of the call that the model makes at a turn."""
    return {"order_id": f"order-{turn}", "amount_cents": 4999}


def receipt_of(order_id: str) -> dict[str, Any]:
    """Return what the tool answers."""
    return {"charge_id": f"ch_{order_id}", "state": "succeeded"}


# By hand: what one writes with the SDK alone, messages as chat completions has them.


@dataclass
class Ask:
    """One model request."""

    instructions: str
    messages: list[dict[str, Any]]
    turns: int


@dataclass
class Order:
    """The arguments of one call."""

    order_id: str
    amount_cents: int


@activity.defn
async def ask_model(given: Ask) -> dict[str, Any]:
    """Answer the turn that the messages have come to."""
    turn = sum(message["role"] == "assistant" for message in given.messages)
    if turn == given.turns:
        return {"role": "assistant", "content": DONE}
    arguments = json.dumps(order_of(turn))
    function = {"name": "charge_by_hand", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }


@activity.defn
async def charge_by_hand(given: Order) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(given.order_id)


@workflow.defn
class ByHand:
    """The loop with two activities per turn."""

    @workflow.run
    async def run(self, turns: int) -> str:
        """Go on until the model makes no call."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
        while True:
            answer = await workflow.execute_activity(
                ask_model,
                Ask(INSTRUCTIONS, messages, turns),
                start_to_close_timeout=timedelta(minutes=15),
            )
            messages.append(answer)
            if "tool_calls" not in answer:
                return str(answer["content"])
            for made in answer["tool_calls"]:
                receipt = await workflow.execute_activity(
                    charge_by_hand,
                    Order(**json.loads(made["function"]["arguments"])),
                    start_to_close_timeout=timedelta(minutes=15),
                )
                messages.append(
                    {"role": "tool", "tool_call_id": made["id"], "content": json.dumps(receipt)}
                )


# With Commitline: the same agent, as an application writes it.


@tool(effect=Effect.IDEMPOTENT)
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(order_id)


def app_of(turns: int) -> App:
    """Return an app whose model makes one call per turn."""
    answers = [call(("charge_card", order_of(turn))) for turn in range(turns)]
    model = ScriptedModel("scripted", [*answers, say(DONE)])
    agent = Agent("bench", model, INSTRUCTIONS, [charge_card], max_steps=turns + 1)
    return App(agents=[agent])


Run = Callable[[str], Awaitable[str]]
"""Start a run with this workflow id and wait for its answer."""


@asynccontextmanager
async def with_commitline(client: Client, database_url: str, *, turns: int) -> AsyncIterator[Run]:
    """Serve the app, through the ledger, while the body runs."""
    await migrate(database_url)
    async with (
        ledger_pool(database_url, size=SETTINGS.pool_size) as pool,
        app_worker(
            app_of(turns),
            client=client,
            ledger=ActionLedger(pool),
            settings=SETTINGS,
            max_cached_workflows=CACHED_WORKFLOWS,
        ),
        AgentClient(client, SETTINGS) as agents,
    ):

        async def run(id: str) -> str:
            started = await agents.start("bench", PROMPT, id=id)
            return (await started.result()).output

        yield run


@asynccontextmanager
async def by_hand(client: Client, *, turns: int) -> AsyncIterator[Run]:
    """Serve the hand-written workflow, with the options that our worker has."""
    worker = Worker(
        client,
        task_queue=BY_HAND_QUEUE,
        workflows=[ByHand],
        activities=[ask_model, charge_by_hand],
        max_cached_workflows=CACHED_WORKFLOWS,
        max_concurrent_activities=SETTINGS.max_concurrent_activities,
        graceful_shutdown_timeout=SETTINGS.grace,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=STICKY_SECONDS),
    )
    async with worker:

        async def run(id: str) -> str:
            return await client.execute_workflow(ByHand.run, turns, id=id, task_queue=BY_HAND_QUEUE)

        yield run


async def milliseconds_per_turn(run: Run, id: str, *, turns: int) -> float:
    """Return how long a run takes, divided by its turns."""
    began = time.perf_counter()
    answer = await run(id)
    taken = time.perf_counter() - began
    assert answer == DONE, answer
    return taken * 1000 / turns


async def history_bytes(client: Client, id: str) -> int:
    """Return the size of a run's history, as the server counts it."""
    described = await client.get_workflow_handle(id).describe()
    return described.raw_description.workflow_execution_info.history_size_bytes


async def measure(stack: DevStack, *, runs: int, turns: int, progress: Console) -> dict[str, Any]:
    """Measure against running servers and return the result as JSON data."""
    client = await Client.connect(stack.temporal_address)
    times: dict[str, list[float]] = {"by_hand": [], "commitline": []}
    sizes: dict[str, int] = {}
    async with (
        by_hand(client, turns=turns) as hand,
        with_commitline(client, stack.database_url, turns=turns) as ours,
    ):
        kinds = {"by_hand": hand, "commitline": ours}
        for number in range(runs + 1):
            # The first pair warms up, and is not counted. Who begins changes each time.
            names = list(kinds) if number % 2 else list(reversed(kinds))
            for name in names:
                run_id = f"{name}-{number}"
                taken = await milliseconds_per_turn(kinds[name], run_id, turns=turns)
                told = f"run {number} of {runs}" if number else "warming up"
                progress.print(f"  {told}, {name}: {taken:.1f} ms a turn")
                if number:
                    times[name].append(taken)
                    sizes[name] = await history_bytes(client, run_id)
    middle = {name: median(taken) for name, taken in times.items()}
    return {
        "ratio": round(middle["commitline"] / middle["by_hand"], 3),
        "target": TARGET,
        "runs": runs,
        "turns": turns,
        **{
            name: {
                "turn_ms": round(middle[name], 3),
                "turns_ms": [round(taken, 3) for taken in times[name]],
                "history_bytes": sizes[name],
            }
            for name in times
        },
    }


def table_of(result: dict[str, Any]) -> Table:
    """Return the result for people."""
    table = Table(
        title=f"{result['runs']} runs of {result['turns']} turns (at most {TARGET} times by hand)"
    )
    table.add_column("kind")
    for heading in ("median ms a turn", "fastest", "slowest", "history KB", "ratio"):
        table.add_column(heading, justify="right")
    for name, told, ratio in (
        ("by_hand", "Temporal by hand", 1.0),
        ("commitline", "Commitline", result["ratio"]),
    ):
        found = result[name]
        table.add_row(
            told,
            f"{found['turn_ms']:.1f}",
            f"{min(found['turns_ms']):.1f}",
            f"{max(found['turns_ms']):.1f}",
            f"{found['history_bytes'] / 1000:.0f}",
            f"{ratio:.2f}",
        )
    return table


def log_to(file: TextIO) -> None:
    """Log as a worker does in production, one JSON object a line, but not in between."""
    with redirect_stderr(file):
        configure_logging()


def main() -> None:
    """Start the servers, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description="What a turn costs, against Temporal by hand.")
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind")
    parser.add_argument("--turns", type=int, default=50, help="turns of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.runs < 1 or given.turns < 1:
        parser.error("--runs and --turns: at least 1")
    progress = Console(stderr=True, highlight=False)
    # Not below a closed folder: under root, Postgres runs as a user of its own.
    data_dir = Path(tempfile.mkdtemp(prefix="commitline-bench-"))
    try:
        with (data_dir / "worker.log").open("w") as log:
            log_to(log)
            progress.print("Starting Temporal and Postgres")
            with DevStack(data_dir, ui_port=None, persistent=False) as stack:
                progress.print(f"Taking turns: {given.runs} runs of {given.turns} turns each")
                result = asyncio.run(
                    measure(stack, runs=given.runs, turns=given.turns, progress=progress)
                )
                progress.print("Stopping Temporal and Postgres")
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    (progress if given.json else Console(highlight=False)).print(table_of(result))
    if given.json:
        print(json.dumps(result))
    leave(0)


if __name__ == "__main__":
    main()
