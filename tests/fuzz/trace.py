"""What the actors did to each row, in order: printed for the rows that are in violation."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Iterable
from typing import Final, TypeVar

from commitline.ledger import (
    Accepted,
    Action,
    AlreadyDone,
    Dispatched,
    DueUndo,
    LookUp,
    Outcome,
    Parked,
    Run,
)

T = TypeVar("T")

_KEPT: Final = 60
"""Operations of a row, the last ones."""


class Trace:
    """Keeps the last operations about each row, run or business fact."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lines: defaultdict[str, deque[tuple[float, str]]] = defaultdict(
            lambda: deque(maxlen=_KEPT)
        )

    def note(self, about: str, text: str) -> None:
        """Keep a line."""
        at = time.monotonic() - self._began
        self._lines[about].append((at, text))

    async def call(self, who: str, what: str, about: str, answer: Awaitable[T]) -> T:
        """Wait for a ledger call; keep a line when it begins, and one with its answer."""
        began = time.monotonic() - self._began
        try:
            said = await answer
        except BaseException as err:
            self.note(about, f"{who}: {what} (from {began:.3f}) raises {type(err).__name__}: {err}")
            raise
        self.note(about, f"{who}: {what} (from {began:.3f}) -> {_short(said)}")
        return said

    def of(self, keys: Iterable[str]) -> list[str]:
        """Return the lines about these, in order."""
        found = [
            (at, key, text) for key in dict.fromkeys(keys) for at, text in self._lines.get(key, ())
        ]
        return [f"{at:9.3f}  {key}  {text}" for at, key, text in sorted(found)]


def _short(said: object) -> str:  # noqa: PLR0911 one per kind of answer
    match said:
        case Dispatched():
            again = " taken over" if said.taken_over else ""
            return f"dispatched {said.key} as {said.idempotency_key}{again}"
        case LookUp():
            return f"look up {said.call.key}, settles in {said.settles_in.total_seconds():.0f} s"
        case AlreadyDone(action) | Parked(action) | Accepted(action):
            return f"{type(said).__name__} {_short(action)}"
        case Action():
            return f"{said.key} {said.state} effect {said.effect_possible} undone {said.undone_by}"
        case Outcome():
            return f"{said.kind} effect {said.effect_possible} {said.result[:80]}"
        case Run():
            return f"{said.state} epoch {said.epoch} stopped {said.stopped_at is not None}"
        case list():
            return ", ".join(_short(one) for one in said[:6])
        case DueUndo():
            return f"{said.action.key} at {said.at}"
        case _:
            return str(said)[:160]
