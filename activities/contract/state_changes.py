"""Changes of the shared state: what a call changed, and what became of it in the merge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...canonical import Json


@dataclass(frozen=True)
class Changes:
    """What one call changed, as JSON data by field. Recorded with its outcome."""

    set: dict[str, Json] = field(default_factory=dict)
    """The new values of fields without a reducer."""
    combine: dict[str, Json] = field(default_factory=dict)
    """The changes of fields with a reducer, which combines them."""
    dropped: str = ""
    """Why nothing of this can be merged; empty if it can."""

    @property
    def fields(self) -> list[str]:
        """The names of the changed fields."""
        return sorted({*self.set, *self.combine})

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Changes:
        """Read what `to_data` wrote."""
        return cls(data.get("set", {}), data.get("combine", {}), data.get("dropped", ""))

    def to_data(self) -> dict[str, Any]:
        """Write it as JSON data, without what is empty."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class CallChanges:
    """The changes of one call of a message."""

    position: str
    """The place of the call in its run."""
    changes: Changes


@dataclass(frozen=True)
class Conflict:
    """Two calls of one message gave a field different values; the later one stands."""

    field: str
    earlier: str
    """The position of the earlier call."""
    value: Json
    """What the earlier call set."""
    later: str
    """The position of the later call."""
    stands: Json
    """What the later call set."""


@dataclass(frozen=True)
class Dropped:
    """The changes of a call are not merged. The action of the call stands."""

    position: str
    fields: Sequence[str]
    """The names of the fields that it changed."""
    why: str
    """For the model and for people."""


@dataclass(frozen=True)
class Merged:
    """A state with the changes of all calls of a message."""

    state: dict[str, Json]
    conflicts: Sequence[Conflict] = ()
    dropped: Sequence[Dropped] = ()
