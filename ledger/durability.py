"""What of a Postgres server may lose, in a crash or a failover, what it has committed.

That a commit is waited for, whatever a role or a database says, the schema sees to itself. What
only the server's own configuration decides can merely be named.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg.rows import dict_row

from .pool import connect_once
from .sql import QUERIES
from .statements import Row


async def commits_at_risk(database_url: str) -> Sequence[str]:
    """Return what may lose a commit, in words; empty where nothing is known. It only reads.

    Raises:
        LedgerUnavailable: The database cannot be reached.
        SchemaMismatch: It is not in UTF-8.
    """
    async with await connect_once(database_url) as connection:
        try:
            cursor = connection.cursor(row_factory=dict_row)
            await cursor.execute(QUERIES["commits_at_risk"])
            found = await cursor.fetchone()
        except psycopg.Error as err:
            return [f"it cannot be read: {err}"]
    assert found is not None, "it is one row"
    return _in_words(found)


def _in_words(found: Row) -> Sequence[str]:
    risks = []
    if found["fsync"] == "off":
        risks.append("fsync is off: a crash of the machine may lose commits, or all of it")
    if found["full_page_writes"] == "off":
        risks.append("full_page_writes is off: a crash of the machine may damage it")
    if standbys := ", ".join(found["asynchronous"]):
        risks.append(f"asynchronous standbys ({standbys}): a failover to one loses commits")
    return risks
