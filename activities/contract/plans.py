"""The steps of a plan as they travel, and what becomes of what refers to a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ...canonical import Json, parse

Path: TypeAlias = list[str | int]
"""The way into JSON data: keys of objects, indexes of lists."""


@dataclass(frozen=True)
class Reference:
    """An argument, or a part of one, that is the result of an earlier step."""

    at: Path
    """Where it goes, in the arguments."""
    step: str
    path: Path = field(default_factory=list)
    """The way into that result."""

    def __str__(self) -> str:
        return f"result_of({', '.join(map(repr, (self.step, *self.path)))})"


@dataclass(frozen=True)
class PlannedStep:
    """One tool call of a plan."""

    name: str
    tool: str
    arguments: str
    """JSON text; null where a result goes."""
    references: list[Reference] = field(default_factory=list)


def resolved(step: PlannedStep, results: Mapping[str, Json]) -> Json:
    """Return the arguments of a step, with the results that they refer to.

    Raises:
        LookupError: A result does not hold what is referred to; the message says what.
    """
    arguments = parse(step.arguments)
    for one in step.references:
        *way, last = one.at
        holder = arguments
        for part in way:
            holder = holder[part]
        holder[last] = _found(results[one.step], one)
    return arguments


def _found(result: Json, reference: Reference) -> Json:
    for part in reference.path:
        fits = isinstance(result, dict if isinstance(part, str) else list)
        if not fits or not _holds(result, part):
            raise LookupError(f"{reference} is not in what {reference.step!r} returned")
        result = result[part]
    return result


def _holds(value: Json, part: str | int) -> bool:
    return part in value if isinstance(part, str) else -len(value) <= part < len(value)
