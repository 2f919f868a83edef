"""Shared state: what the tools of a conversation know and change together.

    class Order(State):
        address: str = ""
        notes: Annotated[list[str], Reducer(operator.add)] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def set_address(state: Order, address: str) -> str:
        state.address = address
        ...

A call gets a copy of its own, as the model turn that asked for it left the state. The fields in
which the copy differs when the call has returned are its *changes*. They are recorded with its
outcome, travel with its result, and are merged by the activity that commits the next turn
(`merge`). Nothing here runs in a workflow: models, reducers and serializers are user code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from ...canonical import Json, canonical, dumps, parse, scrub
from ...errors import DefinitionError, StateUnusable, UnrepresentableValue
from ...ledger.codec import error_text
from ..contract.sizes import MAX_STATE
from ..contract.state_changes import CallChanges, Changes, Conflict, Dropped, Merged

S = TypeVar("S", bound="State")


class State(BaseModel):
    """The base of state models; every field has a default.

    A pydantic model like any other. It is checked when changes are merged, not when a tool
    assigns: a value that does not fit must not fail a call whose effect stands.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


@dataclass(frozen=True)
class Reducer:
    """How a field combines what several calls changed: ``Annotated[list[str], Reducer(…)]``.

    Args:
        combine: ``combine(current, change)`` returns what the field holds from then on. It is
            called in the calls' order, perhaps more than once, so it only computes.
        change: ``change(before, after)`` returns what a call changed, of the field's own type:
            what it was given, and what it left. By default it fits ``operator.add`` (the
            difference of numbers, what was appended to a list, a text or a tuple) and
            ``operator.or_`` (what was put into a set, or under the keys of a dict); of any
            other ``combine`` it is what the call left.
    """

    combine: Callable[[Any, Any], Any]
    change: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be called."""
        if not callable(self.combine) or not (self.change is None or callable(self.change)):
            raise DefinitionError("a Reducer takes functions: Reducer(combine, change=…)")

    def changed(self, before: Any, after: Any) -> Any:
        """Return what a call changed."""
        return (self.change or _CHANGES.get(self.combine, _left))(before, after)


def _left(before: Any, after: Any) -> Any:
    return after


def _added(before: Any, after: Any) -> Any:
    """Return what has to be added to ``before`` for ``after`` to come out."""
    if not isinstance(after, str | bytes | Sequence):
        return after - before
    if after[: len(before)] != before:
        raise ValueError("it was not only appended to")
    return after[len(before) :]


def _joined(before: Any, after: Any) -> Any:
    """Return what has to be joined to ``before`` for ``after`` to come out."""
    if not isinstance(after, Mapping):
        change = after - before
    else:
        change = {
            key: after[key] for key in after if key not in before or before[key] != after[key]
        }
    if before | change != after:
        raise ValueError("something was taken out of it")
    return change


_CHANGES: Final[dict[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    operator.add: _added,
    operator.or_: _joined,
}


# --- a state model ---------------------------------------------------------------------------


def check_state_model(model: Any, whose: str) -> None:
    """Refuse a state model that cannot work.

    Raises:
        DefinitionError: It is none, or a field has no default, an alias or no JSON form.
    """
    if not (isinstance(model, type) and issubclass(model, State)):
        raise DefinitionError(f"{whose} has the state {model!r}: derive it from commitline.State")
    name = model.__name__
    for at, found in model.model_fields.items():
        if found.is_required():
            raise DefinitionError(f"{whose}: the field {at!r} of {name} needs a default")
        if found.alias or found.validation_alias or found.serialization_alias:
            raise DefinitionError(f"{whose}: the field {at!r} of {name} may not have an alias")
        if sum(isinstance(one, Reducer) for one in found.metadata) > 1:
            raise DefinitionError(f"{whose}: the field {at!r} of {name} has two reducers")
    try:
        _load(model, _written(model()))
    except (ValueError, TypeError, UnrepresentableValue, PydanticUserError) as err:
        raise DefinitionError(f"{whose}: {name} does not survive being stored: {err}") from err


def _reducer(model: type[State], at: str) -> Reducer | None:
    found = model.model_fields[at].metadata
    return next((one for one in found if isinstance(one, Reducer)), None)


def _load(model: type[S], stored: Mapping[str, Json]) -> S:
    """Return a state as its tools see it: what is stored of its fields, else their defaults."""
    known = {at: stored[at] for at in model.model_fields if at in stored}
    return model.model_validate_json(dumps(known))


def read_state(model: type[S], text: str) -> S:
    """Return a stored state (JSON text) as its model has it.

    Raises:
        StateUnusable: It does not fit.
    """
    try:
        return _load(model, parse(text))
    except Exception as err:  # validators of the application may raise anything
        raise StateUnusable(
            f"what the conversation keeps does not fit {model.__name__}: {_explained(err)}"
        ) from err


def _written(value: State) -> dict[str, Json]:
    """Return a state as JSON data by field. What does not fit its type may not fail it yet."""
    written = value.model_dump(mode="json", round_trip=True, warnings=False)
    return {at: written[at] for at in type(value).model_fields if at in written}


def _adapter(model: type[State], at: str) -> TypeAdapter[Any]:
    """Return what reads and writes a change of a field, to which its constraints do not apply."""
    kind: Any = model.model_fields[at].annotation
    try:
        return TypeAdapter(kind, config=State.model_config)
    except PydanticUserError:
        return TypeAdapter(kind)  # a model or a dataclass, which brings its own


# --- what a call changes ---------------------------------------------------------------------


@dataclass(frozen=True)
class GivenState:
    """What a call is given of its conversation's state."""

    text: str
    """JSON text, as stored."""
    limit: int = MAX_STATE
    """Characters that the call's changes may have."""


