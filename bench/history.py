"""What a long run leaves behind: bytes of Temporal history and of Postgres, by its turns.

The same agent twice, Commitline's and the official OpenAI Agents integration's for Temporal:
the same instructions, the same calls, a scripted model, one call per turn, whose tool answers
with 1,000 characters that no compression makes smaller. One run of each per number of turns.

*History* is what the server counts for the workflow (``history_size_bytes`` of its
description), over all executions where it went on as a new one. Temporal keeps it in its own
database, loads it to rebuild a run, and by default ends a run whose history is above 50 MiB.
*Postgres* is by how much a run makes a database of its own grow that held empty tables: their
pages, their indexes' and their TOAST's (``pg_relation_size`` after ``vacuum``), without the
maps of free space and without the WAL. The official integration has no database.

Each run is timed, too: a turn late in it against one at its beginning. Exits with 1 where
Commitline's longest run takes more history, or more time for a late turn, than it may.

    python bench/history.py [--turns 10 50 100 200 400] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import string
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import Any, Final

import psycopg
from psycopg import sql
from rich import box
from rich.console import Console
from rich.table import Table
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError

from commitline import Agent, App, Effect, ToolContext, tool
from commitline.bench import official
from commitline.bench.harness import Run, bench_stack, history_of, with_commitline
from commitline.devstack import DevStack
from commitline.errors import CommitlineError
from commitline.ledger import migrate
from commitline.process import leave, run_event_loop
from commitline.testing import ScriptedModel, call, say

TURNS: Final = (10, 50, 100, 200, 400)
RESULT_BYTES: Final = 1000
HISTORY_LIMIT: Final = 3_000
"""Bytes of history for each turn."""
LATE_LIMIT: Final = 1.2
"""A turn at the end of a run, in turns around its tenth."""
TIMED: Final = 20
"""Turns whose median time is taken; a run of fewer than twice as many is not timed."""
PATIENCE_SECONDS: Final = 600.0
INSTRUCTIONS: Final = "You book the pages of a ledger, one at a time, and say when you are done."
PROMPT: Final = "Book every page."
DONE: Final = "Every page is booked."
COMMITLINE: Final = "commitline"
RELATIONS: Final = """
select sum(pg_relation_size(oid))::bigint
  from pg_class
 where oid >= 16384 and relkind in ('r', 'i', 't')
"""
"""Everything that is not Postgres's own: tables, their indexes, their TOAST with its index."""
WRITTEN: Final = """
select pg_current_wal_insert_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot())
"""
"""Only a transaction that writes gets a number."""


# The agent, for both: what its model calls, and what its tool answers.


def call_of(turn: int) -> dict[str, Any]:
    """Return the arguments of the call that the model makes at a turn."""
    return {"page": turn}


_reached: Final[list[float]] = []
"""When the run at hand has come to each of its calls; it may be ended early."""


def booked(page: int) -> str:
    """Return what the tool answers: letters and digits that look random, the same each time."""
    _reached.append(time.perf_counter())
    return "".join(Random(page).choices(string.ascii_letters + string.digits, k=RESULT_BYTES))


@tool(effect=Effect.IDEMPOTENT, name="book")
async def book_with_commitline(ctx: ToolContext, page: int) -> str:
    """Book a page."""
    return booked(page)


@activity.defn
async def book(page: int) -> str:
    """Book a page."""
    return booked(page)


def app_of(turns: int) -> App:
    """Return Commitline's app with the agent."""
    answers = [call(("book", call_of(turn))) for turn in range(turns)]
    model = ScriptedModel("scripted", [*answers, say(DONE)])
    return App([Agent("bench", model, INSTRUCTIONS, [book_with_commitline], max_steps=turns + 10)])


def script_of(turns: int) -> official.Script:
    """Return the official integration's agent."""

    def calls(prompt: str, turn: int) -> list[dict[str, Any]]:
        return [call_of(turn)] if turn < turns else []

    return official.Script(INSTRUCTIONS, book, calls, DONE)


# One run of each, and what it leaves behind.


