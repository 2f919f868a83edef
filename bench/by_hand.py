"""Two agents as one writes them by hand, with the Temporal SDK alone and on its defaults.

Each is a workflow with two activities, the model's and the tool's. Nothing is recorded outside
history, so a crash between the tool's effect and its completion repeats the effect.

- *Lean* is the cheapest such workflow that we know: a model request carries what is new, a message
  is as short as it can be, and the list of messages is assumed to be somewhere else.
- *Whole list* is what most write: the workflow holds the messages, as chat completions has them,
  and each model request carries all of them, so history grows with their square.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    import json
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    from temporalio.client import Client
    from temporalio.worker import Worker

    from commitline.bench.harness import Run
    from commitline.bench.job import DONE, INSTRUCTIONS, Job, receipt_of

TIMEOUT: Final = timedelta(minutes=15)
QUEUE: Final = "by-hand"


@activity.defn
async def charge_by_hand(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(order_id)


# Lean.


@activity.defn
async def next_calls(prompt: str, turn: int, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer a turn: the arguments of its calls, or none."""
    return Job.of(prompt).arguments(turn)


@workflow.defn
class Lean:
    """The loop, with what is new in each model request."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Go on until the model makes no call."""
        turn, results = 0, list[dict[str, Any]]()
        while True:
            calls = await workflow.execute_activity(
                next_calls, args=[prompt, turn, results], start_to_close_timeout=TIMEOUT
            )
            if not calls:
                return DONE
            results = await asyncio.gather(*(_charge(arguments) for arguments in calls))
            turn += 1


def _charge(arguments: dict[str, Any]) -> workflow.ActivityHandle[dict[str, Any]]:
    return workflow.start_activity(
        charge_by_hand,
        args=[arguments["order_id"], arguments["amount_cents"]],
        start_to_close_timeout=TIMEOUT,
    )


# Whole list.


@activity.defn
async def request_model(instructions: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer the turn that the messages have come to."""
    turn = sum(message["role"] == "assistant" for message in messages)
    calls = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": "charge_by_hand", "arguments": json.dumps(arguments)},
        }
        for index, arguments in enumerate(Job.of(messages[0]["content"]).arguments(turn))
    ]
    if not calls:
        return {"role": "assistant", "content": DONE}
    return {"role": "assistant", "content": "", "tool_calls": calls}


@workflow.defn
class WholeList:
    """The loop, with the whole list of messages in each model request."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """Go on until the model makes no call."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        while True:
            answer = await workflow.execute_activity(
                request_model, args=[INSTRUCTIONS, messages], start_to_close_timeout=TIMEOUT
            )
            messages.append(answer)
            calls = answer.get("tool_calls", [])
            if not calls:
                return str(answer["content"])
            receipts = await asyncio.gather(
                *(_charge(json.loads(call["function"]["arguments"])) for call in calls)
            )
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(receipt)}
                for call, receipt in zip(calls, receipts, strict=True)
            ]


@asynccontextmanager
async def by_hand(client: Client) -> AsyncIterator[dict[str, Run]]:
    """Serve both while the body runs, by a worker on the SDK's defaults."""
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Lean, WholeList],
        activities=[next_calls, request_model, charge_by_hand],
    )

    async def lean(id: str, prompt: str) -> str:
        return await client.execute_workflow(Lean.run, prompt, id=id, task_queue=QUEUE)

    async def whole_list(id: str, prompt: str) -> str:
        return await client.execute_workflow(WholeList.run, prompt, id=id, task_queue=QUEUE)

    async with worker:
        yield {"lean": lean, "whole_list": whole_list}
