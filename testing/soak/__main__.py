"""The command: ``python -m commitline.testing.soak --seconds 120 --seed 7``."""

from __future__ import annotations

import argparse
import json
import secrets
from pathlib import Path

from rich.console import Console

from ...errors import CommitlineError
from ...process import leave
from .report import report
from .stage import SHORTEST_SECONDS, run_soak


def main() -> int:
    """Play a soak and print what came of it; 1 if anything is not as promised."""
    parser = argparse.ArgumentParser(prog="commitline.testing.soak", description="Soak it.")
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
    try:
        result = run_soak(
            seconds=given.seconds, seed=seed, told=progress.print, keep_logs=given.keep_logs
        )
        out.print(report(result), soft_wrap=True)
        if given.json:
            print(json.dumps(result.as_json()))  # noqa: T201
        status = 1 if result.violations else 0
    except KeyboardInterrupt:
        status = 130
    except CommitlineError as err:
        progress.print(str(err), style="red")
        status = 2
    out.print(f"seed {seed}")
    return status


if __name__ == "__main__":
    leave(main())
