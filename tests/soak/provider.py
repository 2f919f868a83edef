"""The soak's provider: it counts, and fails as a provider may, before its effect or after it.

    unavailable   503, nothing has happened
    limited       429, nothing has happened
    declined      402, nothing has happened, and nothing will
    failing       503 after the effect
    dropped       the effect, and no answer
    slow          the effect, and an answer long after the caller's deadline
    late          no answer, and the effect a while later

A second request under the key of a slow one gets 409, as long as the first is under way.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from random import Random
from typing import Any, Final

from commitline.testing.provider import World, main

SEED: Final = "SOAK_PROVIDER_SEED"
"""The environment's variable."""

SLOW_SECONDS: Final = 4.5
"""Beyond the tools' deadline."""
LATE_SECONDS: Final = 1.0
"""Well within the time after which a lookup's "never happened" counts, and after the next try."""

_WEIGHTS: Final = {
    "unavailable": 6,
    "limited": 5,
    "declined": 4,
    "failing": 5,
    "dropped": 6,
    "slow": 4,
    "late": 4,
}
_BEFORE: Final = {"unavailable": 503, "limited": 429, "declined": 402}


class FaultyWorld(World):
    """A world in which ``behaviour.faults`` of the requests fail."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)
        self._drawing = threading.Lock()
        self._faults: Counter[str] = Counter()

    def act(
        self, kind: str, key: str | None, body: bytes, *, slow_seconds: float = 0.0
    ) -> tuple[int, dict[str, Any]]:
        """See base class."""
        fault = self._draw()
        if fault in _BEFORE:
            return _BEFORE[fault], {"error": fault}
        if fault == "late":
            threading.Timer(LATE_SECONDS, World.act, (self, kind, key, body)).start()
        if fault == "dropped":
            super().act(kind, key, body)
        if fault in ("late", "dropped"):
            raise ConnectionAbortedError("no answer")  # ends the connection without one
        slow = SLOW_SECONDS if fault == "slow" else slow_seconds
        status, answer = super().act(kind, key, body, slow_seconds=slow)
        return (503, {"error": fault}) if fault == "failing" else (status, answer)

    def look_up(self, kind: str, reference: str) -> tuple[int, dict[str, Any]]:
        """See base class. A question fails by 503, or is answered late."""
        fault = self._draw()
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
        return (503, {"error": fault}) if fault in _BEFORE else super().look_up(kind, reference)

    def stats(self) -> dict[str, Any]:
        """See base class; with the faults by kind."""
        with self._drawing:
            return {**super().stats(), "faults": dict(self._faults)}

    def _draw(self) -> str:
        with self._drawing:
            if self._random.random() >= self.behaviour.faults:
                return ""
            (fault,) = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            self._faults[fault] += 1
            return fault


if __name__ == "__main__":
    main(FaultyWorld(int(os.environ[SEED])))
