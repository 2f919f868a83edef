"""What commands share: who is at the terminal, and the option for programs."""

from __future__ import annotations

import os
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_call(named: str) -> None:
    """Refuse what cannot be the name of a call.

    Raises:
        BadParameter: It has no position, as an id of a run alone has none.
    """
    run, _, at = named.rpartition(":")
    if not run or not at:
        raise typer.BadParameter(
            f"a call is named as RUN:AT, support-4821:1.0 for example, not {named!r}"
        )


def user() -> str:
    """Return who is at the terminal."""
    # Not getpass.getuser: it raises for a user without a name, as in many containers.
    return os.environ.get("USER") or f"uid {os.getuid()}"
