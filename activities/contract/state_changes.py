"""What calls changed in the shared state, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...canonical import Json


@dataclass(frozen=True)
class Changes:
    """What one call changed. JSON data by field."""

    set: dict[str, Json] = field(default_factory=dict)
    """What fields hold now."""
    combine: dict[str, Json] = field(default_factory=dict)
    """Of fields with a reducer: what it is to combine."""
    dropped: str = ""
    """Why nothing of it can be merged."""

    @property
    def fields(self) -> list[str]:
        """What they are about."""
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
    changes: Changes


@dataclass(frozen=True)
class Conflict:
    """Two calls of one message gave a field different values; the later one stands."""

    field: str
    earlier: str
    """Its position."""
    value: Json
    later: str
    stands: Json


@dataclass(frozen=True)
class Dropped:
    """A call's changes are not merged. What it did stands."""

    position: str
    fields: Sequence[str]
    why: str


@dataclass(frozen=True)
class Merged:
    """A state with the changes of a message's calls."""

    state: dict[str, Json]
    conflicts: Sequence[Conflict] = ()
    dropped: Sequence[Dropped] = ()
