"""A call's own copy of the state, and what the call has changed in it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ...canonical import canonical, dumps
from ...errors import StateUnusable
from ...ledger.result_codec import error_text
from ..contract.sizes import MAX_STATE
from ..contract.state_changes import Changes
from .state import State
from .state_model import check_whole, field_adapter, read_state, reducer_of, written
from .validation import explain


@dataclass(frozen=True)
class GivenState:
    """The state of a conversation, as it is given to one call."""

    text: str
    """JSON text, as the ledger has it."""
    limit: int = MAX_STATE
    """Characters of JSON that the call's changes may have."""


current_state: ContextVar[GivenState | None] = ContextVar("commitline_state", default=None)
"""The state for the guarded call that the running code belongs to; None if its tool takes none."""


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
            raise StateUnusable(f"{model.__name__} cannot be copied: {explain(err)}") from err
        self._model = model
        self._limit = given.limit

    def changes(self) -> str | None:
        """Return what the call has changed in it, as JSON text; None is nothing. Never raises."""
        try:
            changes = self._changes()
            text = dumps(changes.to_data())
        except Exception as err:  # a serializer or a reducer may raise anything
            changes = Changes(dropped=explain(err))
            text = dumps(changes.to_data())
        if len(text) > self._limit:
            why = f"they have {len(text)} characters, over {self._limit}"
            text = dumps(Changes(dropped=why).to_data())
        return None if text == "{}" else text

    def _changes(self) -> Changes:
        changes = Changes()
        before, after = written(self._given), written(self.value)
        for at, value in after.items():
            given, left = getattr(self._given, at), getattr(self.value, at)
            if canonical(value) == canonical(before[at]) or _same_set(given, left):
                continue
            check_whole(self.value, at)
            reducer = reducer_of(self._model, at)
            if reducer is None:
                changes.set[at] = value
                continue
            try:
                changed = reducer.changed(given, left)
            except Exception as err:
                raise ValueError(f"{at}: {error_text(err)}") from err
            adapter = field_adapter(self._model, at)
            changes.combine[at] = adapter.dump_python(changed, mode="json", round_trip=True)
        return changes


def _same_set(one: Any, other: Any) -> bool:
    """Whether two values are equal sets, which may be written in different orders."""
    return isinstance(one, set | frozenset) and bool(one == other)
