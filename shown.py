"""Text from outside as it is shown: by a model, a tool, a person, an application.

One function for each place. None of them is for what is kept or sent: they change what was said.

    one_line        a name, arguments, a message within a line of ours, on a terminal or in a log
    markdown_line   the same where Temporal's UI reads Markdown: summaries, and a run's details
    block           text of several lines among lines of ours, on a terminal

`canonical.scrub` is for a message that stands alone.
"""

from __future__ import annotations

import re
from typing import Final

from .canonical import scrub

_LOOK_ALIKES: Final = str.maketrans({"<": "‹", "`": "'", "*": "∗", "|": "¦", "~": "∼"})  # noqa: RUF001
"""What begins HTML, code, emphasis or another cell of a table. An escape would not do: it shows
wherever Markdown is not read, and a table reads some of them anew."""
_LINK: Final = re.compile(r"\](?=[(\[:])")
_ADDRESS: Final = re.compile(r"(?<=:)//|(?<=[Ww]{3})\.")
_EMPHASIS: Final = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")


def one_line(text: str, *, limit: int = 500) -> str:
    """Return a text as one line that no terminal obeys: it cannot begin a line of its own."""
    return scrub(text, limit=limit).replace("\n", " ").replace("\t", " ")


def markdown_line(text: str, *, limit: int = 150) -> str:
    """Return a text as one line that Markdown shows as it is: no link, image, HTML or emphasis."""
    line = one_line(text, limit=limit).translate(_LOOK_ALIKES)
    line = _EMPHASIS.sub(lambda found: "＿" * len(found[0]), line)  # noqa: RUF001
    line = _ADDRESS.sub(lambda found: f" {found[0]}", _LINK.sub("] ", line))
    # Temporal counts a summary's bytes, and refuses the command of one that is too long.
    return line.encode()[: limit * 5 // 2].decode("utf-8", "ignore")


def block(text: str, *, limit: int = 100_000, indent: str = "  ") -> str:
    """Return a text of several lines, indented: none of them looks like one of ours."""
    return "\n".join(indent + line for line in scrub(text, limit=limit).split("\n"))
