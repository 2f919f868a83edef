"""Which actions nobody brings to an end, or perhaps nobody, for one who looks from outside.

`RelayLedger` gives them an exit. That each action has one is said by ``commitline_exit`` in the
migration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

from ..identity import ActionKey, RunKey
from .pool import connect_once
from .sql import QUERIES


async def keys_without_exit(database_url: str, *, limit: int) -> Sequence[ActionKey] | None:
    """Return actions that nobody brings to an end; None where no ledger can be read.

    It only reads.

    Raises:
        LedgerUnavailable: The database cannot be reached.
        SchemaMismatch: It is not in UTF-8.
    """
    rows = await _rows(database_url, "without_exit", limit)
    return None if rows is None else [ActionKey(row["key"]) for row in rows]


async def calls_left(database_url: str, *, limit: int) -> Sequence[tuple[ActionKey, RunKey]] | None:
    """Return calls of other frameworks' workflows at which nobody is; None: no ledger.

    They are dispatched, and their runs are open. A workflow that goes on makes them again; of one
    that has ended, a relay or a person brings them to an end. It only reads.

    Raises:
        LedgerUnavailable: The database cannot be reached.
        SchemaMismatch: It is not in UTF-8.
    """
    rows = await _rows(database_url, "calls_left", limit)
    return (
        None if rows is None else [(ActionKey(row["key"]), RunKey(row["run_key"])) for row in rows]
    )


async def _rows(database_url: str, query: str, limit: int) -> list[dict[str, Any]] | None:
    async with await connect_once(database_url) as connection:
        try:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(QUERIES[query], {"limit": limit})
            return await cursor.fetchall()
        except psycopg.Error:
            return None
