"""What a run keeps of its agent and its tools; a deploy does not change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ...ledger.records import Effect
from .conversation import Completion, ToolDefinition
from .deadlines import DEFAULTS, CallLimits
from .final_result import output_tool
from .sizes import MAX_CONTENT

RESERVED_PREFIX: Final = "commitline."
"""Of our own activities' names; a tool's name cannot hold a dot."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a run remembers it."""

    definition: ToolDefinition
    effect: Effect
    summary: str | None = None
    tool_seconds: float | None = DEFAULTS["tool_timeout"]
    """One attempt; None is no limit."""
    node_seconds: float | None = DEFAULTS["node_timeout"]
    """The call with its retries; None is no limit."""
    gated: bool = False
    """Whether a person may have to approve it."""
    compensated: bool = False
    """Whether another tool undoes it."""
    agent: str = ""
    """The agent that carries a call of it out, in a run of its own; none where it is empty."""
    structured: bool = False
    """Whether that agent has an ``output_type``."""

    @property
    def limits(self) -> CallLimits:
        """Its deadlines."""
        return CallLimits(self.tool_seconds, self.node_seconds)


@dataclass(frozen=True)
class AgentSpec:
    """An agent as a run remembers it; kept in history."""

    name: str
    model: str
    instructions: str
    tools: list[ToolSpec]
    max_steps: int
    model_tries: int
    heartbeat_seconds: float
    model_seconds: float | None = DEFAULTS["model_timeout"]
    """One model request; None is no limit."""
    node_seconds: float | None = DEFAULTS["node_timeout"]
    """A turn's model request with its retries; None is no limit."""
    deadline_seconds: float | None = None
    """Of the run_deadline, what the run has left as it opens; None is no limit."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of its output, where that is structured."""
    unusable_tries: int = 3
    """Turns in a row that the model may give nothing usable."""
    result_limit: int = MAX_CONTENT
    """Characters of a result that travel; the whole stays in the ledger."""

    @property
    def model_limits(self) -> CallLimits:
        """The deadlines of a model request."""
        return CallLimits(self.model_seconds, self.node_seconds)

    def ends_with(self, completion: Completion) -> bool:
        """Whether a completion is the answer, rather than one more turn."""
        if self.output_schema is not None:
            return completion.output is not None
        return not completion.calls

    @property
    def may_undo(self) -> bool:
        """Whether anything that such a run does can be taken back."""
        return any(tool.compensated or tool.agent for tool in self.tools)

    @property
    def definitions(self) -> list[ToolDefinition]:
        """What the model is told that it may call."""
        tools = [found.definition for found in self.tools]
        return tools if self.output_schema is None else [*tools, output_tool(self.output_schema)]