@dataclass(frozen=True)
class Measured:
    """What one run left behind."""

    system: str
    turns: int
    history_bytes: int
    postgres_bytes: int
    wal_bytes: int = 0
    """Of the log that Postgres wrote meanwhile, and that standbys and backups get."""
    commits: int = 0
    """Transactions that wrote something."""
    ended: str | None = None
    """Why it did not come to its answer; its bytes are those that it reached."""
    late: float | None = None
    """The time of a turn at its end, in turns at its beginning; None where it was too short."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON data, without what is None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


async def end_of(run: Run, id: str, client: Client) -> str | None:
    """Have a run come to its answer; return what ended it before that."""
    _reached.clear()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await run(id, PROMPT)
        assert answer == DONE, answer
        return None
    except TimeoutError:
        why = f"no answer within {PATIENCE_SECONDS:g} s"
        await client.get_workflow_handle(id).terminate(why)
    except WorkflowFailureError as err:
        why = f"{type(err.cause).__name__}: {err.cause}"
    except CommitlineError as err:
        why = f"{type(err).__name__}: {err}"
    return f"after {len(_reached)} calls, {why}"


def late_turn() -> float | None:
    """Return the time of a turn at the end of the run at hand, in turns around its tenth."""
    took = [after - before for before, after in itertools.pairwise(_reached)]
    if len(took) + 1 < 2 * TIMED:
        return None
    return round(median(took[-TIMED:]) / median(took[:TIMED]), 2)


def missed(found: list[Measured]) -> list[str]:
    """Return what Commitline's longest run takes more of than it may, in words."""
    longest = max((one for one in found if one.system == COMMITLINE), key=lambda one: one.turns)
    a_turn, late = longest.history_bytes / longest.turns, longest.late
    told = []
    if longest.ended or a_turn > HISTORY_LIMIT:
        told.append(f"history: {a_turn:,.0f} bytes a turn; at most {HISTORY_LIMIT:,}  MISSED")
    if late is not None and late > LATE_LIMIT:
        told.append(f"a late turn takes {late} times an early one; at most {LATE_LIMIT}  MISSED")
    return told


async def measure_commitline(stack: DevStack, client: Client, turns: int) -> Measured:
    """Run Commitline's agent, on a database of its own."""
    run_id = f"{COMMITLINE}-{turns}"
    url = await new_database(stack, f"bench_{turns}")
    before = await postgres_bytes(url)
    async with with_commitline(client, url, app_of(turns)) as run:
        wal_before, commits_before = await written(url)
        ended = await end_of(run, run_id, client)
        wal, commits = await written(url)
    grown = await postgres_bytes(url) - before
    size = (await history_of(client, run_id)).bytes
    return Measured(
        COMMITLINE,
        turns,
        size,
        grown,
        wal - wal_before,
        commits - commits_before,
        ended=ended,
        late=late_turn(),
    )


async def measure_official(stack: DevStack, client: Client, turns: int) -> Measured:
    """Run the official integration's agent, which has no database."""
    run_id = f"{official.NAME}-{turns}"
    async with official.with_official(
        stack.temporal_address, script_of(turns), queue=run_id
    ) as run:
        ended = await end_of(run, run_id, client)
    size = (await history_of(client, run_id)).bytes
    return Measured(official.NAME, turns, size, 0, ended=ended, late=late_turn())


async def new_database(stack: DevStack, name: str) -> str:
    """Create a database with Commitline's tables, and return its URL."""
    admin = await psycopg.AsyncConnection.connect(stack.database_url, autocommit=True)
    async with admin:
        await admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    await migrate(stack.url_of(name))
    return stack.url_of(name)


async def postgres_bytes(url: str) -> int:
    """Return the size of all that a database holds beside Postgres's own tables."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        await connection.execute("vacuum")
        found = await (await connection.execute(RELATIONS)).fetchone()
    assert found is not None
    return int(found[0])


async def written(url: str) -> tuple[int, int]:
    """Return how much the server has written to its log so far, and how many transactions wrote."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection:
        found = await (await connection.execute(WRITTEN)).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


