"""The app of a bad night: an agent for each thing that goes wrong."""

from datetime import timedelta
from typing import Any

from pydantic_ai.models.openai import OpenAIChatModel

from commitline import Agent, App, Effect, PydanticAIModel, ScriptedModel, ToolContext, tool
from commitline.activities.model.scripted_model import call, say
from commitline.crash import crash_point
from commitline.examples.shop import payments


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-refund")
async def refund(ctx: ToolContext, order_id: str, result: dict[str, Any]) -> Any:
    """Refund a charge."""
    body = {"order_id": order_id, "charge": result["id"]}
    return await payments.post("/refunds", body, idempotency_key=ctx.idempotency_key)


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge", compensate=refund)
async def charge(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Charge an order."""
    body = {"order_id": order_id}
    answer = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    crash_point("after_effect", tool="charge")
    return answer


@tool(effect=Effect.AT_MOST_ONCE)
async def send_mail(to: str) -> str:
    """Send a mail; the provider does not know it again."""
    return str((await payments.post("/mails", {"to": to}))["id"])


@tool(effect=Effect.IDEMPOTENT, approval=True, approval_expires=timedelta(seconds=25))
async def pay(ctx: ToolContext, order_id: str) -> dict[str, Any]:
    """Pay a supplier; a person approves it."""
    body = {"order_id": order_id}
    return await payments.post("/payouts", body, idempotency_key=ctx.idempotency_key)


@tool(effect=Effect.READ)
async def look_up(order_id: str) -> dict[str, Any]:
    """Look an order up."""
    return await payments.get(f"/orders/{order_id}")


def _agent(name: str, *turns: Any, max_steps: int = 10) -> Agent:
    tools = [charge, send_mail, pay]
    model = ScriptedModel(name, list(turns))
    return Agent(name, model=model, instructions="", tools=tools, max_steps=max_steps)


app = App(
    [
        _agent("charges", call(("charge", {"order_id": "1"})), say("Charged.")),
        _agent("mails", call(("send_mail", {"to": "ada"})), say("Mailed.")),
        _agent("pays", call(("pay", {"order_id": "4"})), say("Paid.")),
        _agent("fails", call(("charge", {"order_id": "5"})), max_steps=1),
        Agent(
            "answers",
            # The object, and not the name: what it needs is imported before the first request.
            model=PydanticAIModel(OpenAIChatModel("scripted")),
            instructions="",
            tools=[look_up],
            model_tries=2,
        ),
    ]
)
