"""The soak: agents work for minutes while everything around them fails at random.

    python -m commitline.tests.soak --seconds 120 --seed 7

The soak starts runs and plans, sends requests to conversations, and commits intents or rolls them
back, without pause, on three worker processes. Half of the runs have a local agent and local tools.
People approve, reject or are away. Runs are stopped, stopped and undone, terminated, and undone
later. Meanwhile workers are killed, frozen and told to stop; Postgres restarts; the connections to
it are cut, frozen and delayed; the provider fails before and after its effects; some requests are
sent twice; some conversations lose their run.

Then the faults end. The soak waits until nothing is at work and nothing is due, and people settle a
part of what is unknown. At last it compares, from outside, what the provider did, what the ledger
says and what the models have read: they must agree (`verdict`, `promises`). An answer that somebody
gets meanwhile is counted; what nobody foresaw is a violation, and the soak goes on (`unforeseen`).
It exits with 0 if all is as promised, with 1 if not, with 2 if it could not look.

One seed decides what each run does, which faults come and how the provider behaves. What a fault
hits depends on timing too, so two soaks of one seed are alike and not the same.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from commitline.errors import CommitlineError
from commitline.process import leave
from commitline.tests.soak.report import report
from commitline.tests.soak.result import CannotLook, Result
from commitline.tests.soak.stage import SHORTEST_SECONDS, run_soak


def main() -> int:
    """Play a soak and print what came of it.

    Returns 0 if all is as promised, 1 if not, 2 if the soak could not look.
    """
    parser = argparse.ArgumentParser(
        prog="python -m commitline.tests.soak", description="Run agents while everything fails."
    )
    parser.add_argument("--seconds", type=float, default=600, help="the calm at the end included")
    parser.add_argument("--seed", type=int, default=None, help="by default a random one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep-logs", type=Path, help="copy the workers' logs there")
    given = parser.parse_args()
    if given.seconds < SHORTEST_SECONDS:
        parser.error(f"--seconds: at least {SHORTEST_SECONDS:g}")
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    progress = Console(stderr=True, highlight=False)
    out = progress if given.json else Console(highlight=False)
    out.print(f"seed {seed}")
    played = conclude(
        partial(
            run_soak,
            seconds=given.seconds,
            seed=seed,
            progress=progress.print,
            keep_logs=given.keep_logs,
        )
    )
    if played.why:
        progress.print(played.why, style="red")
    if played.result is not None:
        out.print(report(played.result), soft_wrap=True)
        if given.json:
            print(json.dumps(played.result.as_json()))
    out.print(f"seed {seed}")
    return played.status


@dataclass(frozen=True)
class Played:
    """How a soak ended."""

    status: int
    """0: all is as promised. 1: something is not. 2: it could not look. 130: it was interrupted."""
    result: Result | None
    """What it counted, if it got so far."""
    why: str = ""
    """Why there is no verdict."""


def conclude(play: Callable[[], Result]) -> Played:
    """Play a soak to its verdict."""
    try:
        result = play()
    except KeyboardInterrupt:
        return Played(130, None)
    except CannotLook as err:
        return Played(2, err.result, f"There is no verdict: {err}. What was counted until then:")
    except CommitlineError as err:
        return Played(2, None, str(err))
    return Played(1 if result.violations else 0, result)


if __name__ == "__main__":
    leave(main())
