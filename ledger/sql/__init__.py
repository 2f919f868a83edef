"""The ledger's SQL: numbered migrations and named queries, as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, LiteralString, cast

_NAME = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)
_MIGRATION = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


def _load_queries(file: str) -> dict[str, LiteralString]:
    text = (files(__name__) / file).read_text(encoding="utf-8")
    starts = list(_NAME.finditer(text))
    ends = [*(match.start() for match in starts[1:]), len(text)]
    return {
        match[1]: _trusted(text[match.start() : end].strip())
        for match, end in zip(starts, ends, strict=True)
    }


def migrations() -> Sequence[tuple[int, str, LiteralString]]:
    """Return (number, file name, SQL) of every migration, in order."""
    found: list[tuple[int, str, LiteralString]] = [
        (int(match[1]), path.name, _trusted(path.read_text(encoding="utf-8")))
        for path in (files(__name__) / "migrations").iterdir()
        if (match := _MIGRATION.fullmatch(path.name))
    ]
    return sorted(found)


def _trusted(text: Any) -> LiteralString:
    """Vouch for SQL of this package's own files: as trusted as a literal."""
    return cast("LiteralString", text)


QUERIES: Final[dict[str, LiteralString]] = {
    **_load_queries("queries.sql"),
    **_load_queries("threads.sql"),
    **_load_queries("approvals.sql"),
    **_load_queries("undo.sql"),
    **_load_queries("relay.sql"),
    **_load_queries("sub_runs.sql"),
    **_load_queries("questions.sql"),
    **_load_queries("outbox.sql"),
}
"""Each named query: ``queries.sql`` (runs and actions), and a file for each other part."""
