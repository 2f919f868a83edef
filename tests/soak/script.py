"""What each run of a soak does, by its seed and number: the same whoever asks, and when.

A *script* is what a run's model does; a *plan* is one of the product's (see `docs/plans.md`).
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, TypeAlias

Call: TypeAlias = tuple[str, dict[str, Any]]

TOOLS: Final = ("charge", "ship", "transfer", "mail", "look", "pay", "tell")
LOCAL: Final = "local-"
"""Before the name of a tool that is called locally."""
_LOCAL_TOOLS: Final = frozenset(TOOLS) - {"tell"}
"""The others are left to the relay."""
_LOCAL_RUNS: Final = 0.5
"""How many runs of agents, and how many conversations, have a model that is asked locally."""
_LOCAL_CALLS: Final = 0.9
"""How many calls of those runs are made locally."""
PERSONS: Final = ("approves", "approves", "rejects", "is away")
"""What a person does about a call that asks; so often each."""
CENTS: Final = 4900
_MOST_TURNS: Final = 3
_MOST_CALLS: Final = 3
_SHARED: Final = 0.2
"""How many charges are of an order that the run before has charged too."""
_CONFLICTING: Final = 0.2
"""How many of those ask for another amount."""
_ENDED: Final = 0.4
"""How many runs, of agents and of plans, somebody ends."""
_ENDED_WITHIN_SECONDS: Final = 4.0
_UNDONE_LATER: Final = 0.1
_FAILING: Final = 0.3
"""How many plans have a step that is always refused, before anything final."""
_HALF: Final = 0.5
"""How many plans ask a person, and how many have a pivot that is never sent twice."""
_ROLLED_BACK: Final = 0.25
_ORDERED: Final = 0.6
_ORDERED_TOOLS: Final = ("ship", "transfer")
_INTENDED_TOOLS: Final = ("ship", "transfer", "mail", "charge")
_ORDER_KEYS: Final = 3
_INTENT_PAUSE_SECONDS: Final = 2.0
FIRST_INTENT: Final = 2_000_000
"""From this number on it is an intent."""
FIRST_SAID: Final = 1_000_000
"""From this number on it is a request of a conversation."""
REQUESTS_PER_THREAD: Final = 5
THREADS_AT_A_TIME: Final = 2
_AGAIN_WITHIN_SECONDS: Final = 4.0
_LOST: Final = 0.3
_LOST_WITHIN_SECONDS: Final = 2.0
_TERMINATED: Final = 0.6


HowEnded: TypeAlias = Literal["stop", "stop and undo", "terminate"]


@dataclass(frozen=True)
class Ending:
    """How somebody ends a run before it does."""

    after: float
    """Seconds after its start."""
    how: HowEnded


@dataclass(frozen=True)
class Script:
    """What a run does."""

    turns: list[list[Call]]
    """The calls of each message of its model."""
    ending: Ending | None
    undone_later: bool
    """Whether somebody has it undone when it has ended."""


def script_of(seed: int, number: int) -> Script:
    """Return the script of a run."""
    random = _random(f"{seed}:{number}")
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
    if is_local(seed, number):
        turns = _some_locally(_random(f"{seed}:{number}:locally"), turns)
    return Script(turns, _ending(random), random.random() < _UNDONE_LATER)


def is_local(seed: int, number: int) -> bool:
    """Return whether a run's model is asked locally; it is the same throughout a conversation."""
    whose = thread_of(number) if number >= FIRST_SAID else number
    return _random(f"{seed}:{whose}:local").random() < _LOCAL_RUNS


@dataclass(frozen=True)
class PlanScript:
    """What a plan does: stages of steps by name, each a call."""

    stages: list[dict[str, Call]]
    ending: Ending | None
    undone_later: bool


def plan_script_of(seed: int, number: int) -> PlanScript:
    """Return the script of a plan: reversible steps, one that may fail, a pivot, and the rest."""
    random = _random(f"{seed}:{number}:plan")
    subject = f"plan-{number}"
    paid = ("pay", {"to": f"{subject}@example.com", "person": random.choice(PERSONS)})
    stages: list[dict[str, Call]] = [
        {"ship": ("ship", {"order_id": subject}), "charge": ("charge", _order(number))},
        {"transfer": ("transfer", {"to": f"{subject}@example.com"})},
    ]
    if random.random() < _HALF:
        stages[1]["pay"] = paid
    if random.random() < _FAILING:
        stages.append({"vet": ("vet", {"order_id": subject})})
    if random.random() < _HALF:
        stages.append({"mail": ("mail", {"to": f"{subject}@example.com"})})
    stages.append({"deliver": ("deliver", {"order_id": subject})})
    return PlanScript(stages, _ending(random), random.random() < _UNDONE_LATER)


@dataclass(frozen=True)
class IntentScript:
    """What an application commits together with a row of its own, or rolls back."""

    call: Call
    order_key: str | None
    rolled_back: bool
    pause: float
    """Seconds before it."""


def intent_script_of(seed: int, number: int) -> IntentScript:
    """Return the script of a transaction with an intent."""
    random = _random(f"{seed}:{number}:intent")
    subject = f"intent-{number}"
    ordered = random.random() < _ORDERED
    name = random.choice(
        ("ship", "transfer") if ordered else ("ship", "transfer", "mail", "charge")
    )
    call: Call = (name, {"to": f"{subject}@example.com"})
    if name == "ship":
        call = (name, {"order_id": subject})
    if name == "charge":
        # What a run, or another intent, may want, too.
        call = (name, _order((number - FIRST_INTENT) // 3))
    return IntentScript(
        call,
        f"customer-{random.randrange(_ORDER_KEYS)}" if ordered else None,
        rolled_back=random.random() < _ROLLED_BACK,
        pause=random.uniform(0, _INTENT_PAUSE_SECONDS),
    )


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
    random = _random(f"{seed}:{number}:said")
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


def without_local(tool: str) -> str:
    """Return what a tool is called where nothing is local."""
    return tool.removeprefix(LOCAL)


def is_prompt(text: str) -> bool:
    """Whether a message asks for something, and is no notice."""
    return text.startswith("Do number ")


def read_prompt(prompt: str) -> tuple[int, int]:
    """Return seed and number."""
    words = prompt.rstrip(".").split()
    return int(words[-1]), int(words[2])


def _random(named: str) -> Random:
    return Random(named)


def _some_locally(random: Random, turns: list[list[Call]]) -> list[list[Call]]:
    def placed(name: str) -> str:
        here = name in _LOCAL_TOOLS and random.random() < _LOCAL_CALLS
        return LOCAL + name if here else name

    return [[(placed(name), args) for name, args in calls] for calls in turns]


def _ending(random: Random) -> Ending | None:
    how = random.choice(typing.get_args(HowEnded))
    after = random.uniform(0, _ENDED_WITHIN_SECONDS)
    return Ending(after, how) if random.random() < _ENDED else None


def _order(number: int) -> dict[str, Any]:
    return {"order_id": f"order-{number}", "amount_cents": CENTS}


def _call(random: Random, subject: str) -> Call:
    name = random.choice(TOOLS)
    if name == "charge":
        return name, {"order_id": f"order-{subject}", "amount_cents": CENTS}
    if name in ("ship", "look", "tell"):
        return name, {"order_id": f"order-{subject}"}
    if name == "pay":
        return name, {"to": f"{subject}@example.com", "person": random.choice(PERSONS)}
    return name, {"to": f"{subject}@example.com"}
