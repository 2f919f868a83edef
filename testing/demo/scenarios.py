"""What the demo shows: what goes wrong, and what must be true afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ...crash import CRASH_POINTS
from ...ledger import Action

BASELINE: Final = "baseline"
HUNG_TOOL: Final = "hung tool"
LEDGER_AWAY: Final = "ledger away"

Mishap = Literal["kill", "hang", "outage"]

HANG_SECONDS: Final = 6.0
"""How long the provider keeps its answer to itself."""
TOOL_TIMEOUT: Final = 2.0
OUTAGE_SECONDS: Final = 10.0

_WHERE: Final = {
    "before_claim": "just before it claims the call",
    "after_claim": "when the intent is committed and nothing is sent",
    "after_effect": "when the provider has acted and the tool has not returned",
    "before_record": "when the tool has returned and nothing is recorded",
    "after_record": "when the outcome is recorded and Temporal does not know it",
    "after_completion": "when the model has answered and nothing is recorded",
    "completion_recorded": "when the answer is recorded and Temporal does not know it",
}
_OF_THE_MODEL: Final = ("after_completion", "completion_recorded")


@dataclass(frozen=True)
class Scenario:
    """One run of the shop's agent, to which something happens."""

    name: str
    crash_at: str = ""
    """Where its first worker is killed, if it is."""
    mishap: Mishap = "kill"
    guarded: bool = True
    """False: the same tools as plain Temporal activities, by `baseline`."""
    requests: int | None = None
    """How many charge requests the provider must see: a second one only where the worker died
    between sending and recording. None where the kill of another call leaves it open."""

    @property
    def where(self) -> str:
        """What happens, and when, in words."""
        if self.mishap == "hang":
            return (
                f"The provider charges and does not answer for {HANG_SECONDS:g} s; a charge may "
                f"take {TOOL_TIMEOUT:g} s (tool_timeout)"
            )
        if self.mishap == "outage":
            return (
                "The provider has charged, and before the tool returns Postgres is gone, for "
                f"{OUTAGE_SECONDS:g} s"
            )
        return f"The worker dies {self._point}"

    @property
    def _point(self) -> str:
        point, _, tool = self.crash_at.partition("@")
        return f"at {tool}, {_WHERE[point]}" if tool else _WHERE[point]


_SENT_AGAIN: Final = ("after_effect", "before_record")


def _guarded(crash_at: str) -> Scenario:
    point, _, tool = crash_at.partition("@")
    requests = None if tool == "send_receipt" else 2 if point in _SENT_AGAIN else 1
    return Scenario(crash_at, crash_at, requests=requests)


SCENARIOS: Final[tuple[Scenario, ...]] = (
    *(
        _guarded(point if point in _OF_THE_MODEL else f"{point}@charge_card")
        for point in CRASH_POINTS
    ),
    _guarded("after_claim@send_receipt"),
    _guarded("after_effect@send_receipt"),
    Scenario(HUNG_TOOL, mishap="hang"),
    Scenario(LEDGER_AWAY, mishap="outage", requests=1),
    Scenario(BASELINE, "after_effect@charge_card", guarded=False),
)


@dataclass(frozen=True)
class World:
    """What is counted when a run has ended."""

    charges: int
    mails: int
    charge_requests: Sequence[tuple[str | None, str]]
    """Key and body of each."""
    actions: Sequence[Action]
    run: str


def faults(scenario: Scenario, world: World) -> list[str]:
    """Return what is wrong, in words; nothing if the scenario shows what it promises."""
    if not scenario.guarded:
        twice = world.charges > 1
        return [] if twice else ["the baseline did not charge twice: the demo shows nothing"]
    per_tool = Counter(action.tool for action in world.actions)
    states = {action.tool: action.state for action in world.actions}
    checks = {
        f"the run is {world.run}": world.run == "completed",
        f"{world.charges} charges": world.charges == 1,
        f"{world.mails} mails": world.mails <= 1,
        f"rows per call: {dict(per_tool)}": per_tool == {"charge_card": 1, "send_receipt": 1},
        f"{len(world.charge_requests)} charge requests": (
            scenario.requests in (None, len(world.charge_requests))
        ),
        "charge requests with different keys or bodies": len(set(world.charge_requests)) <= 1,
        f"charge_card is {states.get('charge_card')}": states.get("charge_card") == "ok",
        f"send_receipt is {states.get('send_receipt')} with {world.mails} mails": (
            states.get("send_receipt") == "unknown"
            or (states.get("send_receipt") == "ok" and world.mails == 1)
        ),
    }
    return [told for told, holds in checks.items() if not holds]
