"""References: arguments of a plan's step that are results of earlier steps.

The workflow puts a small result in. A large one stays in the ledger: the step is scheduled with a
`StoredInput`, and the guard puts the result in when the call is made. So a result travels once at
most, however many steps use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ...canonical import Json
from ...identity import ActionKey

Path: TypeAlias = list[str | int]
"""The way into JSON data: keys of objects, indexes of lists."""


@dataclass(frozen=True)
class Reference:
    """An argument of a step, or a part of one, that is the result of an earlier step."""

    at: Path
    """Where it stands in the arguments."""
    step: str
    """The name of the earlier step."""
    path: Path = field(default_factory=list)
    """The way into its result; empty is the whole result."""

    def __str__(self) -> str:
        return f"result_of({', '.join(map(repr, (self.step, *self.path)))})"


@dataclass(frozen=True)
class StoredInput:
    """A reference to a result that the ledger keeps."""

    reference: Reference
    key: ActionKey
    """Under which the ledger has the result."""


def part_of(result: Json, reference: Reference) -> Json:
    """Return what a reference names in a result.

    Raises:
        LookupError: The result lacks it; the message names it.
    """
    for part in reference.path:
        fits = isinstance(result, dict if isinstance(part, str) else list)
        if not fits or not _holds(result, part):
            raise LookupError(f"{reference} is not in what {reference.step!r} returned")
        result = result[part]
    return result


def put_in(arguments: Json, reference: Reference, value: Json) -> None:
    """Put a value into arguments, where a reference stands."""
    *way, last = reference.at
    holder = arguments
    for part in way:
        holder = holder[part]
    holder[last] = value


def _holds(value: Json, part: str | int) -> bool:
    return part in value if isinstance(part, str) else -len(value) <= part < len(value)
