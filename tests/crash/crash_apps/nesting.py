"""An agent whose two calls of one message are two runs of another agent, of two steps each."""

import asyncio
import json
import os
from typing import Any, Final

from commitline import Agent, App, Effect, ScriptedModel, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.crash import crash_point
from commitline.examples.shop import payments

_SLOW: Final = os.environ.get("SLOW_ORDER")
"""Whose calls take longer, so that the other one's are done first."""


async def _send(what: str, ctx: ToolContext, order_id: str) -> str:
    if order_id == _SLOW:
        await asyncio.sleep(0.4)
    answer: dict[str, Any] = await payments.post(
        f"/{what}s", {"order_id": order_id}, idempotency_key=ctx.idempotency_key
    )
    crash_point("after_effect", tool=what)
    return f"{what} {order_id} {answer['id']}"


@tool(effect=Effect.IDEMPOTENT)
async def charge(ctx: ToolContext, order_id: str) -> str:
    """Charge."""
    return await _send("charge", ctx, order_id)


@tool(effect=Effect.IDEMPOTENT)
async def ship(ctx: ToolContext, order_id: str) -> str:
    """Ship."""
    return await _send("ship", ctx, order_id)


def _next_step(request: ModelRequest) -> Completion:
    order_id = request.messages[0].text.split()[-1]
    told = [json.loads(r.content) for message in request.messages for r in message.results]
    if len(told) < 2:
        return call((("charge", "ship")[len(told)], {"order_id": order_id}))
    return say(f"{order_id}: " + ", ".join(told))


clerk: Final = Agent("clerk", ScriptedModel("clerk's", [_next_step] * 3), "", [charge, ship])
orders: Final = call(("clerk", {"prompt": "Order 1"}), ("clerk", {"prompt": "Order 2"}))
app: Final = App(
    [
        Agent(
            "support",
            ScriptedModel("support's", [orders, say("both are done")]),
            "",
            [clerk.as_tool(description="Sees to an order.")],
        )
    ]
)
