"""Agents whose tools take their time: as long as the file ``hold`` is there."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from commitline import Agent, App, Effect, ScriptedModel, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.activities.model.scripted_model import call, say
from commitline.crash import crash_point
from commitline.errors import ModelUnavailable
from commitline.examples.shop import payments

FOLDER = Path(os.environ["CRASH_FOLDER"])
HOLD = FOLDER / "hold"
COUNT_FILE = FOLDER / "model_calls"


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge, and take as long to come back as the test wants."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    answer = await payments.post("/charges", body, idempotency_key=ctx.idempotency_key)
    while HOLD.exists():  # noqa: ASYNC110 - another process takes it away
        await asyncio.sleep(0.02)
    crash_point("after_effect", tool="charge_card")
    return answer


@tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
def charge_in_a_thread(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    """Do the same without asyncio, where no cancellation reaches."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    answer = asyncio.run(payments.post("/charges", body, idempotency_key=ctx.idempotency_key))
    while HOLD.exists():
        time.sleep(0.02)
    return answer


@tool(effect=Effect.AT_MOST_ONCE)
async def send_mail(to: str, text: str) -> str:
    """Send a mail; the provider does not know it again."""
    return str((await payments.post("/mails", {"to": to, "text": text}))["id"])


_CHARGE = ("charge_card", {"order_id": "4821", "amount_cents": 4900})
_MAIL = ("send_mail", {"to": "ada@example.com", "text": "hi"})

till = App(
    [
        Agent(
            "support",
            model=ScriptedModel("till", [call(_CHARGE), say("charged")], count_file=COUNT_FILE),
            instructions="",
            tools=[charge_card],
        )
    ]
)


threads = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "threads",
                [
                    call(("charge_in_a_thread", {"order_id": "4821", "amount_cents": 4900})),
                    say("charged"),
                ],
            ),
            instructions="",
            tools=[charge_in_a_thread],
        )
    ]
)


@tool(effect=Effect.AT_MOST_ONCE)
async def charge_and_say_sorry(order_id: str, amount_cents: int) -> str:
    """Charge, and return something else when the call is cancelled."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    await payments.post("/charges", body, idempotency_key=f"order-{order_id}-charge")
    try:
        while HOLD.exists():  # noqa: ASYNC110 - another process takes it away
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return "I was cancelled, sorry"
    return "charged"


sorry = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "sorry",
                [
                    call(("charge_and_say_sorry", {"order_id": "4821", "amount_cents": 4900})),
                    say("who knows"),
                ],
            ),
            instructions="",
            tools=[charge_and_say_sorry],
        )
    ]
)


def _out_of_service_once(_: ModelRequest) -> Completion:
    if COUNT_FILE.read_text().split().count("1") == 1:
        raise ModelUnavailable("overloaded")
    return say("charged")


outage = App(
    [
        Agent(
            "support",
            model=ScriptedModel(
                "outage", [call(_CHARGE), _out_of_service_once], count_file=COUNT_FILE
            ),
            instructions="",
            tools=[charge_card],
            model_tries=1,
        )
    ]
)

twins = App(
    [
        Agent(
            "support",
            model=ScriptedModel("twins", [call(_CHARGE, _CHARGE, _MAIL, _MAIL), say("done")]),
            instructions="",
            tools=[charge_card, send_mail],
        )
    ]
)


@tool(effect=Effect.IDEMPOTENT)
def work_for_a_second() -> str:
    """Block a thread, as a client library without asyncio does."""
    time.sleep(1)
    return "worked"


class SlowModel(ScriptedModel):
    """Thinks for half a second."""

    async def complete(self, request: ModelRequest) -> Completion:
        """See base class."""
        await asyncio.sleep(0.5)
        return await super().complete(request)


crowd = App(
    [
        Agent(
            "support",
            model=SlowModel("slow", [call(("work_for_a_second", {})), say("worked")]),
            instructions="",
            tools=[work_for_a_second],
        )
    ]
)
