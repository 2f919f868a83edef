"""What each query of the ledger costs when it holds a million actions of 400,000 runs.

It fills a Postgres of its own (`scale_data`), calls the ledger's methods as workers, relay and
operators do (`scale_calls`), and tells of each named query that they send: the median time that
Postgres took; whether it went by an index; how many rows it read, and how many it gave or wrote.
Postgres does not wait for the disk here: what a commit costs is in ledger.py.

    python bench/scale.py [--actions 1000000] [--json]

Exits 1 if a query is over its limit, or scans a table that is not small. What looks through the
whole queue (`CHECKS`) may scan.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from commitline.bench.scale_calls import LISTS, LOOKS, STORIES, Ledger
from commitline.bench.scale_data import RUNS, fill
from commitline.bench.scale_meter import Meter
from commitline.bench.scale_rare import RARE
from commitline.devstack.postgres import Postgres, remove_data
from commitline.ledger import ActionLedger, migrate
from commitline.ledger.pool import Pool
from commitline.process import leave

ACTIONS: Final = 1_000_000
PATH_MS: Final = 2.0
"""At most, for a query that a run, or the relay, waits for."""
LIST_MS: Final = 50.0
"""At most, for a list that a person waits for."""
CHECK_MS: Final = 1000.0
"""At most, for what looks at the whole queue: `commitline doctor` does."""
CHECKS: Final = {"without_exit"}
TIMES: Final = 30
EXPLAINED: Final = 12
"""Postgres prepares a statement after five times, and may plan it for any values after ten."""
DATABASE: Final = "bench"


async def measure(database_url: str, rows: dict[str, int], progress: Console) -> dict[str, Any]:
    """Call the ledger's methods; return what was seen of each query, as JSON data."""
    meter = Meter(rows)
    lists: set[str] = set()
    for explain, times in ((True, EXPLAINED), (False, TIMES)):
        async with meter.pool(database_url, explain=explain) as pool:
            on = await _ledger(pool)
            told = "Reading the plans" if explain else "Timing"
            for story in STORIES + RARE:
                progress.print(f"  {told}: {story.__name__.replace('_', ' ')}, {times} times")
                for number in range(times):
                    await story(on, number)
            progress.print(f"  {told}: looks and lists, {times} times")
            for case, call in LOOKS + LISTS:
                known, meter.case = set(meter.queries), case
                for _ in range(times):
                    await call(on)
                meter.case = ""
                if (case, call) in LISTS:
                    lists |= set(meter.queries) - known
    return {
        name: found.data(CHECK_MS if name in CHECKS else LIST_MS if name in lists else PATH_MS)
        for name, found in sorted(meter.queries.items())
    }


async def _ledger(pool: Pool) -> Ledger:
    async with pool.connection() as connection:
        found = await connection.execute(
            "select domain_key, effective_digest from agent_actions "
            "where tool = 'charge' and outcome = 'ok' and undone_by is null "
            "and domain_key is not null limit 1"  # not one that a story before has written without
        )
        row = await found.fetchone()
    assert row is not None
    return Ledger(ActionLedger(pool), pool, uuid4().hex[:8], row)


def is_over(found: dict[str, Any]) -> bool:
    """Whether a query breaks its limit."""
    scans = found["plan"] != "index" and found["limit_ms"] < CHECK_MS
    return bool(scans or found["median_ms"] > found["limit_ms"])


def table_of(queries: dict[str, Any], actions: int) -> Table:
    """Return the result for people, what is over its limit first."""
    table = Table(title=f"Queries over {actions:,} actions", pad_edge=False)
    table.add_column("query", overflow="fold")
    for heading in ("median ms", "limit"):
        table.add_column(heading, justify="right")
    table.add_column("plan", overflow="fold")
    for heading in ("read", "rows"):
        table.add_column(heading, justify="right")
    for name, found in sorted(
        queries.items(), key=lambda one: (not is_over(one[1]), -one[1]["median_ms"])
    ):
        table.add_row(
            name,
            f"{found['median_ms']:.2f}",
            f"{found['limit_ms']:g}",
            found["plan"],
            "" if found["read"] is None else str(found["read"]),
            str(found["rows"]),
            style="bold red" if is_over(found) else None,
        )
    return table


def run(database_url: str, *, actions: int, progress: Console) -> dict[str, Any]:
    """Fill the database, measure, and return the result as JSON data."""
    began = time.perf_counter()
    asyncio.run(migrate(database_url))
    progress.print(f"Writing {actions:,} actions")
    rows = fill(database_url, runs=actions * RUNS // ACTIONS, progress=progress)
    progress.print(f"Wrote them in {time.perf_counter() - began:.0f} s")
    queries = asyncio.run(measure(database_url, rows, progress))
    return {
        "actions": rows["agent_actions"],
        "runs": rows["agent_runs"],
        "over": sorted(name for name, found in queries.items() if is_over(found)),
        "queries": queries,
    }


def main() -> None:
    """Start Postgres, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description="What each query of a full ledger costs.")
    parser.add_argument("--actions", type=int, default=ACTIONS, help="how many it holds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.actions < 10_000:
        parser.error("--actions: at least 10000")
    progress = Console(stderr=True, highlight=False, width=80)
    # Not below a closed folder: under root, Postgres runs as a user of its own.
    data_dir = Path(tempfile.mkdtemp(prefix="commitline-bench-"))
    postgres = Postgres(data_dir, persistent=False)
    try:
        progress.print("Starting Postgres")
        postgres.start()
        postgres.ensure_database(DATABASE)
        result = run(postgres.url(DATABASE), actions=given.actions, progress=progress)
    finally:
        progress.print("Stopping Postgres")
        postgres.stop()
        remove_data(data_dir)
    shown = progress if given.json else Console(highlight=False, width=80)
    shown.print(table_of(result["queries"], result["actions"]))
    if given.json:
        print(json.dumps(result))
    leave(int(bool(result["over"])))


if __name__ == "__main__":
    main()
