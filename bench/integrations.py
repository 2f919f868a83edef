"""What a guarded call costs: other frameworks' agents with `LedgerPlugin`, against the bare ones.

All carry out the same job, one call after the other:

- *OpenAI Agents* and *pydantic-ai* ask their model before each call, see `official.py` and
  `durable_pydantic_ai.py`; with the plugin each completion is recorded as well.
- *Own activity* is a plain workflow that calls an activity, without a model: `own_activity.py`.

Each has two workers in this process, on queues of their own; the plugin on the client of one is
all that differs. One Temporal server, one Postgres that waits for its disk. The two take turns, and
who begins changes each round, so that whatever disturbs the machine disturbs them alike. A figure
is the median of the rounds, a difference the median of the rounds' differences. Exits with 1 where
the plugin adds more bytes of history to a call than it may; the time has no limit.

    python bench/integrations.py [--rounds 5] [--calls 20] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from commitline.bench import official
from commitline.bench.harness import Run, bench_stack, check_durable, history_of
from commitline.bench.job import DONE, INSTRUCTIONS, Job
from commitline.bench.own_activity import charge_card, with_own_activity
from commitline.devstack import DevStack
from commitline.integrations import LedgerPlugin
from commitline.ledger import ActionLedger, ledger_pool, migrate
from commitline.process import leave, run_event_loop

LIMIT_BYTES: Final = 800
"""Of history, that the plugin may add to a call."""
TITLES: Final = {
    "openai_agents": "OpenAI Agents",
    "pydantic_ai": "pydantic-ai",
    "own_activity": "own activity",
}

_SCRIPT: Final = official.Script(
    INSTRUCTIONS, charge_card, lambda prompt, turn: Job.of(prompt).arguments(turn), DONE
)


async def serve(stack: AsyncExitStack, kind: str, server: DevStack, *, guarded: bool) -> Run:
    """Serve one kind of agent until the stack is closed."""
    address, queue = server.temporal_address, f"{kind}-{'guarded' if guarded else 'bare'}"
    more = (LedgerPlugin(server.database_url),) if guarded else ()
    if kind == "openai_agents":
        serving = official.with_official(address, _SCRIPT, queue=queue, more=more)
    elif kind == "pydantic_ai":
        from commitline.bench.durable_pydantic_ai import with_pydantic_ai

        serving = with_pydantic_ai(address, queue=queue, more=more)
    else:
        serving = with_own_activity(address, queue=queue, more=more)
    return await stack.enter_async_context(serving)


def kinds_here(progress: Console) -> list[str]:
    """Return the kinds whose packages are installed, and say which are not."""
    there = {"openai_agents": official.INSTALLED, "pydantic_ai": find_spec("pydantic_ai")}
    missing = [TITLES[kind] for kind, found in there.items() if not found]
    if missing:
        how = "pip install -e '.[bench,models]'"
        told = f"Without {' and '.join(missing)}, not installed: {how}"
        progress.print(told, markup=False, soft_wrap=True)
    return [kind for kind in TITLES if there.get(kind, True)]


async def measure(
    server: DevStack, *, rounds: int, calls: int, progress: Console
) -> dict[str, Any]:
    """Measure against running servers and return the result as JSON data."""
    await migrate(server.database_url)
    client = await Client.connect(server.temporal_address)
    kinds = kinds_here(progress)
    async with ledger_pool(server.database_url, size=1) as pool, AsyncExitStack() as stack:
        await check_durable(pool)
        found = {}
        for kind in kinds:
            sides = {
                name: await serve(stack, kind, server, guarded=name == "guarded")
                for name in ("bare", "guarded")
            }
            taken = await take_turns(
                kind, sides, rounds=rounds, prompt=Job(calls).prompt, progress=progress
            )
            sizes = {name: await history_of(client, f"{kind}-{name}-{rounds}") for name in sides}
            found[kind] = {
                **times_of(taken, calls),
                **{f"{name}_bytes": round(size.bytes / calls) for name, size in sizes.items()},
                "more_bytes": round((sizes["guarded"].bytes - sizes["bare"].bytes) / calls),
            }
            await check_guarded(ActionLedger(pool), run=f"{kind}-guarded-{rounds}", calls=calls)
    return {
        "ratio": found[kinds[0]]["ratio"],
        "kinds": found,
        "limit_bytes": LIMIT_BYTES,
        "rounds": rounds,
        "calls": calls,
        "fsync": True,  # else `check_durable` had raised
    }


async def take_turns(
    kind: str, sides: Mapping[str, Run], *, rounds: int, prompt: str, progress: Console
) -> dict[str, list[float]]:
    """Run the bare and the guarded agent, round after round; return the seconds of each."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        # The first round warms up, and is not counted.
        for name in [*sides][:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            answer = await sides[name](f"{kind}-{name}-{number}", prompt)
            seconds = time.perf_counter() - began
            assert answer == DONE, answer
            taken[name] += [seconds] if number else []
        told = f"round {number} of {rounds}" if number else "warming up"
        progress.print(f"  {TITLES[kind]}, {told}")
    return taken


def times_of(taken: Mapping[str, list[float]], calls: int) -> dict[str, Any]:
    """Return the milliseconds of a call, bare and guarded, and what the plugin adds."""
    rounds = list(zip(taken["bare"], taken["guarded"], strict=True))
    more = [(guarded - bare) * 1000 / calls for bare, guarded in rounds]
    ratios = [guarded / bare for bare, guarded in rounds]
    return {
        **{f"{name}_ms": round(median(all_) * 1000 / calls, 2) for name, all_ in taken.items()},
        "more_ms": round(median(more), 2),
        "spread_ms": [round(min(more), 2), round(max(more), 2)],
        "ratio": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
    }


async def check_guarded(ledger: ActionLedger, *, run: str, calls: int) -> None:
    """Look at the rows of a guarded run.

    Raises:
        RuntimeError: A call has none: then nothing was measured.
    """
    rows = [one for one in await ledger.list(limit=10_000) if one.run_key.startswith(f"{run}/")]
    if len(rows) != calls:
        raise RuntimeError(f"{run} has made {calls} calls, and the ledger has {len(rows)} rows")


def table_of(result: Mapping[str, Any]) -> Table:
    """Return what a call costs each kind."""
    table = Table(
        title=f"A call; medians of {result['rounds']} rounds of {result['calls']} calls",
        box=None,
        pad_edge=False,
    )
    table.add_column("")
    for heading in ("ms bare", "guarded", "more", "(from - to)", "bytes bare", "guarded", "more"):
        table.add_column(heading, justify="right")
    for kind, found in result["kinds"].items():
        low, high = found["spread_ms"]
        table.add_row(
            TITLES[kind],
            *(f"{found[name]:.1f}" for name in ("bare_ms", "guarded_ms", "more_ms")),
            f"{low:.1f} - {high:.1f}",
            *(f"{found[name]:,}" for name in ("bare_bytes", "guarded_bytes", "more_bytes")),
        )
    return table


def missed(result: Mapping[str, Any]) -> list[str]:
    """Return the kinds to whose calls the plugin adds too many bytes."""
    return [kind for kind, one in result["kinds"].items() if one["more_bytes"] > LIMIT_BYTES]


def main() -> None:
    """Start the servers, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(
        description="What LedgerPlugin adds to a call of other frameworks' agents."
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each agent")
    parser.add_argument("--calls", type=int, default=20, help="in a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if min(given.rounds, given.calls) < 1:
        parser.error("--rounds, --calls: at least 1")
    progress = Console(stderr=True, highlight=False)
    with bench_stack(progress) as stack:
        result = run_event_loop(
            measure(stack, rounds=given.rounds, calls=given.calls, progress=progress)
        )
    people = progress if given.json else Console(highlight=False)
    people.print(table_of(result))
    for kind in missed(result):
        people.print(f"{TITLES[kind]}: more than {LIMIT_BYTES} bytes a call  MISSED")
    if given.json:
        print(json.dumps(result))
    leave(int(bool(missed(result))))


if __name__ == "__main__":
    main()
