"""What the ledger costs: claim and record, against the same two statements bare.

*Bare* is the floor of any intent-first table: insert a pending row, update it to done, two
commits, through the same kind of pool and with the same data, into a table with the same
columns that has a primary key and nothing else: no run, no domain key, no constraints, no
other index, no deadline. All run in one process against one embedded Postgres with fsync on,
one action of each kind in turn, so that whatever disturbs the machine disturbs them alike.

Exits with 1 if the ratio is beyond its limit.

    python bench/ledger.py [--rounds 2000] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final
from uuid import uuid4

from rich.console import Console
from rich.table import Table

from commitline.bench.harness import check_durable
from commitline.canonical import digest, dumps
from commitline.devstack.postgres import Postgres, remove_data
from commitline.identity import Position, run_key
from commitline.ledger import (
    ActionLedger,
    ActionRequest,
    Attempt,
    Dispatched,
    Effect,
    Outcome,
    ledger_pool,
    migrate,
)
from commitline.ledger.pool import Pool
from commitline.process import leave, run_event_loop

TARGET: Final = 1.3
WARM_UP: Final = 50
"""Rounds that are not counted: connections, caches and the first pages of each table."""

DATABASE: Final = "bench"
RUN: Final = run_key("bench-ledger", "0198c1f0-5a3e-7cc1-9d55-5f6a54e7c1aa")
ARGUMENTS: Final = dumps({"order_id": "4821", "amount_cents": 4999, "currency": "EUR"})
RESULT: Final = Outcome.ok(dumps({"charge_id": "ch_1", "order_id": "4821", "amount_cents": 4999}))

BARE_TABLE: Final = """
create table bare_actions (like agent_actions including defaults);
alter table bare_actions add primary key (key);
"""
BARE_INSERT: Final = """
insert into bare_actions (
    key, tool, args, run_key, position, idempotency_key, domain_key, effect, key_ttl,
    requested_digest, effective_digest, claim_token, claimed_by, attempt_at, lease_until,
    tries, dispatched_at)
values (
    %(key)s, %(tool)s, %(args)s, %(run_key)s, %(position)s, %(domain_key)s, %(domain_key)s,
    %(effect)s, %(key_ttl)s, %(requested_digest)s, %(effective_digest)s, %(token)s, %(key)s,
    %(attempt_at)s, now() + %(lease)s, 1, now())
"""
BARE_UPDATE: Final = """
update bare_actions
   set status = 'done', outcome = %(outcome)s, effect_possible = %(effect_possible)s,
       result = %(result)s, done_at = now()
 where key = %(key)s
"""

Take = Callable[[], Awaitable[None]]
"""Takes one action; everything that it needs is made beforehand, and not measured."""
Kind = Callable[[int], Take]
"""Makes the action of a number."""


@dataclass(frozen=True)
class Figures:
    """One kind's times for both statements together."""

    median_ms: float
    p95_ms: float

    @classmethod
    def of(cls, seconds: list[float]) -> Figures:
        """Sum up the samples."""
        return cls(
            median_ms=round(median(seconds) * 1000, 4),
            p95_ms=round(quantiles(seconds, n=20)[-1] * 1000, 4),
        )


def request_of(number: int, *, domain_key: bool) -> tuple[ActionRequest, Attempt]:
    """Return an action as the guard would ask for it; the same data for every kind."""
    request = ActionRequest(
        run_key=RUN,
        position=Position(f"{number}.{int(domain_key)}"),
        tool="charge_card",
        args=ARGUMENTS,
        effect=Effect.IDEMPOTENT,
        requested_digest=digest(ARGUMENTS),
        effective_digest=digest(ARGUMENTS),
        key_ttl=timedelta(hours=24),
    )
    if domain_key:
        request = replace(request, domain_key=f"order-{number}-charge")
    attempt = Attempt(
        started_at=datetime.now(UTC), token=uuid4(), lease=timedelta(minutes=15, seconds=30)
    )
    return request, attempt


def through_ledger(ledger: ActionLedger, *, domain_key: bool) -> Kind:
    """Claim and record."""

    def make(number: int) -> Take:
        request, attempt = request_of(number, domain_key=domain_key)

        async def take() -> None:
            claim = await ledger.claim(request, attempt)
            assert isinstance(claim, Dispatched), claim
            await ledger.record(claim, RESULT)

        return take

    return make


