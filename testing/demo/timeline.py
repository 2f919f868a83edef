"""What was seen of a scenario, in order: from worker logs, the provider and the ledger.

A line is a log event that a worker wrote, a request that the provider counted, a row that Postgres
holds, or something that the demo did. No line is made up from what should have happened.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ...errors import ToolRefused
from ...ledger import Action
from ..processes import ProviderProcess


@dataclass(frozen=True, order=True)
class Entry:
    """One thing that was seen."""

    seconds: float
    """Since the run was started."""
    who: str
    text: str


def _recorded(event: dict[str, Any]) -> str:
    again = ", called again with the first attempt's key" if event.get("taken_over") else ""
    return f"recorded {event['tool']} as {event['outcome']}{again}"


def _completion(event: dict[str, Any]) -> str:
    calls = event["calls"]
    told = f"{calls} {'call' if calls == 1 else 'calls'}" if calls else "the last text"
    return f"recorded the model's answer: {told}"


def _raised(event: dict[str, Any]) -> str:
    refused = event["error"] == ToolRefused.__name__
    then = "nothing has happened" if refused else "asks again later"
    return f"{event['tool']} raised {event['error']}: {then}"


_EVENTS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "worker.started": lambda event: f"is up (pid {event['pid']})",
    "model.completion_recorded": _completion,
    "model.completion_replayed": lambda _: "read the recorded answer; the model is not asked again",
    "ledger.action_recorded": _recorded,
    "ledger.action_replayed": lambda event: (
        f"found {event['tool']} recorded; it is not called again"
    ),
    "ledger.action_unknown": lambda event: (
        f"answered unknown for {event['tool']}: {event['reason']}"
    ),
    "tool.raised": _raised,
    "tool.timed_out": lambda event: (
        f"stopped waiting for {event['tool']} after {event['seconds']:g} s: tool_timeout"
    ),
    "ledger.outcome_handed_over": lambda event: (
        f"cannot record {event['tool']}: hands its outcome over to the run's history"
    ),
    "ledger.outcome_recorded": lambda event: f"recorded what was handed over: {event['outcome']}",
    "undo.begun": lambda _: "begins to undo the run",
    "undo.finished": lambda event: f"has undone the run: {event['state']}",
    "approval.requested": lambda event: f"asks a person about {event['tool']}, and waits",
    "approval.decided": lambda event: f"took down that {event['by']} {event['decision']} it",
    "ledger.action_parked": lambda event: f"parked {event['tool']}: {event['reason']}",
}


class Timeline:
    """Collects entries; times are of this machine's clock, which all its processes share."""

    def __init__(self, provider: ProviderProcess) -> None:
        self._began = time.time()
        self._provider = provider
        self._requests_seen = 0
        self._logs: dict[str, tuple[Path, int]] = {}
        self._claims_seen: set[str] = set()
        self._entries: list[Entry] = []

    @property
    def entries(self) -> Sequence[Entry]:
        """All of them, in order of time."""
        return sorted(self._entries, key=lambda entry: entry.seconds)

    def add(self, who: str, text: str, *, at: float | None = None) -> None:
        """Add a line for now, or for a time by the wall clock."""
        moment = time.time() if at is None else at
        self._entries.append(Entry(max(moment - self._began, 0.0), who, text))

    def follow(self, worker: str, log: Path) -> None:
        """Read a worker's log from now on."""
        self._logs[worker] = (log, 0)

    def look(self) -> None:
        """Add what is new at the provider and in the logs."""
        self._look_at_provider()
        for worker, (log, seen) in self._logs.items():
            lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
            whole = [line for line in lines if line.endswith(b"\n")]
            for line in whole[seen:]:
                self._add_event(worker, line)
            self._logs[worker] = (log, len(whole))

    def look_at_rows(self, actions: Sequence[Action], *, worker: str) -> None:
        """Add the rows that are new since the last look: this worker claimed them."""
        for action in actions:
            if action.key not in self._claims_seen and action.dispatched_at is not None:
                self._claims_seen.add(action.key)
                self.add(
                    worker,
                    f"claimed {action.tool}: its intent is committed",
                    at=action.created_at.timestamp(),
                )

    def _look_at_provider(self) -> None:
        stats = self._provider.stats()
        for request in stats["sent"][self._requests_seen :]:
            kind = request["kind"]
            key = f", key {request['key']}" if request["key"] else ", without a key"
            text = f"got a {kind} request{key}; {kind}s made so far: {effects(stats, kind)}"
            self.add("provider", text, at=request.get("at"))
        self._requests_seen = len(stats["sent"])

    def _add_event(self, worker: str, line: bytes) -> None:
        try:
            event = json.loads(line)
            in_words = _EVENTS.get(event["event"])
            at = datetime.fromisoformat(event["timestamp"]).timestamp()
        except (ValueError, KeyError, TypeError):
            return  # a line of a library, no event
        if in_words is not None:
            self.add(worker, in_words(event), at=at)


def effects(stats: Mapping[str, Any], kind: str) -> int:
    """Return how often the provider did something: ``charge``, ``mail``."""
    return sum(n for subject, n in stats["effects"].items() if subject.startswith(f"{kind}:"))
