"""One tool before and after a deploy that adds a parameter, and one with a made-up default."""

from typing import Any
from uuid import uuid4

from pydantic import Field

from commitline import Agent, App, Effect, ScriptedModel, Tool, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.crash import crash_point
from commitline.examples.shop import payments


def _app(charge: Tool) -> App:
    script = ScriptedModel(
        "scripted",
        [call(("charge_card", {"order_id": "4821", "amount_cents": 4900})), say("charged")],
    )
    return App([Agent("support", model=script, instructions="", tools=[charge])])


@tool(effect=Effect.IDEMPOTENT, name="charge_card", idempotency_key="order-{order_id}-charge")
async def _charge(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    body = {"order_id": order_id, "amount_cents": amount_cents}
    answer = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    crash_point("after_effect", tool="charge_card")
    return answer


@tool(effect=Effect.IDEMPOTENT, name="charge_card", idempotency_key="order-{order_id}-charge")
async def _charge_in_a_currency(
    ctx: ToolContext, order_id: str, amount_cents: int, currency: str = "usd"
) -> dict[str, Any]:
    body = {"order_id": order_id, "amount_cents": amount_cents}
    if currency != "usd":
        body["currency"] = currency
    return await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)


@tool(effect=Effect.IDEMPOTENT, name="charge_card", idempotency_key="order-{order_id}-charge")
async def _charge_and_say_the_currency(
    ctx: ToolContext, order_id: str, amount_cents: int, currency: str = "usd"
) -> dict[str, Any]:
    body = {"order_id": order_id, "amount_cents": amount_cents, "currency": currency}
    return await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)


@tool(effect=Effect.IDEMPOTENT, name="charge_card", idempotency_key="order-{order_id}-charge")
async def _charge_with_a_reference(
    ctx: ToolContext,
    order_id: str,
    amount_cents: int,
    reference: str = Field(default_factory=lambda: str(uuid4())),
) -> dict[str, Any]:
    body = {"order_id": order_id, "amount_cents": amount_cents, "reference": reference}
    answer = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    crash_point("after_effect", tool="charge_card")
    return answer


before = _app(_charge)
after = _app(_charge_in_a_currency)
after_sending_more = _app(_charge_and_say_the_currency)
made_up_default = _app(_charge_with_a_reference)