def bare(pool: Pool) -> Kind:
    """Insert pending, update done."""

    def make(number: int) -> Take:
        request, attempt = request_of(number, domain_key=True)
        intent = {
            **asdict(request),
            "key": request.key,
            "token": attempt.token,
            "attempt_at": attempt.started_at,
            "lease": attempt.lease,
        }
        outcome = {
            "key": request.key,
            "outcome": RESULT.kind,
            "effect_possible": RESULT.effect_possible,
            "result": RESULT.result,
        }

        async def take() -> None:
            async with pool.connection() as connection:
                await connection.execute(BARE_INSERT, intent)
            async with pool.connection() as connection:
                await connection.execute(BARE_UPDATE, outcome)

        return take

    return make


async def measure(kinds: dict[str, Kind], *, rounds: int, progress: Console) -> dict[str, Figures]:
    """Take one action of each kind per round, beginning with another kind each time."""
    names = list(kinds)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    every = max(rounds // 4, 1)
    for number in range(-WARM_UP, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            take = kinds[name](number + WARM_UP)
            began = time.perf_counter()
            await take()
            if number >= 0:
                seconds[name].append(time.perf_counter() - began)
        if number > 0 and number % every == 0:
            progress.print(f"  {number} of {rounds} rounds")
    return {name: Figures.of(taken) for name, taken in seconds.items()}


async def run(database_url: str, *, rounds: int, progress: Console) -> dict[str, Any]:
    """Measure against a running Postgres and return the result as JSON data."""
    await migrate(database_url)
    async with ledger_pool(database_url) as pool, ledger_pool(database_url) as bare_pool:
        ledger = ActionLedger(pool)
        await ledger.runs.open(
            run_key=RUN,
            workflow_id="bench-ledger",
            agent="bench",
            input_digest=digest({}),
            attempt_at=datetime.now(UTC),
        )
        async with bare_pool.connection() as connection:
            await connection.execute(BARE_TABLE)
        await check_durable(pool)
        await check_durable(bare_pool)
        progress.print(f"Taking one action of each kind, {rounds} rounds")
        figures = await measure(
            {
                "bare": bare(bare_pool),
                "ledger": through_ledger(ledger, domain_key=False),
                "ledger_domain_key": through_ledger(ledger, domain_key=True),
            },
            rounds=rounds,
            progress=progress,
        )
    floor = figures["bare"].median_ms
    return {
        "ratio": round(figures["ledger"].median_ms / floor, 3),
        "ratio_domain_key": round(figures["ledger_domain_key"].median_ms / floor, 3),
        "target": TARGET,
        "rounds": rounds,
        "fsync": True,  # else `check_durable` had raised
        **{name: asdict(found) for name, found in figures.items()},
    }


def table_of(result: dict[str, Any]) -> Table:
    """Return the result for people."""
    table = Table(
        title=f"Claim and record, {result['rounds']} rounds (at most {TARGET} times bare)"
    )
    table.add_column("kind")
    for heading in ("median ms", "p95 ms", "ratio"):
        table.add_column(heading, justify="right")
    for name, told, ratio in (
        ("bare", "two bare statements", 1.0),
        ("ledger", "ledger", result["ratio"]),
        ("ledger_domain_key", "ledger, with a domain key", result["ratio_domain_key"]),
    ):
        found = result[name]
        table.add_row(told, f"{found['median_ms']:.2f}", f"{found['p95_ms']:.2f}", f"{ratio:.2f}")
    return table


def main() -> None:
    """Start Postgres, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description="What the ledger costs, against bare statements.")
    parser.add_argument("--rounds", type=int, default=2000, help="actions of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.rounds < 2:
        parser.error("--rounds: at least 2")
    progress = Console(stderr=True, highlight=False)
    # Not below a closed folder: under root, Postgres runs as a user of its own.
    data_dir = Path(tempfile.mkdtemp(prefix="commitline-bench-"))
    postgres = Postgres(data_dir)
    try:
        progress.print("Starting Postgres")
        postgres.start()
        postgres.ensure_database(DATABASE)
        result = run_event_loop(run(postgres.url(DATABASE), rounds=given.rounds, progress=progress))
    finally:
        progress.print("Stopping Postgres")
        postgres.stop()
        remove_data(data_dir)
    (progress if given.json else Console(highlight=False)).print(table_of(result))
    if given.json:
        print(json.dumps(result))
    leave(int(result["ratio"] > TARGET))


if __name__ == "__main__":
    main()
