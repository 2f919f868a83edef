"""The ledger's SQL, as files: numbered migrations, and named queries by subject."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final, LiteralString, NamedTuple, cast

_NAME = re.compile(r"^-- ([a-z_]+): ", re.MULTILINE)
_MIGRATION = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    """Of its file."""
    sql: LiteralString


def migrations() -> Sequence[Migration]:
    """Return every migration, in order."""
    return sorted(
        Migration(int(match[1]), path.name, _trusted(path.read_text(encoding="utf-8")))
        for path in (files(__name__) / "migrations").iterdir()
        if (match := _MIGRATION.fullmatch(path.name))
    )


def _queries() -> dict[str, LiteralString]:
    found: dict[str, LiteralString] = {}
    for path in files(__name__).iterdir():
        if path.name.endswith(".sql"):
            for name, query in _split(path.read_text(encoding="utf-8")):
                assert name not in found, f"two queries are called {name}"
                # A line of a comment that reads like a name would end the query before it.
                assert any(_is_sql(line) for line in query.splitlines()), f"{name} is a comment"
                found[name] = query
    return found


def _is_sql(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("--")


def _split(text: str) -> Sequence[tuple[str, LiteralString]]:
    starts = list(_NAME.finditer(text))
    ends = [*(match.start() for match in starts[1:]), len(text)]
    return [
        (match[1], _trusted(text[match.start() : end].strip()))
        for match, end in zip(starts, ends, strict=True)
    ]


def _trusted(text: Any) -> LiteralString:
    """Vouch for SQL of this package's own files: as trusted as a literal."""
    return cast("LiteralString", text)


QUERIES: Final = _queries()
"""Each named query, from the file of its subject."""
