"""What the provider counted, by the action that each request was made for."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

READ: Final = "look"
"""The kind of request that has no row."""


@dataclass(frozen=True)
class Violation:
    """Something that must not be."""

    run: str
    action: str
    """The row's key; empty where none is meant."""
    text: str

    def __str__(self) -> str:
        return f"{self.run}: {self.text}" + (f" [{self.action}]" if self.action else "")


class Counted:
    """The requests that reached the provider.

    Args:
        requests: In order of arrival: ``kind``, ``key``, ``body``, ``effect``.
    """

    def __init__(self, requests: Sequence[Mapping[str, Any]]) -> None:
        self.effects: Counter[str] = Counter()
        """How often each action happened."""
        self.arrived: dict[str, list[int]] = defaultdict(list)
        """When the requests of each action arrived, as places in their order."""
        self.happened: dict[str, list[int]] = defaultdict(list)
        """The same of those that had an effect."""
        self.subjects: Counter[str] = Counter()
        """How often something happened to each order, or person."""
        self.balances: dict[str, list[int]] = defaultdict(list)
        """Of each order, how often it stood as charged, after each charge and each refund."""
        for at, request in enumerate(requests):
            if request["kind"] != READ:
                self._count(at, request, json.loads(request["body"]))

    def _count(self, at: int, request: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        action = body["action"]
        self.arrived[action].append(at)
        if not request["effect"]:
            return
        self.effects[action] += 1
        self.happened[action].append(at)
        subject = str(body.get("order_id") or body.get("to"))
        self.subjects[subject] += 1
        step = {"charge": 1, "refund": -1}.get(request["kind"])
        if step is not None:
            stands = self.balances[subject]
            stands.append((stands[-1] if stands else 0) + step)
