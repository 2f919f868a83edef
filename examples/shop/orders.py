"""Orders of the shop: a plan that is undone when it fails, and a refund that a person approves.

    commitline worker commitline.examples.shop.orders:app

`fulfil` makes the plan; the agent ``refunds`` may ask for a refund.
"""

from datetime import timedelta

from pydantic import BaseModel

from commitline import Agent, App, Effect, Plan, ScriptedModel, ToolContext, result_of, step, tool
from commitline.testing import call, say

from . import payments

KEY_TTL = timedelta(hours=24)


class Confirmed(BaseModel):
    """What the provider made: a reservation, a charge, a shipment."""

    id: str


async def _post(ctx: ToolContext, path: str, **body: str | int) -> Confirmed:
    answer = await payments.post(path, body, idempotency_key=ctx.idempotency_key)
    return Confirmed.model_validate(answer)


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-release", key_ttl=KEY_TTL)
async def release_stock(ctx: ToolContext, order_id: str, result: Confirmed) -> Confirmed:
    """Give back what was reserved for an order."""
    return await _post(ctx, "/releases", order_id=order_id, reservation=result.id)


@tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-reservation",
    key_ttl=KEY_TTL,
    compensate=release_stock,
    summary="Reserve order {order_id}",
)
async def reserve_stock(ctx: ToolContext, order_id: str) -> Confirmed:
    """Reserve what was ordered."""
    return await _post(ctx, "/reservations", order_id=order_id)


# A person approves what the agent asks for; what undoes a failed plan is not asked about.
@tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-refund",
    key_ttl=KEY_TTL,
    approval=True,
    summary="Refund {amount_cents} cents for order {order_id}",
)
async def refund_charge(ctx: ToolContext, order_id: str, amount_cents: int) -> Confirmed:
    """Pay back what was charged for an order."""
    return await _post(ctx, "/refunds", order_id=order_id, amount_cents=amount_cents)


@tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-charge",
    key_ttl=KEY_TTL,
    compensate=refund_charge,
    summary="Charge {amount_cents} cents for order {order_id}",
)
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> Confirmed:
    """Charge the customer's card for an order."""
    return await _post(ctx, "/charges", order_id=order_id, amount_cents=amount_cents)


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-cancellation", key_ttl=KEY_TTL)
async def cancel_shipment(ctx: ToolContext, order_id: str, result: Confirmed) -> Confirmed:
    """Cancel the shipment of an order."""
    return await _post(ctx, "/cancellations", order_id=order_id, shipment=result.id)


@tool(
    effect=Effect.IDEMPOTENT,
    idempotency_key="order-{order_id}-shipment",
    key_ttl=KEY_TTL,
    compensate=cancel_shipment,
    summary="Book the shipment of order {order_id}",
)
async def book_shipment(ctx: ToolContext, order_id: str, reservation: str) -> Confirmed:
    """Book a carrier for what was reserved."""
    return await _post(ctx, "/shipments", order_id=order_id, reservation=reservation)


@tool(effect=Effect.AT_MOST_ONCE, summary="Hand order {order_id} to the carrier")
async def hand_over(order_id: str, shipment: str) -> str:
    """Hand the parcel to the carrier, who may refuse it; nothing undoes that."""
    body = {"order_id": order_id, "shipment": shipment}
    return str((await payments.post("/handovers", body))["id"])


def fulfil(order_id: str, amount_cents: int) -> Plan:
    """Return the plan by which an order is fulfilled, or leaves nothing behind."""
    order = {"order_id": order_id}
    return Plan(
        "fulfil-order",
        [
            step(reserve_stock, order),
            step(charge_card, {**order, "amount_cents": amount_cents}),
            step(book_shipment, {**order, "reservation": result_of("reserve_stock", "id")}),
            step(hand_over, {**order, "shipment": result_of("book_shipment", "id")}),
        ],
    )


SCRIPT = ScriptedModel(
    "scripted",
    [
        call(("refund_charge", {"order_id": "4821", "amount_cents": 4900})),
        lambda request: say(f"The refund: {request.messages[-1].results[0].status}."),
    ],
)

app = App(
    agents=[
        Agent(
            "refunds",
            model=SCRIPT,
            instructions="You refund the customers of a shop, once per order.",
            tools=[refund_charge],
        )
    ],
    tools=[reserve_stock, charge_card, book_shipment, hand_over],
)
