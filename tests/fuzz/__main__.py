"""The fuzz: twenty actors work on one ledger by chance, and then everything ends that can.

    python -m commitline.tests.fuzz --seconds 120 --seed 7

    stage       plays rounds: each has a database of its own, and one of the themes
    tools       what is called: tools of each effect, and the themes
    provider    the world outside, which counts what happened
    scene       what the actors share: runs, conversations, what was told
    pace        time, in ledger calls
    actor       what every actor has, and how a call is tried again; those who act are in
                `worker`, `undoing`, `relay`, `people`, `application` and `world_time`
    attempt     one attempt at a call, with every fault that it may meet
    exits       the end: all time is over, and every row takes the exit that is open to it
    checks      what must be true then
    mutants     ways to break the ledger, which the fuzz must see

A violation is printed with what was done to its rows. One seed decides what each actor does; in
which order they meet is left to chance, so two rounds of one seed are alike and not the same.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from pathlib import Path

from rich.console import Console

from commitline.devstack.postgres import Postgres, remove_data
from commitline.ledger import migrate
from commitline.process import leave
from commitline.tests.fuzz.report import report
from commitline.tests.fuzz.stage import play_round
from commitline.tests.fuzz.tools import THEMES

_ROUND = 20.0
_TEMPLATE = "fuzz_template"


def main() -> int:
    """Play rounds until the time is over; return 1 if anything is not as promised."""
    parser = argparse.ArgumentParser(prog="python -m commitline.tests.fuzz")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=None, help="by default a random one")
    parser.add_argument("--round", type=float, default=_ROUND, help="seconds of a round")
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    out = Console(highlight=False)
    out.print(f"seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="commitline-fuzz-"))
    postgres = Postgres(folder, persistent=False)
    status, number, ends = 0, 0, time.monotonic() + given.seconds
    try:
        postgres.start()
        postgres.ensure_database(_TEMPLATE)
        asyncio.run(migrate(postgres.url(_TEMPLATE)))
        while number == 0 or time.monotonic() < ends:
            played = play_round(
                postgres.url("postgres"),
                _TEMPLATE,
                THEMES[number % len(THEMES)],
                seed=f"{seed}-{number}",
                seconds=given.round,
            )
            out.print(report(played), soft_wrap=True)
            status = status or int(bool(played.violations))
            number += 1
    except KeyboardInterrupt:
        status = 130
    finally:
        postgres.stop()
        remove_data(folder)
    out.print(f"seed {seed}")
    return status


if __name__ == "__main__":
    leave(main())
