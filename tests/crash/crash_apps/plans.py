"""Agents whose model plans something worth killing a worker for."""

import os
from pathlib import Path
from typing import Any

from commitline import Agent, App, Effect, ScriptedModel, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.crash import crash_point
from commitline.examples.shop import payments

FOLDER = Path(os.environ["CRASH_FOLDER"])
COUNT_FILE = FOLDER / "model_calls"


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order, once ever."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    answer = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    crash_point("after_effect", tool="charge")
    return answer


@tool(effect=Effect.IDEMPOTENT)
async def charge_customer(ctx: ToolContext, cents: int, order: str) -> dict[str, Any]:
    """Charge an order too, under another name and another key: a second charge if both run."""
    body = {"order_id": order, "amount_cents": cents}
    return await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)


def _another_plan_if_asked_again(_: ModelRequest) -> Completion:
    if len(COUNT_FILE.read_text().splitlines()) == 1:
        return call(("charge", {"order_id": "4821", "amount_cents": 4900}))
    return call(("charge_customer", {"cents": 4900, "order": "4821"}))


fickle = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "fickle", [_another_plan_if_asked_again, say("charged")], count_file=COUNT_FILE
            ),
            instructions="",
            tools=[charge, charge_customer],
        )
    ]
)


@tool(effect=Effect.IDEMPOTENT)
async def works(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Have an effect and say so."""
    return await payments.post(
        "/charges", {"order_id": order_id}, idempotency_key=ctx.idempotency_key
    )


@tool(effect=Effect.IDEMPOTENT)
async def raises(ctx: ToolContext, order_id: str) -> None:
    """Have an effect and raise an exception that says nothing."""
    await payments.post("/charges", {"order_id": order_id}, idempotency_key=ctx.idempotency_key)
    raise Exception


@tool(effect=Effect.IDEMPOTENT)
async def finds_nothing(ctx: ToolContext, order_id: str) -> list[str]:
    """Have an effect and return an empty list."""
    await payments.post("/charges", {"order_id": order_id}, idempotency_key=ctx.idempotency_key)
    return []


mixed = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "mixed",
                [
                    call(
                        ("works", {"order_id": "A"}),
                        ("raises", {"order_id": "B"}),
                        ("finds_nothing", {"order_id": "C"}),
                        ("charge", {"order_id": "4821", "amount_cents": 4900}),
                        ("refnd", {"order_id": "E"}),
                        text="I will do five things.",
                        ids=["a", "b", "c", "d", "e"],
                    ),
                    say("done"),
                ],
            ),
            instructions="",
            tools=[works, raises, finds_nothing, charge],
        )
    ]
)


@tool(effect=Effect.IDEMPOTENT)
async def ship(ctx: ToolContext, order_id: str, items: list[str]) -> str:
    """Ship a parcel, and spoil its own arguments."""
    body = {"order_id": order_id, "items": items}
    answer = await payments.post("/parcels", body, idempotency_key=ctx.idempotency_key)
    items.clear()
    return str(answer["id"])


spoiling = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "spoiling",
                [call(("ship", {"order_id": "4821", "items": ["tea", "cup"]})), say("shipped")],
            ),
            instructions="",
            tools=[ship],
        )
    ]
)
