"""`Listing`: a list for people, in which no id and no JSON is broken.

As a table where that fits, as into a file or another program it always does. Where it is too wide
for the terminal, each row is a block: its first column and its long ones have lines of their own,
which the terminal may wrap without a break that would be copied.

    run              at   state            support-4821
    support-4821     0.1  ok                 0.1  ok
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

_GAP: Final = "  "


class Listing:
    """Rows under named columns.

    Args:
        columns: Their names, in order; the first one names the row.
        long: Of those, the ones whose values may be long.
    """

    def __init__(self, *columns: str, long: Collection[str] = ()) -> None:
        self._columns = columns
        self._long = [name in long for name in columns]
        self._rows: list[list[Text]] = []

    def add_row(self, *values: Text | str) -> None:
        """Add a row; a value that is no text is made one."""
        self._rows.append([Text(one) if isinstance(one, str) else one for one in values])

    def print(self, console: Console) -> None:
        """Print all rows."""
        widths = [max(row[at].cell_len for row in self._lines()) for at in range(len(self._long))]
        width = sum(widths) + len(_GAP) * (len(widths) - 1)
        many_lines = any("\n" in one.plain for row in self._rows for one in row)
        if not many_lines and (_is_endless(console) or width <= console.width):
            for row in self._lines():
                console.print(_joined(row, widths), soft_wrap=True)
            return
        for number, row in enumerate(self._lines()):
            if number > 1:
                console.print()
            self._print_block(console, row, widths)

    def _lines(self) -> Sequence[list[Text]]:
        return [[Text(name, style="bold") for name in self._columns], *self._rows]

    def _print_block(self, console: Console, row: Sequence[Text], widths: Sequence[int]) -> None:
        inner = range(1, len(row))
        short = [at for at in inner if not self._long[at]]
        below = [row[at] for at in inner if self._long[at]]
        beside = _joined([row[at] for at in short], [widths[at] for at in short])
        console.print(row[0], soft_wrap=True)
        for lines in ([beside] if short else []) + below:
            for line in lines.split("\n", allow_blank=True):
                console.print(Text(_GAP).append_text(line), soft_wrap=True)


def _joined(row: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text()
    for value, width in zip(row, widths, strict=True):
        line.append_text(value)
        line.append(" " * (width - value.cell_len) + _GAP)
    line.rstrip()
    return line


def _is_endless(console: Console) -> bool:
    """Whether nobody looks at the lines in a window: a file, or another program, takes them."""
    return not console.is_terminal and "COLUMNS" not in os.environ
