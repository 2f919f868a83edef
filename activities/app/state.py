"""Shared state: what the tools of a conversation know and change together.

    class Order(State):
        address: str = ""
        notes: Annotated[list[str], Reducer(operator.add)] = []

    @tool(effect=Effect.IDEMPOTENT)
    async def set_address(state: Order, address: str) -> str:
        state.address = address
        ...

A call gets a copy of its own of the state, as the model turn left it that made the call. The
fields in which the copy differs when the call has returned are its *changes* (`state_copy`). They
are recorded with the outcome of the call and travel with its result. The activity that commits
the next turn merges them (`state_merge`). Nothing here runs in a workflow: models, reducers and
serializers are user code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from ...errors import DefinitionError


class State(BaseModel):
    """The base of state models; every field has a default.

    A pydantic model like any other. It is checked when changes are merged, not when a tool
    assigns: a value that does not fit must not fail a call whose effect stands.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


@dataclass(frozen=True)
class Reducer:
    """How a field combines what several calls changed: ``Annotated[list[str], Reducer(…)]``.

    Raises:
        DefinitionError: ``combine`` or ``change`` is no function.
    """

    combine: Callable[[Any, Any], Any]
    """``combine(current, change)`` returns the new value of the field. It is called in the order
    of the calls, and perhaps more than once, so it must only compute."""
    change: Callable[[Any, Any], Any] | None = None
    """``change(before, after)`` returns what a call changed, as a value of the field's type, from
    what the call was given and what it left. None: with ``operator.add``, the difference of two
    numbers, or what was appended to a list, a text or a tuple; with ``operator.or_``, what was
    put into a set, or under the keys of a dict; with any other ``combine``, what the call left."""

    def __post_init__(self) -> None:
        """Refuse what cannot be called."""
        if not callable(self.combine) or not (self.change is None or callable(self.change)):
            raise DefinitionError("a Reducer takes functions: Reducer(combine, change=…)")

    def changed(self, before: Any, after: Any) -> Any:
        """Return what a call changed, from what it was given and what it left."""
        return (self.change or _CHANGES.get(self.combine, _whole))(before, after)


def _whole(before: Any, after: Any) -> Any:
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
