"""Which actions nobody brings to an end, for one who looks at the database from outside.

`RelayLedger` gives them an exit. That each action has one is said by ``commitline_exit`` in the
migration.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg.rows import dict_row

from ..identity import ActionKey
from .pool import connect_once
from .sql import QUERIES


async def keys_without_exit(database_url: str, *, limit: int) -> Sequence[ActionKey] | None:
    """Return actions that nobody brings to an end; None where no ledger can be read.

    It only reads.

    Raises:
        LedgerUnavailable: The database cannot be reached.
        SchemaMismatch: It is not in UTF-8.
    """
    async with await connect_once(database_url) as connection:
        try:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(QUERIES["without_exit"], {"limit": limit})
            return [ActionKey(row["key"]) for row in await cursor.fetchall()]
        except psycopg.Error:
            return None
