"""A plan whose third step is worth killing a worker for, and whose fourth fails for good."""

from typing import Any

from commitline import App, Effect, Tool, ToolContext, ToolRefused, tool
from commitline.crash import crash_point
from commitline.examples.shop import payments


def _undoes(kind: str) -> Tool:
    @tool(effect=Effect.IDEMPOTENT, name=f"undo_{kind}")
    async def undo(ctx: ToolContext, order_id: str, result: dict[str, Any]) -> str:
        body = {"order_id": order_id, "of": result["id"]}
        await payments.post(f"/undo_{kind}s", body, idempotency_key=ctx.idempotency_key)
        crash_point("after_effect", tool=f"undo_{kind}")
        return "undone"

    return undo


def _does(kind: str) -> Tool:
    @tool(effect=Effect.IDEMPOTENT, name=kind, compensate=_undoes(kind))
    async def do(ctx: ToolContext, order_id: str, after: str = "") -> dict[str, Any]:
        body = {"order_id": order_id, "after": after}
        answer = await payments.post(f"/{kind}s", body, idempotency_key=ctx.idempotency_key)
        crash_point("after_effect", tool=kind)
        return answer

    return do


@tool(effect=Effect.AT_MOST_ONCE)
async def ship(order_id: str) -> str:
    """Decline."""
    raise ToolRefused(f"{order_id} has no address")


KINDS = ("reservation", "charge", "invoice")
app = App(tools=[*map(_does, KINDS), ship])
