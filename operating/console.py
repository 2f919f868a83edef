"""What every command prints with: tables that fit 80 columns, and JSON for programs.

What came from a model, a person or a tool is scrubbed and never read as markup: it must not
be able to move the cursor or to colour an operator's screen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..canonical import Json, parse, scrub
from ..errors import UnrepresentableValue

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
    "stands": "yellow",
    "partly": "bold yellow",
}
_UNITS: Final = (("s", 60), ("min", 60), ("h", 24))


def print_data(value: Any) -> None:
    """Print JSON on stdout; ASCII, so any text survives any terminal.

    Times are ISO 8601, durations are seconds.
    """
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def print_listing(
    table: RenderableType, found: Sequence[Any], *, nothing: str, then: str = ""
) -> None:
    """Print a table and what to do next, or that there is nothing."""
    if not found:
        ERR.print(nothing)
        return
    OUT.print(table)
    if then:
        ERR.print(f"\n{then}", style="dim")


def text(value: str, *, limit: int = 100_000) -> Text:
    """Return foreign text, made safe."""
    return Text(scrub(value, limit=limit))


def table_of(*columns: str | tuple[str, Mapping[str, Any]]) -> Table:
    """Return an empty table; a column given with options may wrap, the others do not."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    for column in columns:
        if isinstance(column, str):
            table.add_column(column, no_wrap=True)
        else:
            table.add_column(column[0], **column[1])
    return table


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=_STYLES.get(state, ""))


def pretty(json_text: str) -> Text:
    """Return JSON text, indented and made safe."""
    return text(json.dumps(parse(json_text), indent=2), limit=4_000)


def moment(at: datetime | None) -> str | None:
    """Return a point in time for people, if there is one."""
    return None if at is None else at.isoformat(sep=" ", timespec="milliseconds")


def age(since: timedelta) -> str:
    """Return how long ago something was, in its largest unit."""
    amount = max(since.total_seconds(), 0.0)
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
