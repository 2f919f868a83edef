"""`Rules`: which activities of a worker carry calls of tools, and by which family each is read."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from temporalio import activity
from temporalio.converter import PayloadConverter

from ..activities.app.tool import RESULT
from ..activities.contract.spec import RESERVED_PREFIX
from ..errors import DefinitionError
from ..ledger.action_records import Effect
from .deepagents import DeepAgents
from .effect_rule import DECLARE_ONE, EffectRule, rule_of
from .family import Family, ToolCall
from .mcp import MCP, MCPEffects
from .mcp_wire import operation
from .own_activities import OwnActivities
from .pydantic_ai import PydanticAI
from .stored_payload import kept_value
from .telling import FailureReplies, Telling, ToldReplies

_TELLING: Final[Mapping[str, Telling]] = {
    "OpenAIAgentsPlugin": "text",
    "langchain.DeepAgentsPlugin": "text",
    "google.AdkPlugin": "data",
    "google_genai.GoogleGenAIPlugin": "data",
}
"""By the name of a framework's plugin. Strands shows the failure's own message to the model."""
_BY_NAME: Final = "OpenAIAgentsPlugin"
"""The framework that schedules its tools by their names, so that its workflow's own activities can
be told apart."""
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
        coarse: Patterns of the types of activities that make calls by `act`.
        models: Patterns of the types of activities that request a model, beside the frameworks'.
    """

    def __init__(
        self,
        effects: Mapping[str, EffectRule],
        mcp: Mapping[str, MCPEffects] | None = None,
        coarse: Collection[str] = (),
        models: Collection[str] = (),
    ) -> None:
        self._effects = dict(effects)
        self._coarse = tuple(coarse)
        self._models = tuple(models)
        # Also of activities that a worker of another process or queue runs.
        self._own = dict(effects)
        self._functions: dict[str, Callable[..., Any]] = {}
        self._mcp = dict(mcp or {})
        self._telling: Telling = "failure"
        self._only_by_name = False
        self._families: tuple[Family, ...] = (
            PydanticAI(self._effects, self._mcp),
            MCP(self._mcp),
            DeepAgents(self._effects),
            OwnActivities(self._own),
        )

    def family(self, activity_type: str) -> Family | None:
        """Return the family that reads the calls of an activity type; None if it needs no guard."""
        return next((one for one in self._families if one.serves(activity_type)), None)

    def rule_for(self, tool: str) -> EffectRule | None:
        """Return the rule that the plugin was given for a tool; None if it has none."""
        return self._effects.get(tool)

    def lists_tools_of(self, activity_type: str) -> str | None:
        """Return the MCP server whose list of tools, with hints that count, an activity returns."""
        found = operation(activity_type, self._mcp)
        if found is None or found[1] != "list-tools":
            return None
        effects = self._mcp.get(found[0])
        return found[0] if effects is not None and effects.trust_hints else None

    def believes(self, call: ToolCall) -> bool:
        """Whether what an MCP server says of a tool counts: nobody else has said anything."""
        found = operation(call.activity_type, self._mcp)
        effects = None if found is None else self._mcp.get(found[0])
        if found is None or effects is None or not effects.trust_hints:
            return False
        return call.tool.removeprefix(f"{found[0]}.") not in effects.tools

    def is_coarse(self, activity_type: str) -> bool:
        """Whether an activity makes calls by `act`, and has no effect beside them."""
        return _matches(activity_type, self._coarse) and not self.requests_model(activity_type)

    def requests_model(self, activity_type: str) -> bool:
        """Whether it is a request to a model."""
        if activity_type in self._own:
            return False
        named = _matches(activity_type, self._models)
        return named or _MODEL.fullmatch(activity_type) is not None

    def tool_call(
        self, activity_type: str, args: Sequence[Any], converter: PayloadConverter
    ) -> ToolCall | None:
        """Read the call that a workflow makes by an activity; None if it surely needs no guard.

        A type that this worker does not run may be guarded where it runs, so it is named too.
        """
        family = self.family(activity_type)
        if family is not None:
            return family.tool_call(activity_type, args, converter)
        if any(one.knows(activity_type) for one in self._families):
            return None
        arguments = [kept_value(one, converter) for one in args]
        return ToolCall(activity_type, activity_type, arguments, None)

    def replies(self, call: ToolCall, args: Sequence[Any]) -> ToldReplies:
        """Return how the call's workflow gets what it has instead of a result."""
        family = self.family(call.activity_type)
        return FailureReplies() if family is None else family.replies(args)

    def function(self, tool: str) -> Callable[..., Any] | None:
        """Return the activity of this worker that is a tool; None where it has none."""
        return self._functions.get(tool)

    @property
    def callable_tools(self) -> Sequence[str]:
        """The activities of this worker with an effect: an undo, or the relay, may call them."""
        return [name for name in self._functions if self._own[name].effect != Effect.READ]

    @property
    def compensates(self) -> bool:
        """Whether one of its rules names what undoes a call, or a call of `act` may have one."""
        acted = bool(self._coarse and self.callable_tools)
        return acted or any(one.compensate is not None for one in self._every_rule())

    def _every_rule(self) -> Iterator[EffectRule]:
        yield from self._own.values()
        for server in self._mcp.values():
            yield from (*server.tools.values(), server.otherwise)

    def rule_named(self, tool: str) -> EffectRule | None:
        """Return the rule that this worker has for a tool; None where only its calls have one."""
        found = self._own.get(tool)
        if found is None:
            for server, effects in self._mcp.items():
                if tool.startswith(f"{server}."):
                    return effects.rule(tool.removeprefix(f"{server}."))
        return found

    def telling(self, call: ToolCall, *, by_name: bool) -> Telling:
        """Return how the workflow is told of a call that has no result.

        Args:
            call: The call.
            by_name: The activity was scheduled by its name, without a type for its result, as
                OpenAI Agents does. A workflow's own code names the function.
        """
        if call.tool != call.activity_type or (self._only_by_name and not by_name):
            return "failure"
        return self._telling

    def tell_for(self, plugins: Sequence[str]) -> None:
        """Tell as the frameworks of these plugins need it."""
        known = [name for name in plugins if name in _TELLING]
        self._telling = _TELLING[known[-1]] if known else "failure"
        self._only_by_name = known[-1:] == [_BY_NAME]

    def add(self, activities: Sequence[Callable[..., Any]]) -> None:
        """Read the rules of a worker's activities.

        Raises:
            DefinitionError: An activity has no rule, or one that does not fit it.
        """
        unruled = []
        for function in activities:
            name = _type_of(function)
            if name.startswith(RESERVED_PREFIX):
                continue  # our own
            rule = self._effects.get(name) or rule_of(function)
            if self.is_coarse(name):
                if rule is not None:
                    raise DefinitionError(f"{name!r} is coarse, so it has no effect of its own")
                continue
            if rule is None:
                if not self._needs_no_rule(name):
                    unruled.append(name)
                continue
            _check_parameters(name, function, rule)
            self._own[name] = rule
            self._functions[name] = function
        if unruled:
            raise DefinitionError(
                f"the activities {', '.join(unruled)} have no effect: {DECLARE_ONE}"
            )
        if self._functions:  # of workflows alone, another worker has them
            self._check_compensators()

    def _check_compensators(self) -> None:
        """Refuse what cannot undo; see `check_compensator`."""
        for tool, function in self._functions.items():
            rule = self._own[tool]
            self.check_compensator(tool, rule, inspect.signature(function).parameters)
        for rule in self._every_rule():
            self.check_compensator("a call", rule, None)

    def check_compensator(
        self, tool: str, rule: EffectRule, parameters: Collection[str] | None
    ) -> None:
        """Refuse a rule whose calls could not be undone as it says.

        Args:
            tool: Whose rule it is.
            rule: The rule.
            parameters: Of the tool; None where they are not known.

        Raises:
            DefinitionError: No activity of this worker, a READ, or one with another parameter.
        """
        name = rule.compensate
        if name is None:
            return
        if name not in self.callable_tools:
            raise DefinitionError(f"{name!r} is to undo {tool!r}, and is no activity with effect")
        needed = inspect.signature(self._functions[name]).parameters.values()
        for one in needed if parameters is not None else ():
            if one.name not in (*(parameters or ()), RESULT) and one.default is one.empty:
                raise DefinitionError(
                    f"{name!r} undoes {tool!r}, which does not have its {one.name!r}"
                )

    def _needs_no_rule(self, name: str) -> bool:
        """Whether its calls say their rules themselves, or it is a framework's own."""
        known = any(one.serves(name) or one.knows(name) for one in self._families)
        return known or self.requests_model(name)


def _matches(activity_type: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(activity_type, one) for one in patterns)


def _type_of(function: Callable[..., Any]) -> str:
    defined = activity._Definition.from_callable(function)
    if defined is None or defined.name is None:
        raise DefinitionError(f"{function!r} is no activity of one name; use @activity.defn")
    return defined.name


def _check_parameters(name: str, function: Callable[..., Any], rule: EffectRule) -> None:
    parameters = inspect.signature(function).parameters
    try:
        typing.get_type_hints(getattr(function, "__func__", function))
    except Exception as err:  # a name that cannot be resolved, a callable object
        raise DefinitionError(f"the types of the activity {name!r} cannot be read: {err}") from err
    if inspect.Parameter.VAR_POSITIONAL in {one.kind for one in parameters.values()}:
        raise DefinitionError(f"the activity {name!r} may not have *args")
    fields = rule.template.fields if rule.template else frozenset[str]()
    if unknown := sorted(fields - set(parameters)):
        raise DefinitionError(f"the activity {name!r} has no parameter {unknown[0]}")
