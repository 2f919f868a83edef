"""`@tool`: a function that a model may call, and what repeating it would do.

    @tool(effect=Effect.IDEMPOTENT, idempotency_key="order-{order_id}-charge")
    async def charge_card(ctx: ToolContext, order_id: str, amount_cents: int) -> Charge: ...

The signature is the schema. Arguments are validated against it and their defaults fixed
*before* the intent is written; the tool always gets a fresh copy made from what is stored.
Everything that cannot work is refused here, when the tool is defined.
"""

from __future__ import annotations

import inspect
import re
import string
import typing
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from ...canonical import Json, digest, dumps, parse
from ...errors import DefinitionError, InvalidArguments, StateUnusable, UnrepresentableValue
from ...idempotency_key import KeyTemplate
from ...identity import ActionKey, Position, RunKey
from ...ledger.codec import encode_result
from ...ledger.records import Effect, Outcome
from ..contract.conversation import ToolDefinition
from ..contract.deadlines import LONGEST, UNSET
from .state import State
from .state_copy import GivenState, StateCopy
from .state_model import check_state_model
from .tool_context import ToolContext
from .tool_failure import Exceptions, ToolFailure

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider accepts as a tool's name."""

Isolation = Literal["none", "process"]
UndoUnknown = Literal["resend", "park"]
Relay = Literal["ask", "resend"]


@dataclass(frozen=True)
class Tool:
    """A function, its schema and its promise. Made by `tool`; call ``fn`` to test it alone."""

    fn: Callable[..., Any]
    name: str
    description: str
    effect: Effect
    key_template: KeyTemplate | None
    key_ttl: timedelta | None
    lookup: Callable[..., Any] | None
    same: frozenset[str] | None
    summary: str | None
    arguments: type[BaseModel]
    returns: TypeAdapter[Any] | None
    context_parameter: str | None
    is_async: bool
    settles_after: timedelta
    tries: int
    refused_on: Exceptions
    retry_on: Exceptions | None
    tool_timeout: Any
    node_timeout: Any
    isolation: Isolation
    returns_nothing: bool
    approval: bool | Callable[[dict[str, Any]], Any]
    approval_expires: timedelta | None
    compensate: Tool | None
    undoes: KeyTemplate | None
    undo_unknown: UndoUnknown
    relay: Relay
    detached: bool
    state_parameter: str | None = None
    state: type[State] | None = None
    """The type of that parameter: the state model of every agent that has the tool."""

    @property
    def gated(self) -> bool:
        """Whether a person may have to approve a call of it."""
        return self.approval is not False

    def needs_approval(self, effective: str) -> bool:
        """Whether a person has to approve the call with these arguments.

        What the tool's predicate raises means yes: a call that nobody can judge is asked about.
        """
        if isinstance(self.approval, bool):
            return self.approval
        try:
            return bool(self.approval(parse(effective)))
        except Exception:
            return True

    @property
    def may_interrupt(self) -> bool:
        """Whether a call of it can ask a person midway."""
        return self.context_parameter is not None and self.isolation == "none"

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told."""
        schema = self.arguments.model_json_schema(by_alias=True)
        schema.pop("title", None)
        return ToolDefinition(self.name, self.description, schema)

    def effective(self, requested: Json) -> str:
        """Return the effective arguments as JSON text: validated, normalised, defaults fixed.

        Raises:
            InvalidArguments: They do not fit the signature, or have no JSON form.
        """
        try:
            given = self._validate(dumps(requested))
            text = dumps(given.model_dump(mode="json"))
        except UnrepresentableValue as err:
            raise InvalidArguments(f"{self.name}: {err.message}") from err
        if self._validate(text) != given:
            raise InvalidArguments(f"{self.name}: an argument does not survive being stored")
        return text

    def domain_key(self, effective: str) -> str | None:
        """Return the domain key for effective arguments, if the tool declares one."""
        return None if self.key_template is None else self.key_template.render(parse(effective))

    def undoes_key(self, effective: str) -> str | None:
        """Return the domain key of the action that such a call undoes, if the tool says so."""
        return None if self.undoes is None else self.undoes.render(parse(effective))

    def undo_arguments(self, effective: str, outcome: Outcome | None) -> dict[str, Json]:
        """Return the arguments with which this tool undoes a call of another.

        Its parameters get the other's arguments of their names; ``result`` what that returned.
        """
        given: dict[str, Json] = dict(parse(effective))
        if outcome is not None and outcome.kind == "ok":
            given[RESULT] = outcome.value
        names = {field.alias for field in self.arguments.model_fields.values()}
        return {str(name): value for name, value in given.items() if name in names}

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
            context: What the call may know of itself.
            copy: Its own, where it takes the state.

        Raises:
            InvalidArguments: The stored arguments no longer fit the function.
        """
        model = self._validate(effective)
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
        """Return a call's own copy of the state; None where the tool takes none.

        Raises:
            StateUnusable: There is none to give, or it does not fit the tool's model.
        """
        if self.state is None:
            return None
        if given is None:
            raise StateUnusable(f"{self.name}: there is no state to give")
        return StateCopy(self.state, given)

    def parameters(self, effective: str) -> dict[str, Any]:
        """Return the stored arguments by parameter, as the function gets them; nothing else."""
        bound = self.bind(effective, _NO_CONTEXT)
        bound.pop(self.context_parameter or "", None)
        return bound

    def finished(self, value: Any, copy: StateCopy | None = None) -> Any:
        """Return the outcome of a call that returned ``value``, or a coroutine that does.

        What the call has changed in its copy of the state is part of it. Called where the tool
        runs: to go through what a generator yields is to run the tool, and to write down a
        large result takes a while.
        """
        return (
            self._awaited(value, copy) if inspect.isawaitable(value) else self._ended(value, copy)
        )

    def encode(self, value: Any) -> Outcome:
        """Return the outcome of a call whose result is ``value``; never raises an Exception."""
        return encode_result(self.name, value, self.returns)

    async def _awaited(self, value: Awaitable[Any], copy: StateCopy | None) -> Outcome:
        return self._ended(await value, copy)

    def _ended(self, value: Any, copy: StateCopy | None) -> Outcome:
        outcome = self.encode(value)
        return outcome if copy is None else replace(outcome, state_changes=copy.changes())

    def failure(self, error: BaseException) -> ToolFailure:
        """Say what an exception of the function means, by what the tool declares."""
        return ToolFailure.of(error, refused_on=self.refused_on, retry_on=self.retry_on)

    def _validate(self, text: str) -> BaseModel:
        try:
            return self.arguments.model_validate_json(text)
        except ValidationError as err:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}"
                for e in err.errors(include_input=False, include_url=False)[:5]
            )
            raise InvalidArguments(f"{self.name}: {problems}") from err


