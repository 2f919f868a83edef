"""What commands share: who is at the terminal, and the option for programs."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")

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


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; return its result."""
    import asyncio  # not before: that is a quarter of the time of `--help`

    return asyncio.run(work)
