"""What a worker needs: whether it is there, and the database at this version's schema."""

from __future__ import annotations

from typing import Annotated

import typer

from .terminal import AsJson, wait_for

_Queue = Annotated[
    str | None, typer.Option("--queue", help="A task queue whose workers need LedgerPlugin.")
]

_Fix = Annotated[bool, typer.Option("--fix", help="Add the search attributes that Temporal lacks.")]


def doctor(queue: _Queue = None, fix: _Fix = False, json: AsJson = False) -> None:
    """Say what is there, what is missing, and how to get it.

    Exits 1 when no worker could run here, or no run succeed: no usable database, no usable
    Temporal, an app or a model that lacks something (COMMITLINE_APP). With `--queue` also when a
    worker of that queue lacks `LedgerPlugin`, or none polls it.
    """
    from ..operating import console
    from ..operating.doctor import examine, healthy, print_checks

    checks = wait_for(examine(queue, fix=fix))
    if json:
        console.print_data([vars(check) for check in checks])
    else:
        print_checks(checks, console.OUT)
    raise typer.Exit(int(not healthy(checks)))


def migrate(json: AsJson = False) -> None:
    """Bring the database to this version's schema. Safe to repeat."""
    from .. import ledger
    from ..config import Settings
    from ..ledger.sql import migrations
    from ..operating import console

    url = Settings.load().require_database()
    applied = wait_for(ledger.migrate(url, tell=_held_back))
    names = [name for version, name, _ in migrations() if version in applied]
    if json:
        return console.print_data({"applied": names, "schema": migrations()[-1][0]})
    return print("\n".join(f"applied {name}" for name in names) or "nothing to do: up to date")


def _held_back(by: str) -> None:
    from ..operating import console

    console.ERR.print(f"waiting for {by}", markup=False, highlight=False)
