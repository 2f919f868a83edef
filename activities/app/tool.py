"""`Tool`: a function that a model may call, its schema, and what repeating it would do.

Arguments are validated against the signature, and their defaults fixed, *before* the intent is
written. The function always gets fresh values, made from the arguments that are stored, and to the
letter: newer code that would make other arguments of them is not called.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import BaseModel, TypeAdapter

from ...canonical import Json, digest, dumps, parse
from ...errors import ActionError, ArgumentsChanged, InvalidArguments, StateUnusable
from ...idempotency_key import KeyTemplate
from ...identity import ActionKey, Position, RunKey
from ...ledger.action_records import Effect, Outcome
from ...ledger.result_codec import encode_result
from ..contract.conversation import ToolDefinition
from ..contract.deadlines import Deadline
from .same_values import are_same
from .state import State
from .state_copy import GivenState, StateCopy
from .tool_context import ToolContext
from .tool_failure import Exceptions, ToolFailure
from .validation import explain

Isolation = Literal["none", "process"]
UndoUnknown = Literal["resend", "park"]
Relay = Literal["lookup", "resend"]

RESULT: Final = "result"
"""The parameter of a compensator that gets the result of the action that it undoes."""

_NO_CONTEXT: Final = ToolContext("", ActionKey(""), RunKey(""), Position(""), "", taken_over=False)
_MAX_PROBLEM: Final = 2_000
"""Characters of what is wrong with the arguments of a call."""


@dataclass(frozen=True)
class Tool:
    """A function, its schema and its promise. Made by `tool`; call ``fn`` to test it alone."""

    fn: Callable[..., Any]
    """The function, ``async`` or plain."""
    name: str
    """By which the model calls it. It is the name of the activity too."""
    description: str
    """What the model reads of it: the docstring of the function."""
    effect: Effect
    """What repeating a call would do."""
    key_template: KeyTemplate | None
    """Makes the domain key of a call from its arguments; None: each call has a key of its own."""
    key_ttl: timedelta | None
    """How long the downstream system remembers a key; None is for ever."""
    lookup: Callable[..., Any] | None
    """Asks the downstream system what became of a call; None if it cannot be asked."""
    same: frozenset[str] | None
    """The parameters by which two calls with one domain key are the same fact; None is all."""
    summary: str | None
    """What a call does in business words, with parameters in braces; None: the Temporal UI shows
    the name."""
    arguments: type[BaseModel]
    """The model of its arguments. The alias of each field is the parameter."""
    returns: TypeAdapter[Any] | None
    """Writes its result as JSON; None: the result is written as it comes."""
    context_parameter: str | None
    """The parameter that gets the `ToolContext`; None if there is none."""
    is_async: bool
    """Whether the function is ``async``."""
    settles_after: timedelta
    """How long after an attempt could last send something "never happened" counts."""
    tries: int
    """How often the tool may fail one call, in all its attempts together."""
    refused_on: Exceptions
    """Exceptions that mean: declined, nothing happened."""
    retry_on: Exceptions | None
    """Exceptions that are worth another try; None is the default of `tool`."""
    tool_timeout: Deadline
    """The deadline of one attempt; `UNSET`: the run, or the agent, decides."""
    node_timeout: Deadline
    """The deadline of a call with its retries; `UNSET`: the run, or the agent, decides."""
    isolation: Isolation
    """``process``: each call runs in a process of its own."""
    returns_nothing: bool
    """Whether None is a result of it, as far as its annotation says."""
    approval: bool | Callable[[dict[str, Any]], Any]
    """Whether a person has to approve each call, or a function of the arguments that says so."""
    approval_expires: timedelta | None
    """How long a call waits for an approval, or for an answer; None is for ever."""
    compensate: Tool | None
    """The tool that undoes a call; None if none does."""
    undoes: KeyTemplate | None
    """Makes the domain key of the action that a call undoes; None: it undoes none."""
    undo_unknown: UndoUnknown
    """What becomes of an unknown call when its run is undone, where no lookup can tell."""
    relay: Relay
    """What the relay does about a call whose run is gone, and whose outcome is not known."""
    detached: bool
    """Whether the run goes on at once, and the relay carries the call out."""
    local: bool = False
    """Whether an agent's run tries a call as a local activity first."""
    state_parameter: str | None = None
    """The parameter that gets the state; None if there is none."""
    state: type[State] | None = None
    """The type of that parameter: the state model of every agent that has the tool."""

    @property
    def gated(self) -> bool:
        """Whether a person may have to approve a call."""
        return self.approval is not False

    def needs_approval(self, effective: str) -> bool:
        """Whether a person has to approve the call with these arguments.

        True also where the tool's predicate raises: nobody can judge such a call but a person.
        """
        if isinstance(self.approval, bool):
            return self.approval
        try:
            return bool(self.approval(parse(effective)))
        except Exception:
            return True

    @property
    def may_interrupt(self) -> bool:
        """Whether a call can ask a person a question midway."""
        asks = self.context_parameter is not None and self.isolation == "none"
        return asks and not self.local

    @property
    def parameters(self) -> frozenset[str]:
        """The names of its parameters, without those that the worker fills in."""
        return frozenset(field.alias or "" for field in self.arguments.model_fields.values())

    @property
    def definition(self) -> ToolDefinition:
        """What the model reads of it."""
        schema = self.arguments.model_json_schema(by_alias=True)
        schema.pop("title", None)
        return ToolDefinition(self.name, self.description, schema)

    def effective(self, requested: Json) -> str:
        """Return the effective arguments as JSON text: validated, normalised, defaults fixed.

        Raises:
            InvalidArguments: They do not fit the signature, or have no JSON form; or a validator
                of the application raised, whatever it raised.
        """
        try:
            given = self.arguments.model_validate_json(dumps(requested))
            text = _written(given)
            read = self.arguments.model_validate_json(text)
            survives = are_same(read, given) and _is_same_json(_written(read), text)
        except ActionError:
            raise
        except Exception as err:  # a validator may raise anything
            raise self._invalid(err) from err
        if not survives:
            raise InvalidArguments(f"{self.name}: an argument does not survive being stored")
        return text

    def check_stored(self, stored: str) -> BaseModel:
        """Return stored arguments as they are read, if a call gets exactly those today.

        Raises:
            ArgumentsChanged: The tool has changed: one is missing or too many, a default would be
                added, or a validator refuses or changes a value.
        """
        try:
            read = self.arguments.model_validate_json(stored)
            today = _written(read)
            if _is_same_json(today, stored):
                return read
            differing = _differing(parse(stored), parse(today))
            problem = f"today it would get other values for {differing}"
        except Exception as err:  # a validator may raise anything
            problem = explain(err, whole="arguments", limit=_MAX_PROBLEM)
        raise ArgumentsChanged(
            f"{self.name} cannot be called with exactly the arguments that are stored: {problem}"
        )

    def domain_key(self, effective: str) -> str | None:
        """Return the domain key for effective arguments, if the tool declares one."""
        return None if self.key_template is None else self.key_template.render(parse(effective))

    def undoes_key(self, effective: str) -> str | None:
        """Return the domain key of the action that such a call undoes, if the tool declares it."""
        return None if self.undoes is None else self.undoes.render(parse(effective))

    def undo_arguments(self, effective: str, outcome: Outcome | None) -> dict[str, Json]:
        """Return the arguments with which this tool undoes a call of another one.

        Args:
            effective: The arguments of that call. Parameters of the same names get them.
            outcome: How that call ended. The parameter ``result`` gets its result.
        """
        given: dict[str, Json] = dict(parse(effective))
        if outcome is not None and outcome.kind == "ok":
            given[RESULT] = outcome.value
        return {name: value for name, value in given.items() if name in self.parameters}

    def sameness(self, effective: str) -> str:
        """Return the digest of what makes two calls the same business fact."""
        arguments = parse(effective)
        if self.same is not None:
            arguments = {name: arguments[name] for name in self.same}
        return digest(arguments)

    def bind(
        self, effective: str, context: ToolContext, copy: StateCopy | None = None
    ) -> dict[str, Any]:
        """Return fresh keyword arguments for the function, made from the stored text.

        Args:
            effective: The stored arguments.
            context: The context of the call.
            copy: The call's copy of the state, if the tool takes the state.

        Raises:
            ArgumentsChanged: The function cannot be called with exactly those any more.
        """
        model = self.check_stored(effective)
        bound = {
            field.alias or name: getattr(model, name)
            for name, field in self.arguments.model_fields.items()
        }
        if self.context_parameter is not None:
            bound[self.context_parameter] = context
        if self.state_parameter is not None and copy is not None:
            bound[self.state_parameter] = copy.value
        return bound

    def copy_of(self, given: GivenState | None) -> StateCopy | None:
        """Return a call's own copy of the state; None if the tool takes no state.

        Raises:
            StateUnusable: There is no state, or it does not fit the tool's model.
        """
        if self.state is None:
            return None
        if given is None:
            raise StateUnusable(f"{self.name}: there is no state to give")
        return StateCopy(self.state, given)

    def lookup_arguments(self, effective: str) -> dict[str, Any]:
        """Return the stored arguments by parameter, as the function gets them; nothing else."""
        bound = self.bind(effective, _NO_CONTEXT)
        bound.pop(self.context_parameter or "", None)
        return bound

    def finished(self, value: Any, copy: StateCopy | None = None) -> Any:
        """Return the outcome of a call that returned ``value``, or a coroutine that returns it.

        What the call has changed in its copy of the state is part of the outcome. Call this
        where the tool runs: to go through what a generator yields is to run the tool, and to
        write a large result takes a while.
        """
        return (
            self._awaited(value, copy) if inspect.isawaitable(value) else self._ended(value, copy)
        )

    def encode(self, value: Any) -> Outcome:
        """Return the outcome of a call whose result is ``value``; never raises an Exception."""
        return encode_result(self.name, value, self.returns)

    def failure(self, error: BaseException) -> ToolFailure:
        """Return what an exception of the function means, by what the tool declares."""
        return ToolFailure.of(error, refused_on=self.refused_on, retry_on=self.retry_on)

    async def _awaited(self, value: Awaitable[Any], copy: StateCopy | None) -> Outcome:
        return self._ended(await value, copy)

    def _ended(self, value: Any, copy: StateCopy | None) -> Outcome:
        outcome = self.encode(value)
        return outcome if copy is None else replace(outcome, state_changes=copy.changes())

    def _invalid(self, error: Exception) -> InvalidArguments:
        text = explain(error, whole="arguments", limit=_MAX_PROBLEM)
        return InvalidArguments(f"{self.name}: {text}")


def _written(arguments: BaseModel) -> str:
    # Without what is computed: as the type reads it again.
    return dumps(arguments.model_dump(mode="json", round_trip=True))


def _is_same_json(one: str, other: str) -> bool:
    """Whether two JSON texts mean the same; most that do are the same."""
    return one == other or digest(parse(one)) == digest(parse(other))


def _differing(before: dict[str, Json], today: dict[str, Json]) -> str:
    """Name the parameters whose values differ, or that only one of the two has."""
    names = [*before, *(name for name in today if name not in before)]
    return ", ".join(
        name
        for name in names
        if not (name in before and name in today and digest(before[name]) == digest(today[name]))
    )
