"""Agents that are talked to: their models say in a file what they were shown."""

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from commitline import Agent, App, Effect, ScriptedModel, Tool, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.contract.encoding import to_text
from commitline.activities.guard import claims as claim
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.crash import crash_point
from commitline.examples.shop import payments

# A person may settle what an attempt may be at work on only when its lease is over; a test cannot
# wait for that so long.
claim.LEASE_GRACE = timedelta(seconds=1)  # type: ignore[misc]

FOLDER: Final = Path(os.environ["CRASH_FOLDER"])
_HOLD: Final = FOLDER / os.environ.get("HOLD", "hold")


class Model(ScriptedModel):
    """Keeps each request that it was sent, one a line."""

    async def complete(self, request: ModelRequest) -> Completion:
        """See base class."""
        with (FOLDER / "shown").open("a") as file:
            file.write(to_text(request.messages) + "\n")
        return await super().complete(request)


def _app(*answers: Completion, tools: list[Tool]) -> App:
    model = Model("talks", list(answers), count_file=FOLDER / "model_calls")
    return App([Agent("support", model=model, instructions="", tools=tools)])


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    answer = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    crash_point("after_effect", tool="charge_card")
    return answer


@tool(effect=Effect.AT_MOST_ONCE, tool_timeout=5)
def send_mail(to: str, text: str) -> str:
    """Send a mail, and take as long to come back as the test wants: no cancellation reaches it."""
    answer = asyncio.run(payments.post("/mails", {"to": to, "text": text}))
    while _HOLD.exists():
        time.sleep(0.02)
    return str(answer["id"])


@tool(effect=Effect.IDEMPOTENT, tool_timeout=5)
async def ship(ctx: ToolContext, order_id: str) -> str:
    """Ship."""
    answer = await payments.post(
        "/ships", {"order_id": order_id}, idempotency_key=ctx.idempotency_key
    )
    return str(answer["id"])


@tool(effect=Effect.READ)
async def look(order_id: str) -> str:
    """Look at an order for as long as the test wants."""
    (FOLDER / "looking").touch()
    while _HOLD.exists():  # noqa: ASYNC110 - another process takes it away
        await asyncio.sleep(0.02)
    return order_id


_CHARGE: Final = ("charge_card", {"order_id": "4821", "amount_cents": 4900})
_MAIL: Final = ("send_mail", {"to": "ada@example.com", "text": "hi"})
_SHIP: Final = ("ship", {"order_id": "4821"})
_LOOK: Final = ("look", {"order_id": "4821"})

charging = _app(call(_CHARGE), say("charged"), say("more"), tools=[charge_card])

greeting = _app(say("hello"), say("more"), tools=[])
# Three calls of which each ends in another state when the run is gone; then all that has an
# effect once more.
torn = _app(
    call(_CHARGE, _MAIL, _LOOK),
    call(_CHARGE, _MAIL),
    say("went on"),
    say("more"),
    say("even more"),
    tools=[charge_card, send_mail, look],
)

mailing = _app(call(_MAIL), say("went on"), tools=[send_mail])
shipping = _app(call(_SHIP), say("went on"), tools=[ship])
