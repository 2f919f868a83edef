"""What every command prints with: lists and texts for people, and JSON for programs.

What came from a model, a person or a tool is scrubbed and never read as markup: it must not
be able to move the cursor or to colour an operator's screen.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from ..canonical import Json, parse, scrub
from ..errors import UnrepresentableValue
from ..shown import one_line
from .listing import Listing

OUT: Final = Console(highlight=False)
"""Standard output: what the command was called for."""
ERR: Final = Console(stderr=True, highlight=False)
"""Standard error: what to do next, and what is under way."""
_STYLES: Final = {
    "ok": "green",
    "completed": "green",
    "running": "cyan",
    "dispatched": "cyan",
    "unknown": "bold yellow",
    "missing": "yellow",
    "wrong": "red",
    "error": "red",
    "failed": "red",
    "undone": "green",
    "receipt": "green",
    "stands": "yellow",
    "partly": "bold yellow",
    "gone": "yellow",
}
_PATIENCE: Final = 10.0
"""Seconds after which a command says what it waits for."""
_UNITS: Final = (("s", 60), ("min", 60), ("h", 24))


def print_data(value: Any) -> None:
    """Print JSON on stdout; ASCII, so any text survives any terminal.

    Times are ISO 8601, durations are seconds.
    """
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def print_listing(listing: Listing, found: Sequence[Any], *, nothing: str, then: str = "") -> None:
    """Print a list and what to do next, or that there is nothing."""
    if not found:
        ERR.print(nothing)
        return
    listing.print(OUT)
    if then:
        ERR.print(f"\n{then}", style="dim")


@contextmanager
def waiting(doing: str, needs: str) -> Iterator[None]:
    """Show what is under way while the body waits; where that takes long, what it needs, too."""
    told = asyncio.get_running_loop().call_later(
        _PATIENCE, lambda: ERR.print(needs, style="dim", markup=False, soft_wrap=True)
    )
    try:
        with ERR.status(line(doing)):
            yield
    finally:
        told.cancel()


def text(value: str, *, limit: int = 100_000) -> Text:
    """Return foreign text of several lines, which stands alone, made safe."""
    return Text(scrub(value, limit=limit))


def line(value: str, *, limit: int = 100_000) -> Text:
    """Return foreign text as one line, for a list, or within a line of ours."""
    return Text(one_line(value, limit=limit))


def say(value: str) -> None:
    """Print one line on stdout, with foreign names in it."""
    OUT.print(line(value), soft_wrap=True)


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=_STYLES.get(state, ""))


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Print named facts, a line each and no value broken; not those that are None."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        if value is not None:
            shown = state_text(value) if name == "state" else line(value)
            OUT.print(Text.assemble((f"{name:{width}}  ", "dim"), shown), soft_wrap=True)


def print_json(name: str, json_text: str) -> None:
    """Print JSON text under its name, indented and made safe."""
    OUT.print(Text(name, style="dim"))
    OUT.print(text(json.dumps(parse(json_text), indent=2), limit=4_000), soft_wrap=True)


def moment(at: datetime | None) -> str | None:
    """Return a point in time for people, if there is one."""
    return None if at is None else at.isoformat(sep=" ", timespec="milliseconds")


def age(since: timedelta) -> str:
    """Return how long ago something was, in its largest unit."""
    return age_of_seconds(since.total_seconds())


def age_of_seconds(seconds: float) -> str:
    """Return the same of seconds."""
    amount = max(seconds, 0.0)
    for unit, size in _UNITS:
        if amount < size:
            return f"{amount:.0f} {unit}"
        amount /= size
    return f"{amount:.0f} d"


def as_json(typed: str) -> Json:
    """Return what a person typed: the value where it is JSON, else the text itself."""
    try:
        return parse(typed)
    except UnrepresentableValue:
        return typed


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, timedelta) else str(value)
