"""The application of the README: three tools, one agent, one app.

Run it against ``commitline dev``:

    python -m commitline.testing.provider --port 8900
    commitline worker commitline.examples.shop.app:app
    python -m commitline.examples.shop.main
"""

import os
from datetime import timedelta

from pydantic import BaseModel

from commitline import Agent, App, Effect, ModelRequest, ScriptedModel, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.crash import crash_point

from . import payments


class Order(BaseModel):
    """An order of the shop."""

    order_id: str
    total_cents: int
    currency: str


class Charge(BaseModel):
    """A charge, as the provider confirms it."""

    id: str
    order_id: str
    amount_cents: int


@tool(effect=Effect.READ, summary="Look up order {order_id}")
async def lookup_order(order_id: str) -> Order:
    """Look up an order: what it costs and in which currency."""
    return Order.model_validate(await payments.get(f"/orders/{order_id}"))


@tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-charge",
    key_ttl=timedelta(hours=24),
    summary="Charge {amount_cents} cents for order {order_id}",
)
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> Charge:
    """Charge the customer's card for an order."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    charge = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    # Only here so that the demo can kill the worker at the worst moment.
    crash_point("after_effect", tool="charge_card")
    return Charge.model_validate(charge)


@tool(effect=Effect.AT_MOST_ONCE, summary="Mail the receipt for order {order_id} to {to}")
async def send_receipt(order_id: str, to: str) -> str:
    """Send the receipt of an order by mail."""
    mail = await payments.post("/mails", {"order_id": order_id, "to": to})
    crash_point("after_effect", tool="send_receipt")
    return str(mail["id"])


def _answer(request: ModelRequest) -> str:
    """Say what a model would, from what it was told of the three calls."""
    status = {result.name: result.status for result in request.messages[-1].results}
    charged = "is charged" if status["charge_card"] == "ok" else "may not be charged"
    receipt = {
        "ok": "the receipt is on its way",
        "error": "no receipt was sent",
        "unknown": "whether the receipt was sent is not known; a colleague is looking into it",
    }[status["send_receipt"]]
    return f"Order 4821 {charged}, and {receipt}."


SCRIPT = ScriptedModel(
    "scripted",
    [
        call(
            ("lookup_order", {"order_id": "4821"}),
            ("charge_card", {"order_id": "4821", "amount_cents": 4900}),
            ("send_receipt", {"order_id": "4821", "to": "ada@example.com"}),
        ),
        lambda request: say(_answer(request)),
    ],
)

# With a provider's key in the environment, this line alone makes it a real agent:
# MODEL = "openai:gpt-5-mini"
MODEL = os.environ.get("SHOP_MODEL") or SCRIPT

app = App(
    agents=[
        Agent(
            "support",
            model=MODEL,
            instructions="You help the customers of a shop. Charge an order once, then mail it.",
            tools=[lookup_order, charge_card, send_receipt],
        )
    ]
)
