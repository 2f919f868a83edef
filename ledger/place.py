"""Which schema of a database the ledger lies in, and whether its names lead there.

The ledger's names are not qualified: the ``search_path`` of a role or of a database says which
schema they mean, and may change after the tables were made. So a migration goes where the ledger
is, and a worker starts only where each table's name means the ledger's own. Otherwise a second,
empty ledger would begin beside the first, and what was paid would be paid again.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.rows import dict_row

from ..errors import SchemaMismatch
from .sql import QUERIES

_HOW_TO_LEAD_THERE: Final = (
    "Set the role's search_path so that this schema comes first (`alter role … set search_path = "
    "…`); for a second ledger take another database."
)
HOW_TO_HAVE_A_SCHEMA: Final = (
    "Make the ledger a schema of its own (`create schema ledger`), and have the search_path of the "
    "roles begin with it (`alter role … set search_path = ledger, public`)."
)


async def ledger_schema(connection: AsyncConnection[Any]) -> str | None:
    """Return the schema in which the ledger lies; None where the database has no ledger.

    Raises:
        SchemaMismatch: The role does not come to it, or its search_path leads to other tables.
    """
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(QUERIES["ledger_schemas"])
    found = await cursor.fetchone()
    if found is None:
        return None
    schema, path = found["name"], found["search_path"]
    if not found["usable"]:
        raise SchemaMismatch(
            f"the ledger lies in the schema {schema}, and the role {found['role']} has no right "
            f"to usage on it; nothing was changed",
            remedy=f"Have its owner grant it: `grant usage on schema {schema} to {found['role']}`.",
        )
    if not found["visible"]:
        raise SchemaMismatch(
            f"the ledger lies in the schema {schema}, to which the search_path ({path}) of the "
            f"role {found['role']} does not lead; nothing was changed",
            remedy=_HOW_TO_LEAD_THERE,
        )
    await cursor.execute(QUERIES["shadowed_tables"], {"schema": schema})
    if shadowed := await cursor.fetchone():
        raise SchemaMismatch(
            f"the ledger lies in the schema {schema}, but the search_path ({path}) leads to the "
            f"{shadowed['name']} of the schema {shadowed['by']} first; nothing was changed",
            remedy=_HOW_TO_LEAD_THERE,
        )
    return str(schema)
