"""What the shops have in common: what their tools do outside, and what their model answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

from ....activities.app.tool_context import current
from ....crash import crash_point
from ....errors import NoCurrentCall
from ....examples.shop import payments

WORKFLOW: Final = "ShopAgent"
ATTEMPT: Final = timedelta(seconds=5)
"""Start-to-close time-out, by which plain Temporal notices a dead worker."""
INSTRUCTIONS: Final = "You help the customers of a shop. Charge an order once, then mail it."
CALLS: Final[Sequence[tuple[str, dict[str, Any]]]] = (
    ("charge_card", {"order_id": "4821", "amount_cents": 4900}),
    ("send_receipt", {"order_id": "4821", "to": "ada@example.com"}),
)
"""What the scripted models call, one after the other."""


@dataclass(frozen=True)
class Shop:
    """One framework's agent, as a worker needs it."""

    workflow: type
    plugins: Sequence[Any]
    """Of the client, in front of `LedgerPlugin`."""
    activities: Sequence[Callable[..., Any]] = ()
    worker_plugins: Sequence[Any] = ()


async def charge(order_id: str, amount_cents: int) -> str:
    """Charge an order; return the charge's id."""
    body = {"order_id": order_id, "amount_cents": amount_cents}
    made = await payments.post("/charges", body, idempotency_key=_key())
    crash_point("after_effect", tool="charge_card")
    return str(made["id"])


async def mail(order_id: str, to: str) -> str:
    """Mail a receipt; return the mail's id. The provider takes no key for that."""
    sent = await payments.post("/mails", {"order_id": order_id, "to": to})
    crash_point("after_effect", tool="send_receipt")
    return str(sent["id"])


def _key() -> str:
    """Return the call's key. Without the ledger nobody keeps one, and each attempt makes one up."""
    with suppress(NoCurrentCall):
        return current().idempotency_key
    return str(uuid4())


def last_text(results: Sequence[str]) -> str:
    """Return what the model says at the end: what it has read of each call."""
    names = [name for name, _ in CALLS]
    return json.dumps(dict(zip(names, map(_read, results), strict=True)))


def _read(result: str) -> str:
    """Return what the result of a tool says: ``unknown``, or what a model takes for ``ok``."""
    with suppress(ValueError):
        said = json.loads(result)
        if isinstance(said, dict) and "status" in said:
            return str(said["status"])
    return "ok"
