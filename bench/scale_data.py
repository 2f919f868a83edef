"""Fills a ledger with a million actions of 400,000 runs: `scale_data.sql`, step by step."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final, LiteralString, cast

import psycopg
from rich.console import Console

RUNS: Final = 400_000
_CHUNK: Final = 50_000
"""Runs of one step, so that something is printed every few seconds."""
_AT_ONCE: Final = {"made", "threads"}
_STEP: Final = re.compile(r"^-- ([a-z]+): (.*)$", re.MULTILINE)


def fill(database_url: str, *, runs: int, progress: Console) -> dict[str, int]:
    """Write the rows and gather statistics; return how many rows each table has."""
    # Bound by the client: so a step may be several statements.
    with psycopg.connect(
        database_url, autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as connection:
        # Foreign keys hold by construction: to check each row would take as long as to write it.
        connection.execute("set session_replication_role = replica")
        connection.execute("set synchronous_commit = off")
        connection.execute("alter system set max_wal_size = '8GB'")
        connection.execute("select pg_reload_conf()")
        for name, told, statements in _steps():
            chunk = runs if name in _AT_ONCE else _CHUNK
            for first in range(1, runs + 1, chunk):
                last = min(first + chunk - 1, runs)
                began = time.perf_counter()
                connection.execute(statements, {"first": first, "last": last})
                seconds = time.perf_counter() - began
                progress.print(f"  {told}, up to run {last} of {runs} ({seconds:.1f} s)")
        progress.print("  Statistics")
        connection.execute("vacuum (analyze)")
        counted: dict[str, int] = {}
        for (table,) in connection.execute(
            "select relname::text from pg_class where relkind = 'r' and relname like 'agent\\_%'"
        ).fetchall():
            counted[table] = _one(connection, f"select count(*) from {table}")
        return counted


def _steps() -> list[tuple[str, str, LiteralString]]:
    text = (Path(__file__).parent / "scale_data.sql").read_text(encoding="utf-8")
    starts = list(_STEP.finditer(text))
    ends = [*(found.start() for found in starts[1:]), len(text)]
    return [
        (found[1], found[2].capitalize(), _trusted(text[found.end() : end]))
        for found, end in zip(starts, ends, strict=True)
    ]


def _trusted(text: Any) -> LiteralString:
    """Vouch for our own SQL: as trusted as a literal."""
    return cast("LiteralString", text)


def _one(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(_trusted(query)).fetchone()
    assert row is not None
    return int(row[0])