async def measure(stack: DevStack, *, numbers: list[int], progress: Console) -> list[Measured]:
    """Measure both at each number of turns, against running servers."""
    client = await Client.connect(stack.temporal_address)
    found = []
    systems = [measure_commitline, *([measure_official] if official.INSTALLED else [])]
    for turns in numbers:
        for one in systems:
            measured = await one(stack, client, turns)
            found.append(measured)
            progress.print(f"  {measured.system}, {turns} turns: {measured.history_bytes:,} bytes")
    return found


# What people see.


def growth(values: list[tuple[int, int]]) -> list[str]:
    """Return how each value of turns and bytes has grown since the one before.

    As the power of the turns that the bytes follow: 1 is linear, 2 quadratic, 0 constant.
    """
    told = [""]
    for (turns, size), (more_turns, more) in itertools.pairwise(values):
        known = min(size, more) > 0 and more_turns > turns
        told.append(f"{math.log(more / size) / math.log(more_turns / turns):.1f}" if known else "")
    return told


def rows_of(found: list[Measured]) -> Iterator[list[str]]:
    """Yield the table's rows of one system."""
    history = growth([(one.turns, one.history_bytes) for one in found])
    postgres = growth([(one.turns, one.postgres_bytes) for one in found])
    for index, one in enumerate(found):
        yield [
            "Commitline" if one.system == COMMITLINE else "official",
            f"{one.turns}",
            f"{one.history_bytes:,}" + ("*" if one.ended else ""),
            "" if one.ended else f"{one.history_bytes / one.turns:,.0f}",
            "" if one.ended else history[index],
            "" if one.late is None else f"{one.late:.2f}",
            f"{one.postgres_bytes:,}",
            "" if one.ended else f"{one.postgres_bytes / one.turns:,.0f}",
            "" if one.ended else postgres[index],
        ]


def table_of(found: list[Measured]) -> Table:
    """Return the result for people."""
    table = Table(
        title=f"Bytes that one run leaves behind; a turn is a call with {RESULT_BYTES:,} of result",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        caption="official: the OpenAI Agents integration for Temporal. growth: the power of the "
        "turns that the bytes follow since the row above; 1 is linear, 2 is quadratic. late: the "
        "time of a turn at the end, in turns at the beginning",
    )
    table.add_column("system", no_wrap=True)
    for heading in ("turns", "history", "a turn", "growth", "late", "Postgres", "a turn", "growth"):
        table.add_column(heading, justify="right")
    for system in (COMMITLINE, official.NAME):
        for row in rows_of([one for one in found if one.system == system]):
            table.add_row(*row)
        table.add_section()
    return table


def notes_of(found: list[Measured]) -> list[str]:
    """Return which runs were ended before their answer, and by what."""
    return [f"* {one.system}, {one.turns} turns: ended {one.ended}" for one in found if one.ended]


def main() -> None:
    """Start the servers, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description="What a long run leaves behind, in bytes.")
    parser.add_argument("--turns", type=int, nargs="+", default=list(TURNS), help="of each run")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    given = parser.parse_args()
    if min(given.turns) < 1:
        parser.error("--turns: at least 1")
    progress = Console(stderr=True, highlight=False)
    if not official.INSTALLED:
        progress.print(
            f"Without {official.NAME}, which is not installed: {official.HOW_TO_INSTALL}",
            markup=False,
            soft_wrap=True,
        )
    with bench_stack(progress) as stack:
        progress.print(f"One run of each system at {given.turns} turns", markup=False)
        numbers = sorted(set(given.turns))
        found = run_event_loop(measure(stack, numbers=numbers, progress=progress))
    people = progress if given.json else Console(highlight=False)
    people.print(table_of(found))
    over = missed(found)
    for note in [*notes_of(found), *over]:
        people.print(note, markup=False, soft_wrap=True)
    if given.json:
        print(json.dumps([one.as_json() for one in found]))
    leave(int(bool(over)))


if __name__ == "__main__":
    main()
