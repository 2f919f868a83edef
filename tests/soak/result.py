"""What came of a soak, as its report and its tests read it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitline.tests.soak.counted import Violation


@dataclass(frozen=True)
class Result:
    """What came of a soak."""

    seed: int
    seconds: float
    """How long the whole soak took."""
    settled_in: float
    """From the last fault to the end of the last run."""
    runs: Counter[str]
    """By state; those of conversations are among them. And how many starts were repeated."""
    talks: Counter[str]
    """Of conversations: ``requests``, ``sent again``, ``runs lost``, and why senders sent again."""
    plans: Counter[str]
    """By state."""
    undos: Counter[str]
    """Runs by what their undo report says, and ``actions undone``."""
    people: Counter[str]
    """What people did."""
    outbox: Counter[str]
    """What became of transactions with an intent."""
    actions: Counter[tuple[str, str]]
    """By effect and state."""
    local: Counter[str]
    """By state, those that a local attempt has claimed."""
    faults: Counter[str]
    provider_faults: Counter[str]
    exits: Counter[int]
    """How workers ended, by exit status."""
    events: Counter[str]
    """What the workers logged, by event."""
    violations: Sequence[Violation]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "settled_in": round(self.settled_in, 1),
            "runs": dict(sorted(self.runs.items())),
            "talks": dict(sorted(self.talks.items())),
            "plans": dict(sorted(self.plans.items())),
            "undos": dict(sorted(self.undos.items())),
            "people": dict(sorted(self.people.items())),
            "outbox": dict(sorted(self.outbox.items())),
            "actions": {
                f"{effect} {state}": count
                for (effect, state), count in sorted(self.actions.items())
            },
            "local": dict(sorted(self.local.items())),
            "faults": dict(sorted(self.faults.items())),
            "provider_faults": dict(sorted(self.provider_faults.items())),
            "worker_exits": {str(status): count for status, count in sorted(self.exits.items())},
            "events": dict(sorted(self.events.items())),
            "violations": [str(found) for found in self.violations],
        }


class CannotLook(Exception):
    """Raised when what a soak left cannot be read: there is no verdict.

    Args:
        result: What was counted until then.
        problem: Why it cannot be read.
    """

    def __init__(self, result: Result, problem: Exception) -> None:
        super().__init__(f"what it left could not be read: {type(problem).__name__}: {problem}")
        self.result = result


def events_of(logs: Sequence[Path]) -> tuple[Counter[str], list[Violation]]:
    """Count what the workers logged, by event; and find the lines that are no event."""
    events: Counter[str] = Counter()
    others = []
    for line in (line for log in logs for line in log.read_text(errors="replace").splitlines()):
        try:
            events[str(json.loads(line)["event"])] += 1
        except (ValueError, KeyError, TypeError):
            others.append(Violation("a worker", "", f"wrote what is no event: {line[:300]}"))
    return events, others
