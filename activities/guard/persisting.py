"""Ledger calls that an activity cannot go on without, however long the ledger is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from ...errors import LedgerUnavailable

T = TypeVar("T")

log = structlog.get_logger("commitline")

UNAVAILABLE_SECONDS: Final = 0.5
"""Between two calls of a ledger that is away."""


async def persist(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a *ledger call* until the ledger answers; never the tool or the model."""
    while True:
        try:
            return await ask()
        except LedgerUnavailable as err:
            log.warning("ledger.unavailable", reason=err.message)
            await asyncio.sleep(UNAVAILABLE_SECONDS)
