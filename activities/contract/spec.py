"""Specs: what a run keeps of its agent and its tools. A deploy does not change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ...ledger.action_records import Effect
from .conversation import Completion, ToolDefinition
from .deadlines import DEFAULTS, CallLimits
from .final_result import output_tool
from .sizes import MAX_CONTENT

RESERVED_PREFIX: Final = "commitline."
"""Of the names of our own activities. The name of a tool cannot hold a dot."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a run remembers it."""

    definition: ToolDefinition
    """What the model reads of it."""
    effect: Effect
    """What repeating a call would do."""
    summary: str | None = None
    """What a call does in business words, with parameters in braces; None: its name."""
    tool_seconds: float | None = DEFAULTS["tool_timeout"]
    """Seconds for one attempt; None is no limit."""
    node_seconds: float | None = DEFAULTS["node_timeout"]
    """Seconds for the call with its retries; None is no limit."""
    gated: bool = False
    """Whether a person may have to approve a call."""
    compensated: bool = False
    """Whether another tool undoes a call."""
    agent: str = ""
    """The agent that carries a call out, in a run of its own; empty: it is a tool of code."""
    structured: bool = False
    """Whether that agent has an ``output_type``."""
    local: bool = False
    """Whether a call is tried as a local activity first."""

    @property
    def limits(self) -> CallLimits:
        """The deadlines of a call."""
        return CallLimits(self.tool_seconds, self.node_seconds)


@dataclass(frozen=True)
class AgentSpec:
    """An agent as a run remembers it. It is kept in the run's history."""

    name: str
    """The name of the agent."""
    model: str
    """The name of the model."""
    instructions: str
    """The system prompt."""
    tools: list[ToolSpec]
    """The tools that the model may call."""
    max_steps: int
    """Model turns at most for one request."""
    model_tries: int
    """Model requests at most for one completion."""
    heartbeat_seconds: float
    """How often an activity must heartbeat, at least."""
    model_seconds: float | None = DEFAULTS["model_timeout"]
    """Seconds for one model request; None is no limit."""
    node_seconds: float | None = DEFAULTS["node_timeout"]
    """Seconds for a model request with its retries; None is no limit."""
    deadline_seconds: float | None = None
    """What is left of the ``run_deadline`` when the run opens, in seconds; None is no limit."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of its structured output; None if it answers with text."""
    unusable_tries: int = 3
    """How many turns in a row the model may give nothing usable."""
    result_limit: int = MAX_CONTENT
    """Characters of a result that travel; the ledger keeps the whole."""
    local: bool = False
    """Whether a model turn is tried as a local activity first."""
    listed: bool = False
    """Whether the server had the search attributes when the run was opened."""

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
        """Whether a run of this agent may have actions that can be undone."""
        return any(tool.compensated or tool.agent for tool in self.tools)

    @property
    def definitions(self) -> list[ToolDefinition]:
        """The tools that the model may call, as it reads them."""
        tools = [found.definition for found in self.tools]
        return tools if self.output_schema is None else [*tools, output_tool(self.output_schema)]
