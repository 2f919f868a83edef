"""What each run of a soak does, by its seed and number: the same whoever asks, and when."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

Call: TypeAlias = tuple[str, dict[str, Any]]

TOOLS: Final = ("charge", "ship", "transfer", "mail", "look")
CENTS: Final = 4900
_MOST_TURNS: Final = 3
_MOST_CALLS: Final = 3
_SHARED: Final = 0.2
"""How many charges are of an order that the run before has charged too."""
_CONFLICTING: Final = 0.2
"""How many of those ask for another amount."""
_STOPPED: Final = 0.25
_STOPPED_WITHIN_SECONDS: Final = 3.0
FIRST_SAID: Final = 1_000_000
"""From this number on it is a request of a conversation."""
REQUESTS_PER_THREAD: Final = 5
THREADS_AT_A_TIME: Final = 2
_AGAIN_WITHIN_SECONDS: Final = 4.0
_LOST: Final = 0.3
_LOST_WITHIN_SECONDS: Final = 2.0
_TERMINATED: Final = 0.6


@dataclass(frozen=True)
class Plan:
    """What a run does."""

    turns: list[list[Call]]
    """The calls of each message of its model."""
    stop_after: float | None
    """When it is stopped, in seconds after its start; None is never."""


def plan_of(seed: int, number: int) -> Plan:
    """Return the plan of a run."""
    random = Random(f"{seed}:{number}")  # noqa: S311 - to be repeated, not to be secret
    turns = [
        [
            _call(random, f"{number}-{turn}-{index}")
            for index in range(random.randint(1, _MOST_CALLS))
        ]
        for turn in range(random.randint(1, _MOST_TURNS))
    ]
    # Every run charges an order that the next one knows of.
    turns[0].append(("charge", _order(number)))
    if number > 0 and random.random() < _SHARED:
        order = _order(number - 1)
        if random.random() < _CONFLICTING:
            order["amount_cents"] = CENTS + 1
        turns[0].append(("charge", order))
    stopped = random.random() < _STOPPED
    return Plan(turns, random.uniform(0, _STOPPED_WITHIN_SECONDS) if stopped else None)


@dataclass(frozen=True)
class Saying:
    """How a request of a conversation is sent, and what becomes of its run."""

    again_after: float | None
    """When another client sends it too, in seconds after the first; None is never."""
    lost_after: float | None
    """When the conversation's run is lost; None is never."""
    terminated: bool
    """How: terminated in Temporal, or stopped."""


def thread_of(number: int) -> str:
    """Return the conversation that a request is of."""
    block, at = divmod(number - FIRST_SAID, THREADS_AT_A_TIME * REQUESTS_PER_THREAD)
    return f"talk-{block * THREADS_AT_A_TIME + at % THREADS_AT_A_TIME}"


def saying_of(seed: int, number: int) -> Saying:
    """Return how a request is sent."""
    random = Random(f"{seed}:{number}:said")  # noqa: S311 - to be repeated, not to be secret
    again = random.choice([None, 0.0, random.uniform(0, _AGAIN_WITHIN_SECONDS)])
    lost = random.random() < _LOST
    return Saying(
        again,
        random.uniform(0, _LOST_WITHIN_SECONDS) if lost else None,
        terminated=random.random() < _TERMINATED,
    )


def prompt_of(seed: int, number: int) -> str:
    """Return what a run is asked to do."""
    return f"Do number {number} of the soak {seed}."


def is_prompt(text: str) -> bool:
    """Whether a message asks for something, and is no notice."""
    return text.startswith("Do number ")


def read_prompt(prompt: str) -> tuple[int, int]:
    """Return seed and number."""
    words = prompt.rstrip(".").split()
    return int(words[-1]), int(words[2])


def _order(number: int) -> dict[str, Any]:
    return {"order_id": f"order-{number}", "amount_cents": CENTS}


def _call(random: Random, subject: str) -> Call:
    name = random.choice(TOOLS)
    if name == "charge":
        return name, {"order_id": f"order-{subject}", "amount_cents": CENTS}
    if name in ("ship", "look"):
        return name, {"order_id": f"order-{subject}"}
    return name, {"to": f"{subject}@example.com"}
