"""The progress of a run, for people: in its `status` query and in the Temporal UI."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

from ..activities.contract.conversation import Usage
from ..shown import markdown_line

CallState = Literal[
    "awaiting_approval",
    "awaiting_answer",
    "running",
    "ok",
    "existing",
    "happened",
    "error",
    "accepted",
    "undone",
    "unknown",
]

_SHOWN: Final = 25
_KEPT: Final = 600
_MARKS: Final[dict[CallState, str]] = {
    "awaiting_approval": "**waits for a person to approve it**",
    "awaiting_answer": "**waits for an answer**",
    "running": "running",
    "ok": "done",
    "undone": "done, and undone since",
    "existing": "already done, by another action",
    "happened": "done, but its result could not be kept",
    "error": "not done: error",
    "accepted": "accepted: the relay carries it out",
    "unknown": "**unknown: a person must settle it**",
}


_IN_CODE: Final = str.maketrans("`|\n", "'¦ ")
"""What would end the code, or the cell, in which an id stands."""


@dataclass
class CallProgress:
    """The progress of one call."""

    position: str
    summary: str
    state: CallState
    workflow_id: str = ""
    """The workflow of the sub-agent that carries it out."""
    question: str = ""
    """The question that a person must answer, while the call waits for it."""

    @property
    def words(self) -> str:
        """The state in words, with the question."""
        words = _MARKS[self.state]
        return f"{words}: {_cell(self.question)}" if self.question else words


@dataclass
class Progress:
    """The progress of a run."""

    agent: str
    prompt: str
    model: str = ""
    state: str = "starting"
    steps: int = 0
    calls: list[CallProgress] = field(default_factory=list)
    """The latest calls."""
    earlier: int = 0
    """How many calls there were before them."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of the run so far."""

    def begin(self, position: str, summary: str) -> CallProgress:
        """Add a call that begins."""
        call = CallProgress(position, summary, "running")
        self.calls.append(call)
        if len(self.calls) > _KEPT:
            # A run may have thousands; the ledger has them all.
            del self.calls[0]
            self.earlier += 1
        return call

    def markdown(self) -> str:
        """Return the details that the UI shows."""
        model = f" ({_cell(self.model)})" if self.model else ""
        lines = [
            f"**{_cell(self.agent)}**{model}: {_cell(self.state)}",
            "",
            f"> {_cell(self.prompt)}",
        ]
        if self.calls:
            hidden = self.earlier + len(self.calls) - _SHOWN
            lines += ["", "| position | action | state |", "| --- | --- | --- |"]
            if hidden > 0:
                lines.append(f"| … | {hidden} earlier calls | |")
            lines += [
                f"| {call.position} | {_action(call)} | {call.words} |"
                for call in self.calls[-_SHOWN:]
            ]
        return "\n".join(lines)


def summarise(tool: str, template: str | None, arguments: dict[str, Any]) -> str:
    """Return a line that says what a call does: the tool's summary, or its name and arguments."""
    if template is not None:
        parts = string.Formatter().parse(template)
        words = (text + (_argument(arguments, name) if name else "") for text, name, *_ in parts)
        return markdown_line("".join(words))
    given = " ".join(f"{name}={_value(value)}" for name, value in arguments.items())
    return markdown_line(f"{tool} {given}".strip())


def _action(call: CallProgress) -> str:
    if not call.workflow_id:
        return _cell(call.summary)
    # The id is not cut: people find the run by it.
    return f"{_cell(call.summary)} (sub-agent: `{call.workflow_id.translate(_IN_CODE)}`)"


def _argument(arguments: dict[str, Any], name: str) -> str:
    return _value(arguments[name]) if name in arguments else "(default)"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


@lru_cache(maxsize=4096)
def _cell(text: str) -> str:
    """Return the text as it stands in the details: they are Markdown, with a table in it.

    A call's text is shown again whenever the next calls change, so it is made once.
    """
    return markdown_line(text, limit=200)
