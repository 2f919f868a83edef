"""`Agent`: a model, its instructions and its tools; and `AgentTool`, an agent as a tool.

A run reads its agent's spec once, when it starts, and keeps it in its history. A deploy changes
the code of a tool, but not the rules of a run that has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import DefinitionError
from ...ledger.action_records import Effect
from ...logs import Log
from ..contract.conversation import ToolDefinition
from ..contract.deadlines import UNSET, Deadline, RunLimits, resolve
from ..contract.final_result import FINAL_RESULT
from ..contract.local_activity import LONGEST_LOCAL, is_short
from ..contract.sizes import MAX_CONTENT
from ..contract.spec import AgentSpec, ToolSpec
from ..contract.sub_agents import PROMPT
from ..model.model import Model
from .action_state_tool import ACTION_STATE, action_state
from .output_type import OutputType
from .state import State
from .state_model import check_state_model
from .tool import Tool
from .tool_check import TOOL_NAME
from .tool_spec import tool_spec

log = Log()


@dataclass(frozen=True)
class Agent:
    """A model, its instructions and the tools that it may call.

    Raises:
        DefinitionError: It cannot work as declared.
    """

    name: str
    """By which `AgentClient.start` starts a run of it; unique in the app."""
    model: str | Model
    """``"openai:gpt-5-mini"`` and the like (extra ``models``), or a `Model`."""
    instructions: str
    """The system prompt."""
    tools: Sequence[Tool | AgentTool] = ()
    """Functions under `tool`, and other agents (`as_tool`)."""
    output_type: Any = None
    """The type of the answer: a pydantic model, a dataclass, or any type that pydantic can check.
    The model hands the answer in by a tool of its own (``final_result``), and it is validated
    before the run ends. None: the answer is text."""
    max_steps: int = 500
    """Model turns at most for one request. After that the run fails; its actions are undone where
    a tool undoes them, and stand otherwise."""
    model_tries: int = 5
    """Model requests at most for one completion. Counted are 408, 409, 429, 5xx, connection errors
    and requests past ``model_timeout``."""
    unusable_tries: int = 3
    """How many turns in a row the model may give nothing usable (calls that were cut off or
    malformed, an output that does not fit) before the run fails."""
    tool_timeout: Deadline = UNSET
    """Seconds, or a ``timedelta``, for one attempt of a tool that sets none; 300 by default. None,
    zero and less are no limit, here and below."""
    node_timeout: Deadline = UNSET
    """For a model request, and for a tool call, each with its retries; 900 by default."""
    model_timeout: Deadline = UNSET
    """For one model request; 600 by default."""
    run_deadline: Deadline = UNSET
    """For a whole run; no limit by default."""
    local: bool = False
    """True: its model requests are made by the worker that has the run's workflow, as Temporal
    *local* activities, without a round trip through the server. For models that answer soon: it
    needs a ``model_timeout`` of 30 s at most. A tool says for itself whether it is ``local``."""
    state: type[State] | None = None
    """What its tools share in a conversation: a `State` whose fields all have defaults. A tool
    with a parameter of this type gets a copy of its own. None: they share nothing."""
    output: OutputType | None = field(init=False, repr=False, default=None)
    """Checks an answer; None if the agent has no ``output_type``."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not self.name.strip():
            raise DefinitionError("an agent needs a name")
        if min(self.max_steps, self.model_tries, self.unusable_tries) < 1:
            raise DefinitionError(
                f"the agent {self.name!r}: max_steps, model_tries and unusable_tries start at 1"
            )
        if self.local and not is_short(resolve("model_timeout", self.model_timeout)):
            raise DefinitionError(
                f"the agent {self.name!r} is local: give it a model_timeout of "
                f"{LONGEST_LOCAL:g} s at most"
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
        """Whether a run of it may go on before an action of it is done."""
        return any(isinstance(made, Tool) and made.detached for made in self.tools)

    def as_tool(
        self, *, description: str, name: str | None = None, summary: str | None = None
    ) -> AgentTool:
        """Let another agent's model call this one, in a run of its own, with a prompt.

        Args:
            description: What the other model reads of it: what it can do.
            name: By which the other model calls it; None is the agent's name.
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
        """The agents among its tools."""
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
            limits: The deadlines that the run was started with, or the run that called it.
            result_limit: The worker's setting.
        """
        for tool_name in sorted(set(limits.tool_timeouts) - self.tool_names):
            log.warning("limits.tool_unknown", tool=tool_name[:64], agent=self.name)
        model_seconds = resolve("model_timeout", limits.model_timeout, self.model_timeout)
        return AgentSpec(
            name=self.name,
            model=self.model_name,
            instructions=self.instructions,
            tools=[self._tool_spec(made, limits) for made in self._offered],
            max_steps=self.max_steps,
            model_tries=self.model_tries,
            heartbeat_seconds=heartbeat_seconds,
            model_seconds=model_seconds,
            node_seconds=resolve("node_timeout", limits.node_timeout, self.node_timeout),
            deadline_seconds=resolve("run_deadline", limits.run_deadline, self.run_deadline),
            output_schema=None if self.output is None else self.output.schema,
            unusable_tries=self.unusable_tries,
            result_limit=result_limit,
            local=self.local and is_short(model_seconds),
        )

    @property
    def tool_names(self) -> set[str]:
        """The names of its tools, and of the tools of the agents below it."""
        names = {made.name for made in self.tools}
        return names.union(*(agent.tool_names for agent in self.below))

    @property
    def _offered(self) -> Sequence[Tool | AgentTool]:
        return (*self.tools, action_state) if self.detaches else self.tools

    def _tool_spec(self, made: Tool | AgentTool, limits: RunLimits) -> ToolSpec:
        if isinstance(made, AgentTool):
            return ToolSpec(
                made.definition,
                Effect.READ,  # the actions of its run have rows of their own
                made.summary,
                agent=made.agent.name,
                structured=made.agent.output is not None,
            )
        return tool_spec(made, limits, self.tool_timeout, self.node_timeout)


@dataclass(frozen=True)
class AgentTool:
    """An agent as a tool of another agent; made by `Agent.as_tool`."""

    agent: Agent
    """The agent that carries a call out, in a run of its own."""
    name: str
    """By which the other agent's model calls it."""
    description: str
    """What that model reads of it."""
    summary: str | None = None
    """What a call does in business words, with ``{prompt}`` in braces; None: the Temporal UI shows
    the name."""

    @property
    def definition(self) -> ToolDefinition:
        """What the model reads of it."""
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
