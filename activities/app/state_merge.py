"""Merging what calls have changed into the state. Pure, but for the application's reducers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...canonical import Json, canonical, dumps
from ...errors import StateUnusable
from ..contract.sizes import MAX_STATE
from ..contract.state_changes import CallChanges, Changes, Conflict, Dropped, Merged
from .state import State
from .state_model import field_adapter, load, reducer_of
from .validation import explain


def merge(
    model: type[State] | None, state: Mapping[str, Json], calls: Sequence[CallChanges]
) -> Merged:
    """Merge what calls changed into the state that each of them was given a copy of.

    The changes are applied in the order of the calls, field by field. A call whose changes do
    not fit the model, or make the state too large, changes nothing. Fields that the model does
    not have stay: they belong to another agent, or to a later release. Never raises.

    Args:
        model: The state model of the agent; None if it has none (any more).
        state: JSON data by field.
        calls: The changes of each call, in the order of the calls.
    """
    now = dict(state)
    setters: dict[str, tuple[str, Json]] = {}
    conflicts: list[Conflict] = []
    dropped: list[Dropped] = []
    for call in calls:
        try:
            now = _applied(model, now, call.changes)
        except Exception as err:  # a validator or a reducer may raise anything
            dropped.append(Dropped(call.position, call.changes.fields, explain(err)))
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
    """Return the state with the changes of one call, all or none of them."""
    if changes.dropped:
        raise StateUnusable(changes.dropped)
    if model is None:
        raise StateUnusable("the agent has no state")
    changed = {**state, **changes.set}
    for at, change in _combined(model, state, changes):
        changed[at] = change
    load(model, changed)
    size = len(dumps(changed))
    if size > MAX_STATE:
        raise StateUnusable(f"the state would have {size} characters, over {MAX_STATE}")
    return changed


def _combined(
    model: type[State], state: Mapping[str, Json], changes: Changes
) -> Iterator[tuple[str, Json]]:
    if not changes.combine:
        return
    current = load(model, state)
    for at, change in changes.combine.items():
        reducer = reducer_of(model, at) if at in model.model_fields else None
        if reducer is None:
            raise StateUnusable(f"{at} has no reducer any more")
        adapter = field_adapter(model, at)
        combined = reducer.combine(getattr(current, at), adapter.validate_json(dumps(change)))
        yield at, adapter.dump_python(combined, mode="json", round_trip=True, warnings=False)
