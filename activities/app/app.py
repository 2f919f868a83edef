"""`App`: everything that one worker serves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import ConfigurationError, DefinitionError
from ...redaction import Redact
from ..model.model import Model
from ..model.pydantic_ai_model import resolve_model
from .agent import Agent
from .temporal_options import TemporalOptions
from .tool import Tool

Hook: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class App:
    """Everything that one worker serves.

    Raises:
        DefinitionError: Two agents of one name, or two different tools of one name (an
            activity type is one function), or agents that call each other in a circle.
    """

    agents: Sequence[Agent] = ()
    """Each has a name of its own. The agents among their tools are served too."""
    on_start: Hook | None = None
    """Called once before the worker takes any work, on the event loop of async tools: open HTTP
    clients and pools here. If it raises, the worker does not start. None: nothing is called."""
    on_stop: Hook | None = None
    """Called on the same event loop when the worker stops. None: nothing is called."""
    redact: Redact | None = None
    """Takes what nobody may read out of the text of an exception, before it is kept, logged or
    shown; in addition to the well-known shapes, which are always taken out. See `redaction`."""
    temporal: TemporalOptions | None = None
    """Gives the options of the Temporal client: codec, interceptors, plugins, TLS, runtime. The
    worker calls it, and so does every command that COMMITLINE_APP tells of this app. None: what
    the environment says is all. See `TemporalOptions`."""
    tools: Sequence[Tool] = ()
    """The tools of plans. Read back, it is every tool that is served, once: the agents', these,
    and the tools that undo them."""
    _agents: dict[str, Agent] = field(init=False, repr=False, default_factory=dict)
    _tools: dict[str, Tool] = field(init=False, repr=False, default_factory=dict)
    _models: dict[str, Model] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Index agents and tools, refusing duplicates."""
        for agent in self.agents:
            self._index(agent, ())
        for made in self.tools:
            if not isinstance(made, Tool):
                raise DefinitionError(f"{made!r} is no tool; put @tool(effect=…) above it")
            self._serve(made)
        object.__setattr__(self, "tools", tuple(self._tools.values()))

    def _index(self, agent: Agent, above: tuple[Agent, ...]) -> None:
        if any(one is agent for one in above):
            names = " -> ".join(one.name for one in (*above, agent))
            raise DefinitionError(f"agents call each other in a circle: {names}")
        if self._agents.setdefault(agent.name, agent) is not agent:
            raise DefinitionError(f"two agents are named {agent.name!r}")
        for made in agent.tools:
            if isinstance(made, Tool):
                self._serve(made)
        for below in agent.below:
            self._index(below, (*above, agent))

    def _serve(self, made: Tool) -> None:
        """Add a tool, and the tool that undoes it."""
        if self._tools.setdefault(made.name, made) is not made:
            raise DefinitionError(f"two different tools are named {made.name!r}")
        if made.compensate is not None:
            self._serve(made.compensate)

    @property
    def served(self) -> Sequence[Agent]:
        """Every agent, once: also those that are only tools of others."""
        return tuple(self._agents.values())

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
        declared = [agent.model for agent in self.served if not isinstance(agent.model, str)]
        for model in (*self._models.values(), *declared):
            aclose = getattr(model, "aclose", None)
            if aclose is not None:
                await aclose()
        self._models.clear()
