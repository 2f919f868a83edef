"""`ActedCall`: one call that is made inside an activity, as the guard sees it.

The tool is a function. Its arguments count by name, so a newer default changes no earlier call.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from temporalio.converter import PayloadConverter

from ..activities.contract.reply import Reply
from ..activities.guard.protocols import Replies
from ..activities.runner.tool_threads import ThreadForEach
from ..canonical import Json
from ..errors import ArgumentsChanged, DefinitionError, InvalidArguments
from ..ledger import Outcome
from ..ledger.result_codec import error_text
from .effect_rule import EffectRule
from .stored_payload import kept_value, payload_of, unordered
from .stored_result import not_kept, outcome_of
from .telling import ToldReplies

_threads = ThreadForEach()
_COMMAND: Final = ("langgraph.types", "Command")
"""What a tool of LangGraph returns to change the graph's state, or its way."""


@dataclass(frozen=True)
class ActedTool:
    """A function whose calls are guarded."""

    name: str
    function: Callable[..., Any]
    rule: EffectRule | None = None
    """What repeating it would do; None where the plugin's ``effects`` may say so."""
    uncounted: frozenset[str] = field(default_factory=frozenset)
    """Parameters that the framework fills in: they are handed on, and count for nothing."""

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's.

        Raises:
            DefinitionError: It has parameters without a name, or says that it returns a Command.
        """
        signature = inspect.signature(self.function)
        nameless = (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.POSITIONAL_ONLY,
        )
        for one in signature.parameters.values():
            if one.kind in nameless:
                raise DefinitionError(f"{self.name}: the parameter {one} has no name of its own")
        if _holds_command(self.types.get("return")):
            raise DefinitionError(
                f"{self.name} returns a Command of LangGraph, which is not kept, so a call of it "
                "could not be read back: have it return data, and make the Command in the node"
            )
        return signature

    @cached_property
    def types(self) -> Mapping[str, Any]:
        """The types of its parameters and of ``return``; empty where they cannot be read."""
        try:
            return typing.get_type_hints(self.function)
        except (NameError, TypeError):
            return {}

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a call's arguments by name, without defaults.

        Names that the function does not have are refused when the call is made: a model may have
        written them.

        Raises:
            TypeError: There are more arguments than parameters, or two for one.
            DefinitionError: See `signature`.
        """
        bound = self.signature.bind_partial(*args).arguments
        if twice := bound.keys() & kwargs.keys():
            raise TypeError(f"{self.name}() got two values for {', '.join(sorted(twice))}")
        return {**bound, **kwargs}

    async def __call__(self, args: Mapping[str, Any]) -> Any:
        """Call it; a plain function in a thread of its own."""
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**args)
        context = _copied_call(self.function, args)
        return await asyncio.wrap_future(_threads.submit(context))


@dataclass(frozen=True)
class NoResult:
    """What a call ended with that has no plain result."""

    reply: Reply


class ActReplies(ToldReplies):
    """The payload of the result, or `NoResult`."""

    def tell(self, reply: Reply) -> NoResult:
        """See `ToldReplies`."""
        return NoResult(reply)


class ActedCall:
    """See `ArrivedCall`.

    Args:
        tool: The function.
        given: The arguments by name, without defaults.
        converter: Of the payloads.
    """

    replies: Replies = ActReplies()

    def __init__(
        self, tool: ActedTool, given: Mapping[str, Any], converter: PayloadConverter
    ) -> None:
        self._tool = tool
        self._given = given
        self._converter = converter
        self.ends_when_cancelled = inspect.iscoroutinefunction(tool.function)

    @property
    def requested(self) -> Json:
        """The arguments as they are given.

        Raises:
            InvalidArguments: They cannot be kept.
        """
        return self._kept(self._given)

    def effective(self) -> Json:
        """See `ArrivedCall`."""
        try:
            bound = self._tool.signature.bind(**self._given)
        except TypeError as err:
            raise InvalidArguments(f"{self._tool.name}: {err}") from err
        bound.apply_defaults()
        return self._kept(bound.arguments)

    def named(self, arguments: Json) -> Mapping[str, Json]:
        """See `ArrivedCall`."""
        return arguments if isinstance(arguments, dict) else {}

    def args_with(self, arguments: Json) -> Sequence[Any]:
        """See `ArrivedCall`."""
        tool = self._tool
        assert isinstance(arguments, dict), "as `effective` made them"
        live = {name: self._given[name] for name in tool.uncounted if name in self._given}
        try:
            args = {
                name: self._converter.from_payload(payload_of(one), tool.types.get(name, Any))
                for name, one in arguments.items()
            }
            tool.signature.bind(**args, **live)
            today = self._kept(args)
        except Exception as err:  # newer types may refuse them
            raise ArgumentsChanged(f"{tool.name}: {error_text(err)[:500]}") from err
        if unordered(today) != unordered(arguments):
            raise ArgumentsChanged(
                f"{tool.name} cannot be called with exactly the arguments that are stored"
            )
        return [{**args, **live}]

    def checked(self, value: Any) -> Any:
        """See `ArrivedCall`: what it returns is its result."""
        return value

    def refuses(self, error: BaseException) -> bool:
        """See `ArrivedCall`: its rule says what it refuses with."""
        return False

    def outcome(self, value: Any) -> Outcome:
        """See `ArrivedCall`."""
        if _is_command(type(value)):
            return not_kept(self._tool.name, value, "the function does not say that it returns one")
        return outcome_of(self._tool.name, value, self._converter)

    def result(self, ended: Any) -> Any:
        """Return a recorded result as the function's type has it."""
        returned = self._tool.types.get("return", Any)
        return self._converter.from_payload(ended.payload, returned)

    def _kept(self, args: Mapping[str, Any]) -> dict[str, Json]:
        try:
            return {
                name: kept_value(one, self._converter)
                for name, one in args.items()
                if name not in self._tool.uncounted
            }
        except Exception as err:  # whatever a converter raises
            raise InvalidArguments(f"{self._tool.name}: {error_text(err)[:500]}") from err


def _holds_command(annotation: Any) -> bool:
    """Whether a type is a Command, or one of its parts: ``Command[str] | str``."""
    parts = (typing.get_origin(annotation) or annotation, *typing.get_args(annotation))
    return _is_command(parts[0]) or any(map(_holds_command, parts[1:]))


def _is_command(kind: Any) -> bool:
    return _COMMAND in {(one.__module__, one.__name__) for one in getattr(kind, "__mro__", ())}


def _copied_call(function: Callable[..., Any], args: Mapping[str, Any]) -> Callable[[], Any]:
    """Return the call with the context of here, so that `commitline.current` works in a thread."""
    context = contextvars.copy_context()
    return lambda: context.run(lambda: function(**args))
