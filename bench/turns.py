"""What a turn costs: Commitline, two hand-written Temporal workflows, the official integration.

All carry out the same jobs: ask the model, carry out the calls that it makes, ask again.

- *lean* and *whole list* are written by hand, see `by_hand.py`; *official* is the OpenAI Agents
  integration for Temporal, see `official.py`. All three have the gap that Commitline closes: a
  crash between the tool's effect and its completion repeats the effect.
- *Commitline* asks the same questions and makes the same calls, and its actions and completions go
  through the ledger. *Local* is the same with ``local=True`` on the agent and on its tool.

Four loads: one run of one-call turns; 20 such runs side by side, and 100; and one run of turns
with 20 calls side by side. One process with a worker for each kind, one Temporal server, one
Postgres that waits for its disk, all with the settings that a user has; the kinds take turns, and
who begins changes each round, so that whatever disturbs the machine disturbs them alike. All have
the event loop of a worker: uvloop's where that is installed. A ratio is the median of the rounds'
ratios. Exits with 1 where one is beyond its limit.

    python bench/turns.py [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from temporalio import activity
from temporalio.client import Client

from commitline import Agent, App, Effect, ToolContext, tool
from commitline.activities.contract.conversation import Completion
from commitline.activities.model.model import ModelRequest
from commitline.bench import official
from commitline.bench.by_hand import by_hand
from commitline.bench.harness import Run, bench_stack, history_of, with_commitline
from commitline.bench.job import DONE, INSTRUCTIONS, Job, receipt_of
from commitline.bench.processor import Processor, ProcessorTime
from commitline.devstack import DevStack
from commitline.process import leave, run_event_loop
from commitline.testing import call, say


@dataclass(frozen=True)
class Load:
    """Jobs that are carried out side by side."""

    runs: int
    job: Job
    unit: str
    """What its rate counts, per second."""

    @property
    def units(self) -> int:
        """Turns; calls where a turn has several."""
        return self.runs * self.job.turns * self.job.calls

    def tenth(self) -> Load:
        """Return a tenth of it, to see that it can be carried out."""
        turns, calls = -(-self.job.turns // 10), -(-self.job.calls // 10)
        return Load(-(-self.runs // 10), Job(turns, calls), self.unit)


LOADS: Final[dict[str, Load]] = {
    "one": Load(1, Job(50), "turns"),
    "many": Load(20, Job(10), "turns"),
    "crowd": Load(100, Job(4), "turns"),
    "parallel": Load(1, Job(5, calls=20), "calls"),
}


@dataclass(frozen=True)
class Limit:
    """A ratio of Commitline's rate, or time, to another kind's, and how far it may go."""

    name: str
    load: str
    other: str
    most: float | None = None
    """Of the time that Commitline takes."""
    least: float | None = None
    """Of the rate at which Commitline works."""
    ours: str = "commitline"
    """The kind that is compared."""

    def of(self, ours: float, theirs: float) -> float:
        """Return the ratio of two times."""
        return ours / theirs if self.most is not None else theirs / ours

    def broken_by(self, ratio: float) -> bool:
        """Whether a ratio is beyond it."""
        return ratio > self.most if self.most is not None else ratio < (self.least or 0)


LIMITS: Final = (
    Limit("ratio", "one", "lean", most=1.1),
    Limit("ratio_throughput", "many", "lean", least=0.9),
    Limit("ratio_throughput_100", "crowd", "lean", least=0.9),
    Limit("ratio_parallel", "parallel", "lean", least=1.0),
    Limit("ratio_official", "one", "official", most=0.8),
    Limit("ratio_local", "one", "lean", most=0.5, ours="local"),
    Limit("ratio_local_throughput", "many", "lean", least=1.5, ours="local"),
)


# With Commitline: the agent, as an application writes it.


@tool(effect=Effect.IDEMPOTENT)
async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(order_id)


class JobModel:
    """Answers by the prompt and the turn, as the models of the other kinds do."""

    name = "scripted"

    async def complete(self, request: ModelRequest) -> Completion:
        """Answer the turn that the request has come to."""
        turn = sum(message.role == "assistant" for message in request.messages)
        calls = Job.of(request.messages[0].text).arguments(turn)
        return call(*(("charge_card", given) for given in calls)) if calls else say(DONE)


APP: Final = App([Agent("bench", JobModel(), INSTRUCTIONS, [charge_card], max_steps=1000)])

LOCAL_APP: Final = App(
    [
        Agent(
            "bench",
            JobModel(),
            INSTRUCTIONS,
            [replace(charge_card, local=True, tool_timeout=10)],
            max_steps=1000,
            model_timeout=10,
            local=True,
        )
    ]
)


# In the official integration: the same agent again.


@activity.defn(name="charge_card")
async def charge_officially(order_id: str, amount_cents: int) -> dict[str, Any]:
    """Charge an order."""
    return receipt_of(order_id)


def _official_calls(prompt: str, turn: int) -> list[dict[str, Any]]:
    return Job.of(prompt).arguments(turn)


OFFICIAL: Final = official.Script(INSTRUCTIONS, charge_officially, _official_calls, DONE)


# What is measured.


@dataclass(frozen=True)
class Sample:
    """One kind under one load, once."""

    seconds: float
    used: ProcessorTime


async def sample(run: Run, load: Load, id: str, processor: Processor) -> Sample:
    """Carry out the jobs of a load side by side."""
    used, began = processor.now(), time.perf_counter()
    answers = await asyncio.gather(
        *(run(f"{id}-{number}", load.job.prompt) for number in range(load.runs))
    )
    seconds = time.perf_counter() - began
    assert set(answers) == {DONE}, answers
    return Sample(seconds, processor.now() - used)


async def take_turns(
    kinds: Mapping[str, Run], *, rounds: int, processor: Processor, progress: Console
) -> dict[str, dict[str, list[Sample]]]:
    """Put each kind under each load, round after round; return the samples by load and kind."""
    samples: dict[str, dict[str, list[Sample]]] = {
        load: {name: [] for name in kinds} for load in LOADS
    }
    names = list(kinds)
    for number in range(rounds + 1):
        # The first round warms up, and is not counted.
        told = f"round {number} of {rounds}" if number else "warming up"
        first = number % len(names)
        for load_name, load in LOADS.items():
            taken = {}
            for name in names[first:] + names[:first]:
                job_id = f"{name}-{load_name}-{number}"
                taken[name] = await sample(kinds[name], load, job_id, processor)
                if number:
                    samples[load_name][name].append(taken[name])
            seconds = ", ".join(f"{name} {taken[name].seconds:.2f} s" for name in names)
            progress.print(f"  {told}, {load_name}: {seconds}")
    return samples


async def measure(stack: DevStack, *, rounds: int, progress: Console) -> dict[str, Any]:
    """Measure against running servers and return the result as JSON data."""
    client = await Client.connect(stack.temporal_address)
    async with AsyncExitStack() as serving:
        enter = serving.enter_async_context
        kinds = dict(await enter(by_hand(client)))
        if official.INSTALLED:
            kinds["official"] = await enter(
                official.with_official(stack.temporal_address, OFFICIAL)
            )
        url = stack.database_url
        kinds["commitline"] = await enter(with_commitline(client, url, APP))
        kinds["local"] = await enter(with_commitline(client, url, LOCAL_APP, task_queue="local"))
        samples = await take_turns(
            kinds, rounds=rounds, processor=Processor(stack), progress=progress
        )
        histories = {name: await history_of(client, f"{name}-one-{rounds}-0") for name in kinds}
    turns = LOADS["one"].job.turns
    return {
        **ratios_of(samples),
        "limits": {limit.name: limit.most or limit.least for limit in LIMITS},
        "rounds": rounds,
        "fsync": True,  # else `check_durable` had raised
        "event_loop": type(asyncio.get_running_loop()).__module__,
        **{
            name: {
                **figures_of(samples, name),
                "history_bytes_a_turn": round(histories[name].bytes / turns),
                "history_events_a_turn": round(histories[name].events / turns, 1),
                "actions_a_turn": round(histories[name].actions / turns, 2),
            }
            for name in kinds
        },
    }


def ratios_of(samples: dict[str, dict[str, list[Sample]]]) -> dict[str, Any]:
    """Return each ratio, and beside it its smallest and largest of a round."""
    found: dict[str, Any] = {}
    spread = {}
    for limit in LIMITS:
        kinds = samples[limit.load]
        rounds = [
            limit.of(ours.seconds, theirs.seconds)
            for ours, theirs in zip(kinds[limit.ours], kinds.get(limit.other, []), strict=False)
        ]
        found[limit.name] = round(median(rounds), 3) if rounds else None
        spread[limit.name] = [round(end(rounds), 3) for end in (min, max) if rounds]
    return {**found, "spread": spread}


def figures_of(samples: dict[str, dict[str, list[Sample]]], kind: str) -> dict[str, Any]:
    """Return what a kind did under each load: medians, processor time from the 20 runs."""
    seconds = {load: median(one.seconds for one in samples[load][kind]) for load in LOADS}
    many = samples["many"][kind]

    def processor_ms(of: str) -> float:
        used: float = median(getattr(one.used, of) for one in many)
        return round(used * 1000 / LOADS["many"].units, 2)

    return {
        "turn_ms": round(seconds["one"] * 1000 / LOADS["one"].units, 3),
        "turns_a_second_20": round(LOADS["many"].units / seconds["many"], 1),
        "turns_a_second_100": round(LOADS["crowd"].units / seconds["crowd"], 1),
        "calls_a_second": round(LOADS["parallel"].units / seconds["parallel"], 1),
        "worker_ms_a_turn": processor_ms("worker"),
        "temporal_ms_a_turn": processor_ms("temporal"),
        "postgres_ms_a_turn": processor_ms("postgres"),
    }


# What people see.

COLUMNS: Final = {
    "ms a\nturn": "turn_ms",
    "turns/s\n20 runs": "turns_a_second_20",
    "turns/s\n100 runs": "turns_a_second_100",
    "calls/s\n20 calls": "calls_a_second",
    "worker\nms": "worker_ms_a_turn",
    "server\nms": "temporal_ms_a_turn",
    "Postgres\nms": "postgres_ms_a_turn",
    "history\nbytes": "history_bytes_a_turn",
    "\nevents": "history_events_a_turn",
}


def table_of(result: dict[str, Any]) -> Table:
    """Return what each kind did."""
    table = Table(
        title=f"Medians of {result['rounds']} rounds; the last five columns are of a turn",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("")
    for heading in COLUMNS:
        table.add_column(heading, justify="right")
    for kind, told in (
        ("lean", "by hand, lean"),
        ("whole_list", "whole list"),
        ("official", "official"),
        ("commitline", "Commitline"),
        ("local", "local"),
    ):
        figures = result.get(kind)
        cells = (
            [
                f"{figures[key]:,.0f}" if figures[key] >= 100 else f"{figures[key]:.1f}"
                for key in COLUMNS.values()
            ]
            if figures
            else ["not installed"]
        )
        table.add_row(told, *cells)
    return table


def lines_of(result: dict[str, Any]) -> Iterator[str]:
    """Yield each ratio, as a sentence."""
    for limit in LIMITS:
        ratio = result[limit.name]
        if ratio is None:
            continue
        what = "time" if limit.most is not None else "rate"
        allowed = f"at most {limit.most}" if limit.most is not None else f"at least {limit.least}"
        lowest, highest = result["spread"][limit.name]
        verdict = "  MISSED" if limit.broken_by(ratio) else ""
        yield (
            f"{limit.name}: {ratio:.2f} times the {what} of {limit.other} "
            f"({lowest:.2f} to {highest:.2f}; {allowed}){verdict}"
        )


def missed(result: dict[str, Any]) -> bool:
    """Whether a ratio is beyond its limit."""
    return any(
        limit.broken_by(result[limit.name]) for limit in LIMITS if result[limit.name] is not None
    )


def main() -> None:
    """Start the servers, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(
        description="What a turn costs, against Temporal by hand and the official integration."
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each kind under each load")
    parser.add_argument("--small", action="store_true", help="a tenth of each load, as a trial")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    if given.small:
        LOADS.update({name: load.tenth() for name, load in LOADS.items()})
    progress = Console(stderr=True, highlight=False)
    if not official.INSTALLED:
        progress.print(
            f"Without {official.NAME}, which is not installed: {official.HOW_TO_INSTALL}",
            markup=False,
            soft_wrap=True,
        )
    with bench_stack(progress) as stack:
        result = run_event_loop(measure(stack, rounds=given.rounds, progress=progress))
    people = progress if given.json else Console(highlight=False)
    people.print(table_of(result))
    for line in lines_of(result):
        people.print(line, soft_wrap=True)
    if given.json:
        print(json.dumps(result))
    leave(int(missed(result)))


if __name__ == "__main__":
    main()
