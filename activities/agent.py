"""`Agent` and `App`: what an application declares, and the spec that a run keeps of it.

A run reads its agent's spec once, when it starts, and keeps it in history: a deploy changes
the code of a tool, not the rules of a run that is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..errors import ConfigurationError, DefinitionError
from ..ledger.actions import Effect
from .conversation import ToolDefinition
from .model import Model
from .pydantic_ai_model import resolve_model
from .tool import Tool

RESERVED_PREFIX: Final = "commitline."
"""Of our own activities' names; a tool's name cannot hold a dot."""


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a run remembers it."""

    definition: ToolDefinition
    effect: Effect
    summary: str | None = None


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


@dataclass(frozen=True)
class Agent:
    """A model, its instructions and the tools that it may call.

    Args:
        name: What `AgentClient.start` asks for; unique in the app.
        model: ``"openai:gpt-5-mini"`` and the like (extra ``models``), or a `Model`.
        instructions: The system prompt.
        tools: Functions under `tool`.
        output_type: Reserved for structured output; only None is accepted today.
        max_steps: Model turns at most; then the run fails, and what it did stands.
        model_tries: Requests at most for one completion, over 408, 409, 429, 5xx and
            connection errors.

    Raises:
        DefinitionError: It cannot work as declared.
    """

    name: str
    model: str | Model
    instructions: str
    tools: Sequence[Tool] = ()
    output_type: None = None
    max_steps: int = 50
    model_tries: int = 5

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not self.name.strip():
            raise DefinitionError("an agent needs a name")
        if self.output_type is not None:
            raise DefinitionError(f"the agent {self.name!r}: output_type is not supported yet")
        if self.max_steps < 1 or self.model_tries < 1:
            raise DefinitionError(f"the agent {self.name!r}: max_steps and model_tries start at 1")
        for made in self.tools:
            if not isinstance(made, Tool):
                raise DefinitionError(
                    f"the agent {self.name!r}: {made!r} is no tool; put @tool(effect=…) above it"
                )
        names = [made.name for made in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DefinitionError(f"the agent {self.name!r} has two tools named {twice[0]!r}")

    @property
    def model_name(self) -> str:
        """The model's name, as the run's spec keeps it."""
        return self.model if isinstance(self.model, str) else self.model.name

    def spec(self, *, heartbeat_seconds: float) -> AgentSpec:
        """Return what a run that starts now keeps of this agent."""
        return AgentSpec(
            name=self.name,
            model=self.model_name,
            instructions=self.instructions,
            tools=[ToolSpec(made.definition, made.effect, made.summary) for made in self.tools],
            max_steps=self.max_steps,
            model_tries=self.model_tries,
            heartbeat_seconds=heartbeat_seconds,
        )


@dataclass(frozen=True)
class App:
    """Everything that one worker serves.

    Raises:
        DefinitionError: Two agents of one name, or two different tools of one name (an
            activity type is one function).
    """

    agents: Sequence[Agent]
    _agents: dict[str, Agent] = field(init=False, repr=False, default_factory=dict)
    _tools: dict[str, Tool] = field(init=False, repr=False, default_factory=dict)
    _models: dict[str, Model] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Index agents and tools, refusing duplicates."""
        for agent in self.agents:
            if self._agents.setdefault(agent.name, agent) is not agent:
                raise DefinitionError(f"two agents are named {agent.name!r}")
            for made in agent.tools:
                if self._tools.setdefault(made.name, made) is not made:
                    raise DefinitionError(f"two different tools are named {made.name!r}")

    @property
    def tools(self) -> Sequence[Tool]:
        """Every tool of every agent, once."""
        return tuple(self._tools.values())

    def agent(self, name: str) -> Agent:
        """Return an agent.

        Raises:
            ConfigurationError: This app has none of that name.
        """
        if name not in self._agents:
            raise ConfigurationError(
                f"this worker serves no agent {name!r}; it has {', '.join(self._agents)}"
            )
        return self._agents[name]

    def model(self, *, agent: str, name: str) -> Model:
        """Return the model of a run's spec: by its name, or the agent's own object.

        One object, and so one HTTP client, serves every request of a name that is a string.
        """
        declared = self.agent(agent).model
        if not isinstance(declared, str) and declared.name == name:
            return declared
        if name not in self._models:
            self._models[name] = resolve_model(name)
        return self._models[name]

    async def aclose(self) -> None:
        """Close the models that hold connections; the worker does so when it stops."""
        declared = [agent.model for agent in self.agents if not isinstance(agent.model, str)]
        for model in (*self._models.values(), *declared):
            aclose = getattr(model, "aclose", None)
            if aclose is not None:
                await aclose()
        self._models.clear()
