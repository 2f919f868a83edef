"""`AgentTool`: an agent that another agent's model may call, as if it were a tool.

Made by `Agent.as_tool`. A call of it is a run of its own, below the run that calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...canonical import parse
from ...errors import InvalidArguments
from ..contract.conversation import ToolDefinition

if TYPE_CHECKING:
    from .agent import Agent

PROMPT: Final = "prompt"
"""The one parameter."""


@dataclass(frozen=True)
class AgentTool:
    """An agent under the name by which another agent's model calls it."""

    agent: Agent
    name: str
    description: str
    summary: str | None = None

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told."""
        parameters: dict[str, Any] = {
            "type": "object",
            "properties": {
                PROMPT: {
                    "type": "string",
                    "description": "What it is asked to do. It sees nothing else.",
                }
            },
            "required": [PROMPT],
            "additionalProperties": False,
        }
        return ToolDefinition(self.name, self.description, parameters)


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
