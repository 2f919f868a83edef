"""An agent whose tool asks a person, and then charges."""

from typing import Any

from commitline import Agent, App, Effect, ScriptedModel, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.examples.shop import payments


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge_card(ctx: ToolContext, order_id: str) -> Any:
    """Charge what a person says."""
    cents = await ctx.interrupt({"order_id": order_id}, message="How much?")
    body = {"order_id": order_id, "amount_cents": cents}
    return await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)


model = ScriptedModel("asks", [call(("charge_card", {"order_id": "4821"})), say("Done.")])
app = App([Agent("support", model=model, instructions="", tools=[charge_card])])
