"""The ledger's SQL: numbered migrations and named queries, as files."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final, LiteralString, cast

_NAME = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)
_MIGRATION = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


def _load_queries() -> dict[str, LiteralString]:
    text = (files(__package__) / "queries.sql").read_text(encoding="utf-8")
    starts = list(_NAME.finditer(text))
    ends = [*(match.start() for match in starts[1:]), len(text)]
    # The text is the package's own, so it is as trusted as a literal.
    return {
        match[1]: cast("LiteralString", text[match.start() : end].strip())
        for match, end in zip(starts, ends, strict=True)
    }


def migrations() -> list[tuple[int, str, LiteralString]]:
    """Return (number, file name, SQL) of every migration, in order."""
    found = [
        (int(match[1]), path.name, cast("LiteralString", path.read_text(encoding="utf-8")))
        for path in (files(__package__) / "migrations").iterdir()
        if (match := _MIGRATION.fullmatch(path.name))
    ]
    return sorted(found)


QUERIES: Final = _load_queries()
"""Each named query of ``queries.sql``."""
