"""What the ledger's role may not do that the ledger does, table by table and function by function.

A grant that is missing on one table shows only when a run gets there. So it is named before: the
named queries say themselves what they do to which table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from psycopg.rows import dict_row

from .pool import connect_once
from .sql import QUERIES

_WRITES: Final = re.compile(r"\b(insert into|update|delete from) (agent_[a-z_]+)")


async def missing_grants(database_url: str) -> Sequence[str]:
    """Return what the role may not do, as ``insert, update on agent_runs``. It only reads.

    Whether it comes to the schema at all, `check_schema` says.

    Raises:
        LedgerUnavailable: The database cannot be reached.
        SchemaMismatch: It is not in UTF-8.
    """
    needed = sorted(_needed())
    given = {
        "tables": [table for table, _ in needed],
        "commands": [command for _, command in needed],
    }
    async with await connect_once(database_url) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(QUERIES["missing_grants"], given)
        return [f"{row['commands']} on {row['name']}" for row in await cursor.fetchall()]


def _needed() -> set[tuple[str, str]]:
    """Return each table with each command that a query needs there."""
    written = {
        (table, command.partition(" ")[0])
        for query in QUERIES.values()
        for command, table in _WRITES.findall(query)
    }
    read = {(table, "select") for table, _ in written}
    return {*written, *read, ("agent_schema_migrations", "select")}
