"""What a turn costs: Commitline, a hand-written Temporal workflow, the official integration.

All are runs of one-call turns: ask the model, carry out the call that it makes, ask again.
By hand that is a workflow with two activities per turn, the model's, which is given the whole
list of messages, and the tool's; nothing is recorded outside history, so a crash between the
tool's effect and its completion repeats the effect. The official OpenAI Agents integration for
Temporal has the same two activities and the same gap, and is left out where it is not
installed. Commitline's run asks the same questions and makes the same calls, and its actions
and completions go through the ledger.

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
    from collections.abc import AsyncIterator
    from contextlib import AsyncExitStack, asynccontextmanager
    from pathlib import Path
    from statistics import median

    from rich.console import Console
    from rich.table import Table
    from temporalio.client import Client
    from temporalio.worker import Worker

    from commitline import Agent, App, Effect, ToolContext, tool
    from commitline.bench import official
    from commitline.bench.harness import WORKER_OPTIONS, Run, history_bytes, log_to, with_commitline
    from commitline.devstack import DevStack
    from commitline.process import leave
    from commitline.testing import ScriptedModel, call, say

TARGET: Final = 1.3
TARGET_OFFICIAL: Final = 1.0
INSTRUCTIONS: Final = "You charge orders, one at a time, and say when you are done."
PROMPT: Final = "Charge every open order."
DONE: Final = "Every open order is charged."
BY_HAND_QUEUE: Final = "by-hand"


def order_of(turn: int) -> dict[str, Any]:
    """Return the arguments of the call that the model makes at a turn."""
    return {"order_id": f"order-{turn}", "amount_cents": 4999}


def receipt_of(order_id: str) -> dict[str, Any]:
    """Return what the tool answers."""
    return {"charge_id": f"ch_{order_id}", "state": "succeeded"}


# By hand: what one writes with the SDK alone, messages as chat completions has them.


@dataclass
class LookUp:
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
async def ask_model(given: LookUp) -> dict[str, Any]:
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
                LookUp(INSTRUCTIONS, messages, turns),
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


# In the official integration: the same agent again.


@activity.defn(name="charge_card")
async def charge_officially(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(order_id)


def job_of(turns: int) -> official.Job:
    """Return the agent with its script."""
    calls = [order_of(turn) for turn in range(turns)]
    return official.Job(INSTRUCTIONS, PROMPT, charge_officially, calls, DONE)


# What is measured.


@asynccontextmanager
async def by_hand(client: Client, *, turns: int) -> AsyncIterator[Run]:
    """Serve the hand-written workflow, with the options that our worker has."""
    worker = Worker(
        client,
        task_queue=BY_HAND_QUEUE,
        workflows=[ByHand],
        activities=[ask_model, charge_by_hand],
        **WORKER_OPTIONS,
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


async def measure(stack: DevStack, *, runs: int, turns: int, progress: Console) -> dict[str, Any]:
    """Measure against running servers and return the result as JSON data."""
    client = await Client.connect(stack.temporal_address)
    async with AsyncExitStack() as serving:
        enter = serving.enter_async_context
        ours = with_commitline(client, stack.database_url, app_of(turns), PROMPT)
        kinds = {
            "by_hand": await enter(by_hand(client, turns=turns)),
            "commitline": await enter(ours),
        }
        if official.INSTALLED:
            theirs = official.with_official(stack.temporal_address, job_of(turns))
            kinds["official"] = await enter(theirs)
        times = await take_turns(kinds, runs=runs, turns=turns, progress=progress)
        sizes = {name: await history_bytes(client, f"{name}-{runs}") for name in kinds}
    middle = {name: median(taken) for name, taken in times.items()}
    return {
        "ratio": round(middle["commitline"] / middle["by_hand"], 3),
        "target": TARGET,
        "ratio_official": (
            round(middle["commitline"] / middle["official"], 3) if "official" in kinds else None
        ),
        "target_official": TARGET_OFFICIAL,
        "runs": runs,
        "turns": turns,
        "official": None,
        **{
            name: {
                "turn_ms": round(middle[name], 3),
                "turns_ms": [round(taken, 3) for taken in times[name]],
                "history_bytes": sizes[name],
            }
            for name in kinds
        },
    }


async def take_turns(
    kinds: dict[str, Run], *, runs: int, turns: int, progress: Console
) -> dict[str, list[float]]:
    """Run each kind in turn, and return how long each run took, in milliseconds per turn."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    names = list(kinds)
    for number in range(runs + 1):
        # The first round warms up, and is not counted. Who begins changes each time.
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken = await milliseconds_per_turn(kinds[name], f"{name}-{number}", turns=turns)
            told = f"run {number} of {runs}" if number else "warming up"
            progress.print(f"  {told}, {name}: {taken:.1f} ms a turn")
            if number:
                times[name].append(taken)
    return times


def table_of(result: dict[str, Any]) -> Table:
    """Return the result for people."""
    table = Table(
        title=f"{result['runs']} runs of {result['turns']} turns (at most {TARGET} times by hand)",
        caption=caption_of(result),
    )
    table.add_column("kind", no_wrap=True)
    for heading in ("median ms a turn", "fastest", "slowest", "history KB", "ratio"):
        table.add_column(heading, justify="right")
    for name, told in (
        ("by_hand", "Temporal by hand"),
        ("official", "official"),
        ("commitline", "Commitline"),
    ):
        found = result[name]
        if found is None:
            table.add_row(told, "not installed")
            continue
        table.add_row(
            told,
            f"{found['turn_ms']:.1f}",
            f"{min(found['turns_ms']):.1f}",
            f"{max(found['turns_ms']):.1f}",
            f"{found['history_bytes'] / 1000:.0f}",
            f"{found['turn_ms'] / result['by_hand']['turn_ms']:.2f}",
        )
    return table


def caption_of(result: dict[str, Any]) -> str:
    """Return how Commitline compares with the official integration, in words."""
    if result["ratio_official"] is None:
        return f"official: {official.NAME}"
    return (
        f"Commitline takes {result['ratio_official']:.2f} times as long as {official.NAME} "
        f"(below {TARGET_OFFICIAL})"
    )


def main() -> None:
    """Start the servers, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(
        description="What a turn costs, against Temporal by hand and the official integration."
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each kind")
    parser.add_argument("--turns", type=int, default=50, help="turns of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.runs < 1 or given.turns < 1:
        parser.error("--runs and --turns: at least 1")
    progress = Console(stderr=True, highlight=False)
    if not official.INSTALLED:
        progress.print(
            f"Without {official.NAME}, which is not installed: {official.HOW_TO_INSTALL}",
            markup=False,
            soft_wrap=True,
        )
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
