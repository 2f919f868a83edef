"""How long everything takes to begin: the package, the command, a worker.

*Import* and *help*: the processor time of ``import commitline`` and of ``commitline --help``, user
and system, the interpreter's own start included.

*Worker*: the time from the start of a process ``commitline worker`` to its line ``worker.started``,
which says that it polls; and the processor time until then. The servers are there, the database has
its schema, and the app is the example shop's.

Each in a process of its own, one of each in turn. Exits with 1 if a median is beyond its limit.

    python bench/start.py [--rounds 10] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from commitline.bench.harness import bench_stack
from commitline.devstack import DevStack
from commitline.ledger import migrate
from commitline.process import leave

COMMAND: Final = str(Path(sys.executable).with_name("commitline"))
APP: Final = "commitline.examples.shop.app:app"
PROCESSOR: Final[Mapping[str, list[str]]] = {
    "interpreter": [sys.executable, "-c", "pass"],
    "import": [sys.executable, "-c", "import commitline"],
    "help": [COMMAND, "--help"],
}
LIMITS: Final = {"import": 0.15, "help": 0.15, "worker": 2.0}
"""Seconds."""


def processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """Wait for the end of a process; return what it used, user and system."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def take_command(command: list[str]) -> float:
    """Run a command; return the processor time that it used."""
    seconds = processor_seconds(process := subprocess.Popen(command, stdout=subprocess.DEVNULL))
    if process.returncode != 0:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return seconds


def take_worker(environment: Mapping[str, str]) -> tuple[float, float]:
    """Start a worker; return the time until it polls, and what it used of the processor."""
    began = time.monotonic()
    with subprocess.Popen(
        [COMMAND, "worker", APP], env={**os.environ, **environment}, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        told = b""
        for line in process.stderr:
            told += line
            if b"worker.started" in line:
                taken = time.monotonic() - began
                process.kill()
                return taken, processor_seconds(process)
    raise RuntimeError(f"the worker did not start: {told.decode(errors='replace')}")


def measure(stack: DevStack, *, rounds: int) -> dict[str, Any]:
    """Measure against running servers; return the result as JSON data."""
    asyncio.run(migrate(stack.database_url))
    environment = {
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "TEMPORAL_CONFIG_FILE": os.devnull,
        "COMMITLINE_DATABASE_URL": stack.database_url,
    }
    found: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        taken = {name: take_command(command) for name, command in PROCESSOR.items()}
        taken["worker"], taken["worker_processor"] = take_worker(environment)
        if number:  # the first finds files that are not compiled, or not in memory
            for name, seconds in taken.items():
                found.setdefault(name, []).append(seconds)
    return {
        **{f"{name}_seconds": round(median(all_of), 3) for name, all_of in found.items()},
        "limits": LIMITS,
        "rounds": rounds,
        "all": {name: [round(one, 3) for one in all_of] for name, all_of in found.items()},
    }


def table_of(result: dict[str, Any]) -> Table:
    """Return the result for people."""
    table = Table(title=f"{result['rounds']} rounds")
    table.add_column("seconds")
    for heading in ("median", "fastest", "slowest", "at most"):
        table.add_column(heading, justify="right")
    for name, told in {
        "interpreter": "an interpreter, processor",
        "import": "import commitline, processor",
        "help": "commitline --help, processor",
        "worker_processor": "a worker until it polls, processor",
        "worker": "a worker until it polls",
    }.items():
        found = result["all"][name]
        figures = (f"{one:.3f}" for one in (median(found), min(found), max(found)))
        limit = LIMITS.get(name)
        table.add_row(told, *figures, "" if limit is None else f"{limit:g}")
    return table


def main() -> None:
    """Start the servers, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description="How long everything takes to begin.")
    parser.add_argument("--rounds", type=int, default=10, help="of each, after one to warm up")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds: at least 1")
    progress = Console(stderr=True, highlight=False)
    with bench_stack(progress) as stack:
        progress.print(f"Starting {given.rounds} of each")
        result = measure(stack, rounds=given.rounds)
    (progress if given.json else Console(highlight=False)).print(table_of(result))
    if given.json:
        print(json.dumps(result))
    leave(int(any(result[f"{name}_seconds"] > limit for name, limit in LIMITS.items())))


if __name__ == "__main__":
    main()
