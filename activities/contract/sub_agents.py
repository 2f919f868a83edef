"""What passes between a run and the activities that begin and end the run of a sub-agent."""

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
    """From a run to `BEGIN_SUB_AGENT`: begin the run of the sub-agent that carries a call out."""

    run_key: RunKey
    """The calling run."""
    position: Position
    """The place of the call in that run."""
    agent: str
    """The sub-agent."""
    input_digest: str
    """Of the input of its run."""

    @property
    def sub_run(self) -> RunKey:
        """The sub-agent's run."""
        return sub_run_key(self.run_key, self.position)


@dataclass(frozen=True)
class BegunSubAgent:
    """From `BEGIN_SUB_AGENT` to the run: the sub-agent's run is registered, for one workflow."""

    workflow_id: str
    """The id with which the parent starts the child workflow."""
    closed: bool = False
    """The child must not start: the run was closed without an answer."""


@dataclass(frozen=True)
class EndSubAgent:
    """From a run to `END_SUB_AGENT`: the sub-agent gave no answer, so its run ends."""

    run_key: RunKey
    """The calling run."""
    position: Position
    """The place of the call in that run."""
    reason: str
    """Why, for the model and for people."""

    @property
    def sub_run(self) -> RunKey:
        """The sub-agent's run."""
        return sub_run_key(self.run_key, self.position)


PROMPT: Final = "prompt"
"""The one parameter of a sub-agent's tool."""


def prompt_in(tool: str, arguments: str) -> str:
    """Return the prompt of a call (JSON text of its arguments).

    Raises:
        InvalidArguments: The prompt is missing or empty, or there are other arguments.
    """
    given = parse(arguments)
    prompt = given.get(PROMPT) if isinstance(given, dict) else None
    if not isinstance(prompt, str) or not prompt.strip() or len(given) != 1:
        raise InvalidArguments(f"{tool}: it takes one argument, {PROMPT!r}, a text that says what")
    return prompt
