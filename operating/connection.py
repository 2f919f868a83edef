"""How a command reaches the ledger by itself, where it needs no Temporal server."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..config import Settings
from ..ledger import ActionLedger, ledger_pool

T = TypeVar("T")


def leave_out_tries() -> None:
    """Have the pool log nothing of its tries: the command says whether the ledger has answered."""
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


async def with_ledger(work: Callable[[ActionLedger], Awaitable[T]]) -> T:
    """Do something with the ledger that the settings name.

    Raises:
        ConfigurationError: No database is configured.
        LedgerUnavailable: It does not answer.
    """
    settings = Settings.load()
    leave_out_tries()
    async with ledger_pool(settings.require_database(), size=1, prepared_statements=False) as pool:
        return await work(ActionLedger(pool, statement_seconds=settings.statement_seconds))
