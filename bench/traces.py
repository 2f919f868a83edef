"""What traces add to a turn: the same runs by a worker that traces, and by one that does not.

One process with a worker for each, one Temporal server, one Postgres that waits for its disk; the
two take turns, so that whatever disturbs the machine disturbs them alike. Spans are sent in batches
to nowhere: what a collector costs is not in it.

    python bench/traces.py [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from rich.console import Console
from rich.table import Table
from temporalio.client import Client
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider

from commitline.bench.harness import Run, bench_stack, history_of, with_commitline
from commitline.bench.job import DONE, Job
from commitline.bench.turns import APP
from commitline.process import leave, run_event_loop

TURNS: Final = 50


class Nowhere(SpanExporter):
    """Counts spans."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See base class."""
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


@dataclass(frozen=True)
class Turn:
    """What one turn took."""

    ms: float
    processor_ms: float
    """Of this process: the worker's, and the client's."""
    bytes: float
    """Of Temporal's history."""


async def one_run(client: Client, run: Run, id: str) -> Turn:
    """Carry out one run; return what each of its turns took."""
    began, used = time.perf_counter(), time.process_time()
    assert await run(id, Job(TURNS).prompt) == DONE
    ms, processor = time.perf_counter() - began, time.process_time() - used
    history = await history_of(client, id)
    return Turn(ms * 1000 / TURNS, processor * 1000 / TURNS, history.bytes / TURNS)


async def measure(rounds: int, progress: Console) -> dict[str, Any]:
    """Return the medians of both, as JSON data."""
    sent = Nowhere()
    provider = create_tracer_provider()
    provider.add_span_processor(BatchSpanProcessor(sent))
    trace.set_tracer_provider(provider)
    with bench_stack(progress) as stack:
        plain = await Client.connect(stack.temporal_address)
        traced = await Client.connect(stack.temporal_address, plugins=[OpenTelemetryPlugin()])
        async with AsyncExitStack() as workers:
            runs: Mapping[str, tuple[Client, Run]] = {
                setting: (
                    client,
                    await workers.enter_async_context(
                        with_commitline(
                            client, stack.database_url, APP, task_queue=setting, traces=setting
                        )
                    ),
                )
                for setting, client in (("off", plain), ("on", traced))
            }
            found: dict[str, list[Turn]] = {setting: [] for setting in runs}
            for number in range(rounds + 1):
                for setting in list(runs)[:: -1 if number % 2 else 1]:
                    turn = await one_run(*runs[setting], f"{setting}-{number}")
                    if number:  # the first ones warm up
                        found[setting].append(turn)
    await asyncio.to_thread(provider.force_flush)
    return {
        setting: {
            name: round(median(getattr(turn, name) for turn in turns), 2)
            for name in ("ms", "processor_ms", "bytes")
        }
        for setting, turns in found.items()
    } | {"spans": round(sent.spans / TURNS / (rounds + 1), 2)}


def main() -> None:
    """Measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description="What traces add to a turn.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    progress = Console(stderr=True, highlight=False, width=80)
    result = run_event_loop(measure(given.rounds, progress))
    table = Table(title=f"A turn, without traces and with ({result['spans']} spans)")
    for heading in ("traces", "ms", "processor ms", "bytes of history"):
        table.add_column(heading)
    for setting in ("off", "on"):
        table.add_row(setting, *(str(number) for number in result[setting].values()))
    (progress if given.json else Console(highlight=False, width=80)).print(table)
    if given.json:
        print(json.dumps(result))
    leave(0)


if __name__ == "__main__":
    main()
