"""The application of the README: three tools, one agent, one app.

Run it against ``commitline dev``:

    python -m commitline.testing.provider --port 8900
    commitline worker commitline.examples.shop.app:app
    python -m commitline.examples.shop.main
"""

import os
from datetime import timedelta

from commitline import Agent, App, Effect, ToolContext, tool
from commitline.crash import crash_point
from commitline.examples.shop import payments
from commitline.examples.shop.script import SCRIPT


@tool(effect=Effect.READ, summary="Look up order {order_id}")
async def lookup_order(order_id: str) -> payments.Order:
    """Look up an order: what it costs and in which currency."""
    return payments.Order.model_validate(await payments.get(f"/orders/{order_id}"))


@tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-charge",
    key_ttl=timedelta(hours=24),
    summary="Charge {amount_cents} cents for order {order_id}",
)
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> payments.Charge:
    """Charge the customer's card for an order."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    charge = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    # Only here so that the demo can kill the worker at the worst moment.
    crash_point("after_effect", tool="charge_card")
    return payments.Charge.model_validate(charge)


@tool(effect=Effect.AT_MOST_ONCE, summary="Mail the receipt for order {order_id} to {to}")
async def send_receipt(order_id: str, to: str) -> str:
    """Send the receipt of an order by mail."""
    mail = await payments.post("/mails", {"order_id": order_id, "to": to})
    crash_point("after_effect", tool="send_receipt")
    return str(mail["id"])


app = App(
    agents=[
        Agent(
            "support",
            # A model's name, such as "openai:gpt-5-mini"; the script needs no provider's key.
            model=os.environ.get("SHOP_MODEL") or SCRIPT,
            instructions="You help the customers of a shop. Charge an order once, then mail it.",
            tools=[lookup_order, charge_card, send_receipt],
        )
    ]
)
