"""What passes between a run and the activities by which it begins, and ends, a sub-agent's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...canonical import parse
from ...errors import InvalidArguments
from ...identity import Position, RunKey, sub_run_key

BEGIN_SUB_AGENT: Final = "commitline.begin_sub_agent"
END_SUB_AGENT: Final = "commitline.end_sub_agent"


@dataclass(frozen=True)
class BeginSubAgent:
    """A call that a sub-agent is to carry out."""

    run_key: RunKey
    """The run that calls."""
    position: Position
    agent: str
    input_digest: str

    @property
    def sub_run(self) -> RunKey:
        """The sub-agent's run."""
        return sub_run_key(self.run_key, self.position)


@dataclass(frozen=True)
class BegunSubAgent:
    """The sub-agent's run is registered; no other workflow acts for it."""

    workflow_id: str
    """By which it is to be started."""
    closed: bool = False
    """It is not to be started: it gave no answer before, for good."""


@dataclass(frozen=True)
class EndSubAgent:
    """A sub-agent that gave no answer."""

    run_key: RunKey
    """The run that called it."""
    position: Position
    reason: str

    @property
    def sub_run(self) -> RunKey:
        """The sub-agent's run."""
        return sub_run_key(self.run_key, self.position)


PROMPT: Final = "prompt"
"""The one parameter."""


def prompt_in(tool: str, arguments: str) -> str:
    """Return the prompt of a call (JSON text of its arguments).

    Raises:
        InvalidArguments: There is none, or more than that.
    """
    given = parse(arguments)
    prompt = given.get(PROMPT) if isinstance(given, dict) else None
    if not isinstance(prompt, str) or not prompt.strip() or len(given) != 1:
        raise InvalidArguments(f"{tool}: it takes one argument, {PROMPT!r}, a text that says what")
    return prompt
