"""Times the ledger's named queries as its methods send them, and reads the plans that they had.

The pool's connections note each statement that begins with the name of a query. Postgres tells how
long each took it: to parse, to plan and to execute. That leaves out the client, whose time is that
of any query. In a second pool Postgres's module auto_explain tells the plan of each statement, of
those inside of functions and of triggers too.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, cast

from psycopg import AsyncCursor
from psycopg.rows import DictRow

from commitline.ledger import ledger_pool
from commitline.ledger.pool import Connection, Pool

SMALL: Final = 1000
"""Rows of a table that may be scanned: it is as quick as its index."""
_NAMED: Final = re.compile(r"-- ([a-z_]+): ")
_EXPLAIN: Final = """
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_analyze = on;
set auto_explain.log_timing = off;
set auto_explain.log_nested_statements = on;
set auto_explain.log_format = json;
set client_min_messages = log
"""
_TIME: Final = """
set log_duration = on;
set client_min_messages = log
"""
_DURATION: Final = re.compile(r"duration: ([0-9.]+) ms")


@dataclass
class Measured:
    """What was seen of one query."""

    milliseconds: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    scans: set[str] = field(default_factory=set)

    def data(self, limit_ms: float) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "median_ms": round(median(self.milliseconds), 3),
            "best_ms": round(min(self.milliseconds), 3),
            "limit_ms": limit_ms,
            "plan": f"scan {', '.join(sorted(self.scans))}" if self.scans else "index",
            "read": round(median(self.read)) if self.read else None,
            "rows": round(median(self.rows)),
            "samples": len(self.milliseconds),
        }


class Meter:
    """The queries that were sent through its connections, by name.

    Args:
        rows: How many each table has.
    """

    def __init__(self, rows: dict[str, int]) -> None:
        self.queries: dict[str, Measured] = defaultdict(Measured)
        self.case = ""
        """What tells the queries of the next calls from other calls of the same query."""
        self._rows = rows
        self._told: list[str] = []

    @asynccontextmanager
    async def pool(self, database_url: str, *, explain: bool) -> AsyncIterator[Pool]:
        """Open the ledger's own pool, with connections that are timed, or explained."""
        pool = ledger_pool(database_url)
        pool.connection_class = cast("Any", self._connection_class(explain=explain))
        async with pool:
            yield pool

    def _connection_class(self, *, explain: bool) -> type[Connection]:
        meter = self

        class Cursor(AsyncCursor[DictRow]):
            async def execute(self, query: Any, params: Any = None, **given: Any) -> Any:
                meter._told.clear()
                done = await super().execute(query, params, **given)
                named = _NAMED.match(query) if isinstance(query, str) else None
                if named is not None:
                    found = meter.queries[f"{named[1]}{meter.case}"]
                    if explain:
                        meter._read_plans(found)
                    else:
                        found.milliseconds.append(meter._read_time())
                        found.rows.append(self.rowcount)
                return done

        class Timed(Connection):
            @classmethod
            async def connect(cls, *args: Any, **given: Any) -> Any:
                opened = await super().connect(*args, **given)
                opened.cursor_factory = Cursor
                for setting in (_EXPLAIN if explain else _TIME).split(";"):
                    await opened.execute(cast("Any", setting))
                opened.add_notice_handler(lambda one: meter._told.append(one.message_primary or ""))
                return opened

            @asynccontextmanager
            async def pipeline(self) -> AsyncIterator[Any]:
                yield None  # each statement by itself: in a pipeline none could be timed

        return Timed

    def _read_time(self) -> float:
        return sum(float(found[1]) for told in self._told if (found := _DURATION.match(told)))

    def _read_plans(self, found: Measured) -> None:
        read = 0
        for told in self._told:
            _, _, plan = told.partition("plan:\n")
            for node in _nodes(json.loads(plan)["Plan"]) if plan else ():
                table = str(node.get("Relation Name", ""))
                if not table:
                    continue
                dropped = node.get("Rows Removed by Filter", 0)
                read += round((node["Actual Rows"] + dropped) * node["Actual Loops"])
                scanned = node["Node Type"] == "Seq Scan" and node["Actual Loops"]
                if scanned and self._rows.get(table, 0) > SMALL:
                    found.scans.add(table.removeprefix("agent_"))
        found.read.append(read)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)
