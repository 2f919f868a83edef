"""The world outside: a provider that counts what really happened, whatever the ledger says.

It lives in the memory of the fuzz, so nothing that is done to Postgres reaches it. A request is one
step: it happens as a whole, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from commitline.ledger import Effect
from commitline.tests.fuzz.tools import Tool

Answer = Literal["ok", "declined", "at work", "refused"]
"""``refused`` is a connection that was not made: nothing was sent."""


@dataclass(frozen=True)
class Happened:
    """Something that happened."""

    key: str
    """The idempotency key of its request."""
    target: str | None
    """The key of what it undid."""


@dataclass
class Provider:
    """Does what is requested, and counts it by idempotency key."""

    chance: Random
    effects: Counter[str] = field(default_factory=Counter)
    """How often the request of a key had its effect."""
    log: list[Happened] = field(default_factory=list)
    """In order."""
    _answers: dict[str, Answer] = field(default_factory=dict)
    _at_work: set[str] = field(default_factory=set)
    _held: Counter[str] = field(default_factory=Counter)

    def request(self, tool: Tool, key: str, *, target: str | None) -> Answer:
        """Take one request; return the answer.

        Args:
            tool: Of an `IDEMPOTENT` one a key that was answered is answered the same again. Of any
                other one every request counts, unless the one before it is still at work.
            key: The idempotency key.
            target: What is to be undone, if the tool undoes something.
        """
        if self._held[key]:
            return "refused"
        if key in self._at_work:
            self._at_work.discard(key)
            return "ok"
        if tool.effect is Effect.IDEMPOTENT and key in self._answers:
            return self._answers[key]
        nothing_there = tool.undoes_something and not (target and self.effects[target])
        if nothing_there or self.chance.random() < 0.2:
            return self._answers.setdefault(key, "declined")
        self.effects[key] += 1
        self.log.append(Happened(key, target))
        if tool.effect is Effect.AT_MOST_ONCE and self.chance.random() < 0.1:
            self._at_work.add(key)
            return "at work"
        self._answers[key] = "ok"
        return "ok"

    def forget(self, keys: Iterable[str]) -> None:
        """Take what these keys request for new, from now on."""
        for key in keys:
            self._answers.pop(key, None)

    def happened(self, key: str | None) -> bool:
        """Whether the request of a key had its effect."""
        return key is not None and self.effects[key] > 0

    @contextmanager
    def asked_by_a_person(self, key: str | None) -> Iterator[bool]:
        """Say whether it happened, and take no request of this key meanwhile.

        A person cannot know of what begins while they write down what they were told.
        """
        self._held[key or ""] += 1
        try:
            yield self.happened(key)
        finally:
            self._held[key or ""] -= 1
