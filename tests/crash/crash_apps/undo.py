"""An agent whose run fails after it has done much; what it did is taken back."""

import os
from typing import Any

from commitline import Agent, App, Effect, ScriptedModel, ToolContext, ToolRefused, tool
from commitline.activities.model.scripted_model import call
from commitline.crash import crash_point
from commitline.examples.shop import payments

REFUSED = os.environ.get("REFUSED", "")
"""The order whose refund is declined."""


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
async def refund(ctx: ToolContext, order_id: str, result: dict[str, Any]) -> Any:
    """Refund a charge."""
    if order_id == REFUSED:
        raise ToolRefused("the bank is closed")
    body = {"order_id": order_id, "charge": result["id"]}
    answer = await payments.post("/refunds", body, idempotency_key=ctx.idempotency_key)
    crash_point("after_effect", tool="refund")
    return answer


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", compensate=refund)
async def charge(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Charge an order."""
    return await payments.post(
        "/charges", {"order_id": order_id}, idempotency_key=ctx.idempotency_key
    )


@tool(effect=Effect.AT_MOST_ONCE)
async def send_mail(to: str) -> str:
    """Send a mail, which nothing takes back."""
    return str((await payments.post("/mails", {"to": to}))["id"])


_TURNS = [
    call(("charge", {"order_id": "1"})),
    call(("send_mail", {"to": "ada"})),
    call(("charge", {"order_id": "3"})),
    call(("charge", {"order_id": "4"})),
]

app = App(
    [
        Agent(
            "support",
            model=ScriptedModel("undo", _TURNS),
            instructions="",
            tools=[charge, send_mail],
            max_steps=len(_TURNS),
        )
    ]
)