RESULT: Final = "result"
"""The parameter of a compensator that gets what the action returned which it undoes."""

_NO_CONTEXT: Final = ToolContext("", ActionKey(""), RunKey(""), Position(""), "", taken_over=False)


def tool(
    fn: Callable[..., Any] | None = None,
    *,
    effect: Effect | None = None,
    idempotency_key: str | None = None,
    key_ttl: timedelta | None = None,
    lookup: Callable[..., Any] | None = None,
    lookup_settles_after: timedelta = timedelta(seconds=60),
    same: tuple[str, ...] | None = None,
    refused_on: Exceptions | type[BaseException] = (),
    retry_on: Exceptions | type[BaseException] | None = None,
    tries: int = 3,
    tool_timeout: Any = UNSET,
    node_timeout: Any = UNSET,
    isolation: Isolation = "none",
    approval: bool | Callable[[dict[str, Any]], Any] = False,
    approval_expires: timedelta | None = timedelta(hours=72),
    compensate: Tool | None = None,
    undoes: str | None = None,
    undo_unknown: UndoUnknown = "resend",
    relay: Relay = "ask",
    detached: bool = False,
    name: str | None = None,
    summary: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of an ``async`` or plain function; a plain one runs in a thread of its own.

    Args:
        fn: Not for use: it catches a bare ``@tool``, which declares no effect.
        effect: What repeating the call would do. Required.
        idempotency_key: A key from the domain, with parameters in braces. One effect per key,
            ever, whichever run, turn or call asks. By default each call has a key of its own.
        key_ttl: How long the downstream system remembers a key; None is for ever.
        lookup: ``lookup(args, idempotency_key)``, ``async`` or plain, asks the downstream
            system whether it happened: returns what the call returned, or `NEVER_HAPPENED`.
            Required by ``Effect.LOOKUP``; an ``IDEMPOTENT`` tool uses it past its ``key_ttl``.
        lookup_settles_after: How long after an attempt could last send something its effect
            may still be invisible to ``lookup``; "never happened" counts only after that.
        same: The parameters by which two calls with one domain key are the same fact. By
            default all of them.
        refused_on: Exceptions that mean what `ToolRefused` does: declined, nothing happened.
        retry_on: Exceptions that are worth another try, as far as the effect allows one. By
            default connection errors, the clients' time-outs, `ToolTimeout`, and 408, 409,
            429, 5xx (by a status in an attribute, never by a number in a text).
        tries: How often the tool may fail a call by ``retry_on`` or `NotAttempted`, all
            attempts together. Dead workers and outages of the ledger do not count.
        tool_timeout: Seconds, or a ``timedelta``, for one attempt; None, zero and less are no
            limit. By default the agent's, else 300 s.
        node_timeout: The same for the call with its retries. By default the agent's, else 900 s.
        isolation: ``"process"`` calls it in a process of its own, which is killed at the
            deadline and dies with the worker. It costs the start of an interpreter per call.
        approval: True where a person has to approve each call; or a function of the effective
            arguments (a dict, as JSON has them) that says whether. It may be called again, so
            it only looks at them.
        approval_expires: How long a call waits for its approval, and for the answer to a
            question that it asks (`ToolContext.interrupt`): ten years at most; None is for ever.
        compensate: The tool that undoes a call of this one, when its run fails or is stopped
            with ``compensate=True``. Its parameters get the arguments of their names, and
            ``result`` what the call returned; ``ctx.undoes`` has all of it.
        undoes: The domain key, with parameters in braces, of the action that a call of this
            tool undoes: a refund that the model may ask for. Its success marks that action as
            undone.
        undo_unknown: What becomes of a call that is unknown when its run is undone, and that
            nobody can be asked about. ``"resend"`` sends an ``IDEMPOTENT`` one again under its
            key, to learn what became of it, and then undoes it; ``"park"`` leaves it to a person.
        relay: What the relay does about a call that a run left behind which is gone
            (terminated, timed out), and that is not known to have ended. ``"ask"`` asks the
            downstream system, where there is a ``lookup``, and else leaves it to a person;
            ``"resend"`` also sends an ``IDEMPOTENT`` one again under its key.
        detached: True where an agent does not wait for the call: its step commits the intent and
            goes on, and the relay carries it out, whatever becomes of the run. The model is told
            that it is accepted, later how it ended, and may ask meanwhile (``action_state``).
        name: The function's name by default.
        summary: What the call does in business words, with parameters in braces, for the
            Temporal UI: ``"Charge {amount_cents} cents for order {order_id}"``.

    Raises:
        DefinitionError: It cannot work as declared; the message says why.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        named = name or function.__name__
        if effect not in list(Effect):
            what = "declares no effect" if effect is None else f"has an unknown effect {effect!r}"
            raise DefinitionError(
                f"the tool {named!r} {what}; choose one: "
                + ", ".join(f"Effect.{member.name}" for member in Effect)
            )
        arguments, given = _arguments_of(function, named)
        parameters = frozenset(field.alias or "" for field in arguments.model_fields.values())
        template = None if idempotency_key is None else KeyTemplate.parse(idempotency_key)
        made = Tool(
            fn=function,
            name=named,
            description=inspect.getdoc(function) or named,
            effect=Effect(effect),
            key_template=template,
            key_ttl=key_ttl,
            lookup=lookup,
            same=None if same is None else frozenset(same),
            summary=summary,
            arguments=arguments,
            returns=_returns_of(function),
            context_parameter=given.context,
            is_async=inspect.iscoroutinefunction(function),
            settles_after=lookup_settles_after,
            tries=tries,
            refused_on=_exceptions(named, refused_on),
            retry_on=None if retry_on is None else _exceptions(named, retry_on),
            tool_timeout=tool_timeout,
            node_timeout=node_timeout,
            isolation=isolation,
            returns_nothing=_returns_nothing(function),
            approval=approval,
            approval_expires=approval_expires,
            compensate=compensate,
            undoes=None if undoes is None else KeyTemplate.parse(undoes),
            undo_unknown=undo_unknown,
            relay=relay,
            state_parameter=given.state,
            state=given.state_model,
            detached=detached,
        )
        _check(made, parameters)
        return made

    if fn is not None:
        decorate(fn)
        raise DefinitionError("use @tool(effect=…), with parentheses")
    return decorate


def _check(made: Tool, parameters: frozenset[str]) -> None:
    for wrong, why in _wrongs(made):
        if wrong:
            raise DefinitionError(f"the tool {made.name!r} {why}")
    for what, names in (
        ("summary", _named_in(made.summary)),
        ("idempotency_key", made.key_template.fields if made.key_template else frozenset()),
        ("same", made.same or frozenset()),
        ("undoes", made.undoes.fields if made.undoes else frozenset()),
    ):
        if unknown := sorted(names - parameters):
            raise DefinitionError(
                f"the tool {made.name!r} has no parameter {', '.join(unknown)}, "
                f"which its {what} names"
            )
    if isinstance(made.compensate, Tool):
        _check_compensator(made, made.compensate, parameters)


def _check_compensator(made: Tool, undo: Tool, parameters: frozenset[str]) -> None:
    fields = undo.arguments.model_fields.values()
    if RESULT in parameters and RESULT in {field.alias for field in fields}:
        raise DefinitionError(
            f"the tool {made.name!r} has a parameter {RESULT!r}, and {undo.name!r}, which undoes "
            "it, gets what it returned by that name"
        )
    needed = {field.alias or "" for field in fields if field.is_required()}
    if unknown := sorted(needed - parameters - {RESULT}):
        raise DefinitionError(
            f"the tool {made.name!r} is undone by {undo.name!r}, whose {', '.join(unknown)} it "
            f"cannot give: a compensator's parameters are those of the tool, and {RESULT!r}"
        )


def _wrongs(made: Tool) -> Iterator[tuple[Any, str]]:
    """What cannot work, and why."""
    effect, ttl = made.effect, made.key_ttl
    named = TOOL_NAME.fullmatch(made.name)
    yield not named, "needs a name of 1 to 64 letters, digits, '_' or '-'"
    yield (
        effect is Effect.READ and (made.key_template or ttl),
        "is a READ: it has no idempotency key",
    )
    yield (
        effect is Effect.LOOKUP and made.lookup is None,
        "is a LOOKUP: say how to ask, with lookup=",
    )
    yield (
        effect in (Effect.READ, Effect.AT_MOST_ONCE) and made.lookup is not None,
        "has a lookup, which only a LOOKUP and an IDEMPOTENT one has",
    )
    yield (
        effect is not Effect.IDEMPOTENT and ttl is not None,
        "has a key_ttl, which only an IDEMPOTENT one has",
    )
    yield ttl is not None and ttl <= timedelta(), "has a key_ttl that is not positive"
    for what, lasts in (
        ("a key_ttl", ttl),
        ("a lookup_settles_after", made.settles_after),
        ("an approval_expires", made.approval_expires),
    ):
        yield lasts is not None and lasts > LONGEST, f"has {what} over ten years"
    yield inspect.isasyncgenfunction(made.fn), "yields: return what it has to say, as a list"
    yield made.settles_after < timedelta(), "has a lookup_settles_after below zero"
    yield made.tries < 1, "has no tries; one is the least"
    yield effect is Effect.READ and made.gated, "is a READ: there is nothing to approve"
    yield (
        not isinstance(made.approval, bool) and not callable(made.approval),
        "has an approval that is neither True nor a function of its arguments",
    )
    yield inspect.iscoroutinefunction(made.approval), "has an async approval; it only looks"
    yield (
        made.approval_expires is not None and made.approval_expires <= timedelta(),
        "has an approval that expires at once",
    )
    yield effect is Effect.READ and made.detached, "is a READ: its answer is all there is to it"
    yield from _undo_wrongs(made)
    yield (
        made.detached and made.state is not None,
        "is detached and takes a state, which is another one when it is sent",
    )
    yield (
        made.isolation not in typing.get_args(Isolation),
        f"has an unknown isolation {made.isolation!r}; there are 'none' and 'process'",
    )
    yield (
        made.isolation == "process" and "<locals>" in made.fn.__qualname__,
        "is to run in a process: define it at the top of a module",
    )


def _undo_wrongs(made: Tool) -> Iterator[tuple[Any, str]]:
    undo, reads = made.compensate, made.effect is Effect.READ
    yield undo is not None and not isinstance(undo, Tool), "is undone by what is no tool"
    yield undo is not None and reads, "is a READ: there is nothing to undo"
    yield isinstance(undo, Tool) and undo.effect is Effect.READ, "is undone by a READ"
    yield isinstance(undo, Tool) and undo.state is not None, "is undone by one that takes a state"
    yield made.undoes is not None and reads, "is a READ: it undoes nothing"
    yield (
        made.relay not in typing.get_args(Relay),
        f"has an unknown relay {made.relay!r}; there are 'ask' and 'resend'",
    )
    yield (
        made.relay == "resend" and made.effect is not Effect.IDEMPOTENT,
        "is to be resent by the relay, which only an IDEMPOTENT one can be",
    )
    yield (
        made.undo_unknown not in typing.get_args(UndoUnknown),
        f"has an undo_unknown {made.undo_unknown!r}; there are 'resend' and 'park'",
    )


def exceptions(what: str, given: Any) -> Exceptions:
    """Return exception classes as a tuple, one alone too.

    Raises:
        DefinitionError: Something among them is none.
    """
    classes = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise DefinitionError(f"{what} names {one!r}, which is no exception class")
    return classes


def _exceptions(name: str, given: Any) -> Exceptions:
    return exceptions(f"the tool {name!r}", given)


def _named_in(template: str | None) -> frozenset[str]:
    try:
        parts = list(string.Formatter().parse(template or ""))
    except ValueError as err:
        raise DefinitionError(f"the summary {template!r} is not a template: {err}") from err
    return frozenset(name for _, name, _, _ in parts if name is not None)


@dataclass(frozen=True)
class _Given:
    """The parameters that are filled in by us."""

    context: str | None = None
    state: str | None = None
    state_model: type[State] | None = None


def _arguments_of(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], _Given]:
    """Make a model of the signature; fields have neutral names, parameters are their aliases."""
    hints = _hints_of(function, name)
    given = _Given()
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(inspect.signature(function).parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(f"the tool {name!r} may not have *{parameter.name} or '/'")
        annotation = hints.get(parameter.name, Any)
        if annotation is ToolContext:
            given = replace(given, context=parameter.name)
            continue
        if isinstance(annotation, type) and issubclass(annotation, State):
            if given.state is not None:
                raise DefinitionError(f"the tool {name!r} takes the state twice")
            check_state_model(annotation, f"the tool {name!r}")
            given = replace(given, state=parameter.name, state_model=annotation)
            continue
        fields[f"argument_{index}"] = _field(annotation, parameter)
    try:
        model = create_model(
            name,
            __config__=ConfigDict(
                extra="forbid",
                validate_default=True,
                serialize_by_alias=True,
                ser_json_bytes="base64",
                val_json_bytes="base64",
            ),
            **fields,
        )
        if '"writeOnly"' in dumps(model.model_json_schema()):
            # pydantic's SecretStr would be stored, and handed to the tool, as asterisks.
            raise DefinitionError(f"the tool {name!r} has a secret parameter: not supported yet")
    except (PydanticUserError, TypeError) as err:
        raise DefinitionError(f"the tool {name!r} has a parameter without JSON: {err}") from err
    return model, given


def _field(annotation: Any, parameter: inspect.Parameter) -> tuple[Any, Any]:
    """Return annotation and field, the parameter's name being the field's alias."""
    default = parameter.default
    if isinstance(default, FieldInfo):
        # `x: int = Field(gt=0, default_factory=…)`: its constraints belong to the annotation.
        constrained = Annotated[annotation, default]
        if default.default_factory is not None:
            return constrained, Field(default_factory=default.default_factory, alias=parameter.name)
        return constrained, Field(default.default, alias=parameter.name)
    return annotation, Field(... if default is parameter.empty else default, alias=parameter.name)


def _returns_of(function: Callable[..., Any]) -> TypeAdapter[Any] | None:
    annotation = _hints_of(function, function.__name__).get("return", Any)
    if annotation is Any:
        return None
    # A model brings its own configuration and takes no other; a plain type takes ours.
    for config in (ConfigDict(ser_json_bytes="base64"), None):
        try:
            return TypeAdapter(annotation, config=config)
        except PydanticUserError:
            continue
    return None  # no schema for that type: its values are encoded as they come


def _returns_nothing(function: Callable[..., Any]) -> bool:
    """Whether None is a result of it, as far as its annotation says."""
    annotation = _hints_of(function, function.__name__).get("return", Any)
    return annotation in (Any, None, type(None)) or type(None) in typing.get_args(annotation)


def _hints_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as err:
        raise DefinitionError(f"the tool {name!r} has an annotation not found: {err}") from err
