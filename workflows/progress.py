"""The progress of a run, for people: in its `status` query and in the Temporal UI."""

from __future__ import annotations

import shlex
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
    "rejected",
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
    "rejected": "not done",
    "accepted": "accepted: the relay carries it out",
    "unknown": "**unknown: a person must settle it**",
}

_IN_SHORT: Final[dict[CallState, str]] = {
    "existing": "done before",
    "happened": "done without a result",
    "error": "not done: error",
    "accepted": "accepted",
    "rejected": "rejected",
    "unknown": "unknown",
}
"""How a call ended, in the row of what follows it. What is done is counted only."""
_MOST_NAMED: Final = 3

_NEXT: Final[dict[CallState, str]] = {
    "awaiting_approval": "`commitline approve {at}` or `commitline reject {at}`",
    "awaiting_answer": "`commitline answer {at}`",
    "unknown": "`commitline actions show {at}` says what stands by now; "
    "`commitline actions settle {at}` with what a person has found out",
}
"""What a person does about a call that waits."""


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
    why: str = ""
    """Who rejected it, and why."""

    @property
    def words(self) -> str:
        """The state in words, with the question."""
        words, more = _MARKS[self.state], self.question or self.why
        return f"{words}: {_cell(more)}" if more else words


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

    @property
    def begun(self) -> int:
        """How many calls have begun."""
        return self.earlier + len(self.calls)

    def begin(self, position: str, summary: str) -> CallProgress:
        """Add a call that begins."""
        call = CallProgress(position, summary, "running")
        self.calls.append(call)
        if len(self.calls) > _KEPT:
            # A run may have thousands; the ledger has them all. A person looks for the unknown.
            settled = (at for at, one in enumerate(self.calls) if one.state != "unknown")
            del self.calls[next(settled, 0)]
            self.earlier += 1
        return call

    def outcomes(self, *, latest: int | None = None) -> str:
        """Say in short how calls ended, those first that did not go well; empty if none did.

        Args:
            latest: So many of the latest calls; None: all of them.
        """
        calls = self.calls if latest is None else self.calls[len(self.calls) - latest :]
        notable = [one for one in calls if one.state in _IN_SHORT]
        notable.sort(key=lambda one: one.state != "unknown")
        told = [f"{one.position} {_IN_SHORT[one.state]}" for one in notable[:_MOST_NAMED]]
        if more := len(notable) - _MOST_NAMED:
            told += [f"{more} more"] if more > 0 else []
        if done := sum(one.state == "ok" for one in calls):
            told.append(f"{done} done")
        return ", ".join(told)

    def open_ends(self) -> str:
        """Say which calls are unknown; empty if none is."""
        unknown = [one.position for one in self.calls if one.state == "unknown"]
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        return f"unknown: {', '.join(unknown[:_MOST_NAMED])}{more}" if unknown else ""

    def markdown(self, run: str = "") -> str:
        """Return the details that the UI shows.

        Args:
            run: The workflow id, by which commands name the run; empty where none is named.
        """
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
        return "\n".join([*lines, *self._next_commands(run)])

    def _next_commands(self, run: str) -> list[str]:
        """Return what a person does now, for the calls that wait for one."""
        name = run.translate(_IN_CODE)
        waiting = [one for one in self.calls if one.state in _NEXT] if run else []
        commands = [
            _NEXT[one.state].format(at=shlex.quote(f"{name}:{one.position}")) for one in waiting
        ]
        if run and self.state == "partly compensated":
            commands.append(f"`commitline undo {shlex.quote(name)}` tries again what stands")
        return ["", *(f"- {one}" for one in commands[:_MOST_NAMED])] if commands else []


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
