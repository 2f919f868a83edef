"""`Rules`: which activities of a worker carry calls of tools, and by which family each is read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from temporalio import activity

from ..errors import DefinitionError
from .effect_rule import FOUR_EFFECTS, EffectRule, rule_of
from .family import Family, ToolCall
from .mcp import MCP, MCPEffects
from .own_activities import OwnActivities
from .pydantic_ai import PydanticAI

Telling: TypeAlias = Literal["failure", "text", "data"]
"""How a workflow is told of a call without a result: by a failure, or as the call's result."""

_TELLING: Final[Mapping[str, Telling]] = {
    "OpenAIAgentsPlugin": "text",
    "DeepAgentsPlugin": "text",
    "GoogleAdkPlugin": "data",
    "GoogleGenAIPlugin": "data",
}
"""By the name of a framework's plugin. Strands shows the failure's own message to the model."""
_MODEL: Final = re.compile(
    r"invoke_model_activity(_streaming)?|invoke_model(_streaming)?|agent__.+__model_request(_stream)?"
    r"|gemini_api_client_async_request(_streamed)?|deepagents\.invoke_model(_streaming)?"
)
"""The types of the activities by which frameworks request models."""


class Rules:
    """The families of one plugin.

    Args:
        effects: The rules of code that is not the application's, by tool.
        mcp: What the calls of MCP servers do, by the server's name.
    """

    def __init__(
        self, effects: Mapping[str, EffectRule], mcp: Mapping[str, MCPEffects] | None = None
    ) -> None:
        self._effects = dict(effects)
        self._own: dict[str, EffectRule] = {}
        self._telling: Telling = "failure"
        self._families: tuple[Family, ...] = (
            PydanticAI(self._effects),
            MCP(mcp or {}),
            OwnActivities(self._own),
        )

    def family(self, activity_type: str) -> Family | None:
        """Return the family that reads the calls of an activity type; None if it needs no guard."""
        return next((one for one in self._families if one.serves(activity_type)), None)

    def requests_model(self, activity_type: str) -> bool:
        """Whether it is a request to a model."""
        return _MODEL.fullmatch(activity_type) is not None

    def telling(self, call: ToolCall) -> Telling:
        """Return how the workflow is told of a call that has no result."""
        return self._telling if call.activity_type in self._own else "failure"

    def told_by(self, plugins: Sequence[str]) -> None:
        """Tell as the frameworks of these plugins need it."""
        known: list[Telling] = [_TELLING[name] for name in plugins if name in _TELLING]
        self._telling = known[-1] if known else "failure"

    def add(self, activities: Sequence[Callable[..., Any]]) -> None:
        """Read the rules of a worker's activities.

        Raises:
            DefinitionError: An activity has no rule, or a rule has no activity.
        """
        types = {_type_of(function): function for function in activities}
        others = [one for one in self._families if not isinstance(one, OwnActivities)]
        shared = {name for name in types if any(one.serves(name) for one in others)}
        passed = {name for name in types if any(one.knows(name) for one in others)}
        unruled = []
        for name, function in types.items():
            if name in shared | passed or self.requests_model(name):
                continue
            rule = self._effects.get(name) or rule_of(function)
            if rule is None:
                unruled.append(name)
                continue
            _check_parameters(name, function, rule)
            self._own[name] = rule
        if unruled:
            raise DefinitionError(
                f"the activities {', '.join(unruled)} have no effect: {FOUR_EFFECTS}"
            )
        # A tool of a shared type is not known by name before it is called.
        if not shared and (unknown := sorted(set(self._effects) - set(self._own))):
            raise DefinitionError(f"there is no activity {unknown[0]!r}, which has an effect")


def _type_of(function: Callable[..., Any]) -> str:
    defined = activity._Definition.from_callable(function)
    if defined is None or defined.name is None:
        raise DefinitionError(f"{function!r} is no activity of one name; use @activity.defn")
    return defined.name


def _check_parameters(name: str, function: Callable[..., Any], rule: EffectRule) -> None:
    parameters = inspect.signature(function).parameters
    if inspect.Parameter.VAR_POSITIONAL in {one.kind for one in parameters.values()}:
        raise DefinitionError(f"the activity {name!r} may not have *args")
    fields = rule.template.fields if rule.template else frozenset[str]()
    if unknown := sorted(fields - set(parameters)):
        raise DefinitionError(f"the activity {name!r} has no parameter {unknown[0]}")
