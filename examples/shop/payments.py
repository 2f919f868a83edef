"""The shop's provider, over HTTP. The address comes from ``SHOP_PROVIDER_URL``."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from typing import Any

from pydantic import BaseModel

from commitline import StillInProgress, ToolRefused

DECLINED = (402, 422)  # a payment; anything else
UNDER_WAY = 409


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


async def get(path: str) -> dict[str, Any]:
    """Ask the provider."""
    return await asyncio.to_thread(_request, path, None, None)


async def post(
    path: str, body: dict[str, Any], *, idempotency_key: str | None = None
) -> dict[str, Any]:
    """Have the provider do something; with a key it does it once per key."""
    return await asyncio.to_thread(_request, path, body, idempotency_key)


def _request(path: str, body: dict[str, Any] | None, key: str | None) -> dict[str, Any]:
    url = os.environ.get("SHOP_PROVIDER_URL", "http://127.0.0.1:8900") + path
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None)  # noqa: S310
    if key is not None:
        request.add_header("Idempotency-Key", key)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return dict(json.load(answer))
    except urllib.error.HTTPError as err:
        if err.code in DECLINED:
            # Declined means that nothing happened: say so, and the key is free again.
            raise ToolRefused(err.read().decode()) from err
        if err.code == UNDER_WAY:
            # A request with this key has not ended: its answer is worth waiting for.
            raise StillInProgress(err.read().decode()) from err
        raise
