"""The schema that the connections of a running process find."""

from __future__ import annotations

from .migration import fitting_version
from .statements import LedgerCalls


class LedgerSchema(LedgerCalls):
    """Looks at the schema over an open pool, as `check_schema` does before there is one."""

    async def check(self) -> int:
        """Return the database's schema version, if this code can work with it. It only reads.

        Raises:
            SchemaMismatch: It is older than this code's, or was made by other migrations.
            StatementRefused: The role may not read which one it has.
            LedgerUnavailable: Postgres does not answer in time.
        """
        rows = await self._fetch_rows("applied_migrations")
        return fitting_version({row["version"]: row["name"] for row in rows})