current_state: ContextVar[GivenState | None] = ContextVar("commitline_state", default=None)
"""Of the guarded call that the running code belongs to; None where its tool takes none."""


class StateCopy:
    """One call's copy of the state.

    Args:
        model: The type of the tool's parameter.
        given: What is stored.

    Raises:
        StateUnusable: What is stored does not fit the model.
    """

    def __init__(self, model: type[State], given: GivenState) -> None:
        self.value = read_state(model, given.text)
        """What the tool gets."""
        try:
            self._given = self.value.model_copy(deep=True)
        except Exception as err:
            raise StateUnusable(f"{model.__name__} cannot be copied: {_explained(err)}") from err
        self._model = model
        self._limit = given.limit

    def changes(self) -> str | None:
        """Return what the call has changed in it, as JSON text; None is nothing. Never raises."""
        try:
            changes = self._changes()
            text = dumps(changes.to_data())
        except Exception as err:  # serializers and reducers of the application
            changes = Changes(dropped=_explained(err))
            text = dumps(changes.to_data())
        if len(text) > self._limit:
            why = f"they have {len(text)} characters, over {self._limit}"
            text = dumps(Changes(dropped=why).to_data())
        return None if text == "{}" else text

    def _changes(self) -> Changes:
        changes = Changes()
        before, after = _written(self._given), _written(self.value)
        for at, value in after.items():
            given, left = getattr(self._given, at), getattr(self.value, at)
            if canonical(value) == canonical(before[at]) or _same_set(given, left):
                continue
            reducer = _reducer(self._model, at)
            if reducer is None:
                changes.set[at] = value
                continue
            try:
                changed = reducer.changed(given, left)
            except Exception as err:
                raise ValueError(f"{at}: {error_text(err)}") from err
            changes.combine[at] = _adapter(self._model, at).dump_python(changed, mode="json")
        return changes


def _same_set(one: Any, other: Any) -> bool:
    """Whether two values are equal sets, which may be written in different orders."""
    return isinstance(one, set | frozenset) and bool(one == other)


# --- merging ---------------------------------------------------------------------------------


def merge(
    model: type[State] | None, state: Mapping[str, Json], calls: Sequence[CallChanges]
) -> Merged:
    """Merge what calls changed into the state that each of them was given a copy of.

    In the calls' order, field by field: what a call did not touch stays as it is. A call whose
    changes do not fit the model, or make the state too large, changes nothing. Fields that the
    model does not have stay: another agent's, or a later release's. Never raises.

    Args:
        model: The agent's; None if it has none (any more).
        state: JSON data by field.
        calls: In their order.
    """
    now = dict(state)
    setters: dict[str, tuple[str, Json]] = {}
    conflicts: list[Conflict] = []
    dropped: list[Dropped] = []
    for call in calls:
        try:
            now = _applied(model, now, call.changes)
        except Exception as err:  # validators and reducers of the application
            dropped.append(Dropped(call.position, call.changes.fields, _explained(err)))
            continue
        for at, value in call.changes.set.items():
            earlier, was = setters.get(at, (call.position, value))
            if canonical(was) != canonical(value):
                conflicts.append(Conflict(at, earlier, was, call.position, value))
            setters[at] = (call.position, value)
    return Merged(now, conflicts, dropped)


def _applied(
    model: type[State] | None, state: Mapping[str, Json], changes: Changes
) -> dict[str, Json]:
    """Return the state with one call's changes, all or none of them."""
    if changes.dropped:
        raise StateUnusable(changes.dropped)
    if model is None:
        raise StateUnusable("the agent has no state")
    changed = {**state, **changes.set}
    for at, change in _combined(model, state, changes):
        changed[at] = change
    _load(model, changed)
    size = len(dumps(changed))
    if size > MAX_STATE:
        raise StateUnusable(f"the state would have {size} characters, over {MAX_STATE}")
    return changed


def _combined(
    model: type[State], state: Mapping[str, Json], changes: Changes
) -> Iterator[tuple[str, Json]]:
    if not changes.combine:
        return
    current = _load(model, state)
    for at, change in changes.combine.items():
        reducer = _reducer(model, at) if at in model.model_fields else None
        if reducer is None:
            raise StateUnusable(f"{at} has no reducer any more")
        adapter = _adapter(model, at)
        combined = reducer.combine(getattr(current, at), adapter.validate_json(dumps(change)))
        yield at, adapter.dump_python(combined, mode="json", warnings=False)


def _explained(error: Exception) -> str:
    if isinstance(error, StateUnusable):
        return error.message
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_input=False, include_context=False)
        told = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in found[:5]
        )
        return scrub(told, limit=500)
    return scrub(f"{type(error).__name__}: {error_text(error)}", limit=500)
