"""`Agent`: a model, its instructions and its tools; and `AgentTool`, an agent as a tool.

A run reads its agent's spec once, when it starts, and keeps it in history: a deploy changes
the code of a tool, not the rules of a run that is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from ...errors import DefinitionError
from ...ledger.records import Effect
from ..contract.conversation import ToolDefinition
from ..contract.deadlines import UNSET, RunLimits, resolve
from ..contract.final_result import FINAL_RESULT
from ..contract.sizes import MAX_CONTENT
from ..contract.spec import AgentSpec, ToolSpec
from ..contract.sub_agents import PROMPT
from ..model.model import Model
from .action_state import ACTION_STATE, action_state
from .output_type import OutputType
from .state import State
from .state_model import check_state_model
from .tool import TOOL_NAME, Tool
from .tool_spec import tool_spec

log = structlog.get_logger("commitline")


@dataclass(frozen=True)
class Agent:
    """A model, its instructions and the tools that it may call.

    Args:
        name: What `AgentClient.start` asks for; unique in the app.
        model: ``"openai:gpt-5-mini"`` and the like (extra ``models``), or a `Model`.
        instructions: The system prompt.
        tools: Functions under `tool`, and other agents (`as_tool`).
        output_type: What it answers with, if not text: a pydantic model, a dataclass, or any
            type that pydantic can check. The model hands it in by a tool of its own
            (``final_result``), and it is validated before the run ends.
        unusable_tries: How many turns in a row the model may give nothing usable (calls that
            were cut off or malformed, an output that does not fit) before the run fails.
        max_steps: Model turns at most for one request; then the run fails, and what it did
            is undone where its tools say how, and stands otherwise.
        model_tries: Requests at most for one completion, over 408, 409, 429, 5xx and
            connection errors and requests past ``model_timeout``.
        tool_timeout: Seconds, or a ``timedelta``, for one attempt of a tool that sets none;
            300 by default. None, zero and less are no limit, here and below.
        node_timeout: For a model request, and for a tool call, each with its retries; 900.
        model_timeout: For one model request; 600.
        run_deadline: For a whole run; none by default.
        state: What its tools share in a conversation: a `State` whose fields all have
            defaults. A tool with a parameter of this type gets a copy of its own.

    Raises:
        DefinitionError: It cannot work as declared.
    """

    name: str
    model: str | Model
    instructions: str
    tools: Sequence[Tool | AgentTool] = ()
    output_type: Any = None
    max_steps: int = 500
    model_tries: int = 5
    unusable_tries: int = 3
    tool_timeout: Any = UNSET
    node_timeout: Any = UNSET
    model_timeout: Any = UNSET
    run_deadline: Any = UNSET
    state: type[State] | None = None
    output: OutputType | None = field(init=False, repr=False, default=None)
    """How an answer is checked, where the agent has an ``output_type``."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not self.name.strip():
            raise DefinitionError("an agent needs a name")
        if min(self.max_steps, self.model_tries, self.unusable_tries) < 1:
            raise DefinitionError(
                f"the agent {self.name!r}: max_steps, model_tries and unusable_tries start at 1"
            )
        if self.output_type is not None:
            object.__setattr__(self, "output", OutputType(self.output_type))
        for made in self.tools:
            if not isinstance(made, Tool | AgentTool):
                raise DefinitionError(
                    f"the agent {self.name!r}: {made!r} is no tool; put @tool(effect=…) above it"
                )
        self._check_state()
        names = [made.name for made in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DefinitionError(f"the agent {self.name!r} has two tools named {twice[0]!r}")
        if self.output is not None and FINAL_RESULT in names:
            raise DefinitionError(
                f"the agent {self.name!r} has an output_type, whose tool is {FINAL_RESULT!r}"
            )
        if self.detaches and ACTION_STATE in names:
            raise DefinitionError(
                f"the agent {self.name!r} has a detached tool, about which is asked by "
                f"{ACTION_STATE!r}: give its own tool of that name another"
            )

    @property
    def detaches(self) -> bool:
        """Whether it may go on before what it did is done."""
        return any(isinstance(made, Tool) and made.detached for made in self.tools)

    def as_tool(
        self, *, description: str, name: str | None = None, summary: str | None = None
    ) -> AgentTool:
        """Let another agent's model call this one, in a run of its own, with a prompt.

        Args:
            description: What the other model is told of it: what to ask it for.
            name: By which it is called; the agent's name by default.
            summary: What a call does in business words, with ``{prompt}`` in braces.

        Raises:
            DefinitionError: It has no description, or a name that no provider accepts.
        """
        named = name or self.name
        if not TOOL_NAME.fullmatch(named):
            raise DefinitionError(
                f"the agent {self.name!r} needs a name as a tool, of 1 to 64 letters, digits, "
                "'_' or '-': as_tool(name=…)"
            )
        if not description.strip():
            raise DefinitionError(f"the agent {self.name!r} needs a description as a tool")
        return AgentTool(self, named, description, summary)

    @property
    def below(self) -> Sequence[Agent]:
        """The agents that its tools are."""
        return [made.agent for made in self.tools if isinstance(made, AgentTool)]

    def _check_state(self) -> None:
        if self.state is not None:
            check_state_model(self.state, f"the agent {self.name!r}")
        for made in self.tools:
            if isinstance(made, Tool) and made.state not in (None, self.state):
                has = "none" if self.state is None else f"{self.state.__name__}"
                raise DefinitionError(
                    f"the tool {made.name!r} takes the state {made.state.__name__}, "
                    f"and the agent {self.name!r} has {has}"
                )

    @property
    def model_name(self) -> str:
        """The model's name, as the run's spec keeps it."""
        return self.model if isinstance(self.model, str) else self.model.name

    def spec(
        self, *, heartbeat_seconds: float, limits: RunLimits, result_limit: int = MAX_CONTENT
    ) -> AgentSpec:
        """Return what a run that begins now keeps of this agent.

        Args:
            heartbeat_seconds: The worker's setting.
            limits: What the run was started with, or the one that called it.
            result_limit: The worker's setting.
        """
        for tool_name in sorted(set(limits.tool_timeouts) - self.tool_names):
            log.warning("limits.tool_unknown", tool=tool_name[:64], agent=self.name)
        return AgentSpec(
            name=self.name,
            model=self.model_name,
            instructions=self.instructions,
            tools=[self._tool_spec(made, limits) for made in self._offered],
            max_steps=self.max_steps,
            model_tries=self.model_tries,
            heartbeat_seconds=heartbeat_seconds,
            model_seconds=resolve("model_timeout", limits.model_timeout, self.model_timeout),
            node_seconds=resolve("node_timeout", limits.node_timeout, self.node_timeout),
            deadline_seconds=resolve("run_deadline", limits.run_deadline, self.run_deadline),
            output_schema=None if self.output is None else self.output.schema,
            unusable_tries=self.unusable_tries,
            result_limit=result_limit,
        )

    @property
    def tool_names(self) -> set[str]:
        """Of its tools, and of those of the agents below it."""
        names = {made.name for made in self.tools}
        return names.union(*(agent.tool_names for agent in self.below))

    @property
    def _offered(self) -> Sequence[Tool | AgentTool]:
        return (*self.tools, action_state) if self.detaches else self.tools

    def _tool_spec(self, made: Tool | AgentTool, limits: RunLimits) -> ToolSpec:
        if isinstance(made, AgentTool):
            return ToolSpec(
                made.definition,
                Effect.READ,  # by itself; what the agent's tools do has rows of its own
                made.summary,
                agent=made.agent.name,
                structured=made.agent.output is not None,
            )
        return tool_spec(made, limits, self.tool_timeout, self.node_timeout)


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
