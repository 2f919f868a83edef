"""The fuzz: twenty actors work on one ledger by chance, and then everything ends that can.

    python -m commitline.tests.fuzz --seconds 120 --seed 7

    stage       plays rounds: each has a database of its own, and one of the themes
    tools       what is called: tools of each effect, and the themes
    provider    the world outside, which counts what happened
    scene       what the actors share: runs, conversations, what was told
    pace        time, in ledger calls
    actor       what every actor has, and how a call is tried again; those who act are in
                `worker`, `undoing`, `relay`, `people`, `application` and `world_time`
    attempt     one attempt at a call, with every fault that it may meet (`faults`)
    asking      calls that wait for a person, before they are made or midway
    slow_commits
                the sessions of an operator who is far away
    witness     what is looked at at once, since no row shows it later
    exits       the end: all time is over, and every row takes the exit that is open to it
    checks      what must be true then
    mutants     ways to break the ledger, which the fuzz must see

A violation is printed with what was done to its rows. One seed decides what each actor does; in
which order they meet is left to chance, so two rounds of one seed are alike and not the same.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from commitline.devstack.postgres import Postgres, remove_data
from commitline.ledger import migrate
from commitline.process import leave
from commitline.tests.fuzz.mutants import MUTANTS
from commitline.tests.fuzz.report import report
from commitline.tests.fuzz.stage import Round, play_round
from commitline.tests.fuzz.tools import THEMES

_ROUND = 20.0
_TEMPLATE = "fuzz_template"


def main() -> int:
    """Play rounds until the time is over; return 1 if anything is not as promised."""
    given = _arguments()
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    out = Console(highlight=False)
    out.print(f"seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="commitline-fuzz-"))
    postgres = Postgres(folder, persistent=False)
    status = 0
    try:
        postgres.start()
        postgres.ensure_database(_TEMPLATE)
        asyncio.run(migrate(postgres.url(_TEMPLATE)))
        for played in _rounds(postgres.url("postgres"), seed, given):
            out.print(report(played), soft_wrap=True)
            status = status or int(bool(played.violations))
            if status and given.mutant:
                break
    except KeyboardInterrupt:
        status = 130
    finally:
        postgres.stop()
        remove_data(folder)
    out.print(f"seed {seed}")
    return status


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m commitline.tests.fuzz")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=None, help="by default a random one")
    parser.add_argument("--round", type=float, default=_ROUND, help="seconds of a round")
    names = [mutant.name for mutant in MUTANTS]
    parser.add_argument("--mutant", choices=names, help="break the ledger so, until that is seen")
    return parser.parse_args()


def _rounds(url: str, seed: int, given: argparse.Namespace) -> Iterator[Round]:
    """Play one theme after the other; of a broken ledger, the one in which it shows."""
    mutant = next((one for one in MUTANTS if one.name == given.mutant), None)
    themes = THEMES if mutant is None else [THEMES[mutant.theme]]
    ends = time.monotonic() + given.seconds
    with pytest.MonkeyPatch.context() as patch:
        if mutant is not None:
            mutant.apply(patch)
        for number in itertools.count():
            if number and time.monotonic() >= ends:
                return
            yield play_round(
                url,
                _TEMPLATE,
                themes[number % len(themes)],
                seed=f"{seed}-{number}",
                seconds=given.round,
                broken="" if mutant is None else mutant.broken,
            )


if __name__ == "__main__":
    leave(main())
