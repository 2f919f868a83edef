"""What the demo shows: what goes wrong, and when. What must be true afterwards is in `verdicts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ...crash import CRASH_POINTS
from .frameworks import FRAMEWORKS

BASELINE: Final = "baseline"
HUNG_TOOL: Final = "hung tool"
LEDGER_AWAY: Final = "ledger away"
PLAN_UNDONE: Final = "plan undone"
APPROVAL: Final = "approval"

Mishap = Literal["kill", "hang", "outage", "undo", "approval"]

HANG_SECONDS: Final = 6.0
"""How long the provider holds back its answer."""
TOOL_TIMEOUT: Final = 2.0
OUTAGE_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 1.0
"""How long a call waits for a person under one worker, under none, and under another."""

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
    """One run of the shop, and what goes wrong in it."""

    name: str
    crash_at: str = ""
    """The crash point at which its first worker kills itself; empty for none."""
    then_at: str = ""
    """The crash point of its second worker; empty for none."""
    mishap: Mishap = "kill"
    guarded: bool = True
    """Whether Commitline runs it; if not, the tools are plain Temporal activities (`baseline`)."""
    framework: str = ""
    """The framework of its agent, with `LedgerPlugin` or without; empty for Commitline's own."""
    requests: int | None = None
    """How many charge requests must reach the provider. There is a second one only if the worker
    dies between sending and recording. None if the kill of another call leaves it open."""

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
        if self.mishap == "undo":
            return (
                "A plan of four steps, the last of which is refused. Worker 1 dies "
                f"{_in_words(self.crash_at)}; worker 2, while it takes back what was done, "
                f"{_in_words(self.then_at)}"
            )
        if self.mishap == "approval":
            return (
                "A refund waits for a person. Its worker is killed, for a moment there is none, "
                "another one starts, and then the refund is approved"
            )
        if self.then_at:
            return f"Worker 1 dies {_in_words(self.crash_at)}; worker 2, {_in_words(self.then_at)}"
        return f"The worker dies {_in_words(self.crash_at)}"

    @property
    def pays(self) -> bool:
        """Whether it is about charges; otherwise it is about an undo or an approval."""
        return self.mishap not in ("undo", "approval")


def _in_words(crash_at: str) -> str:
    point, _, tool = crash_at.partition("@")
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
    Scenario(
        PLAN_UNDONE,
        "before_record@book_shipment",
        "before_record@refund_charge",
        mishap="undo",
    ),
    Scenario(APPROVAL, mishap="approval"),
    Scenario(BASELINE, "after_effect@charge_card", guarded=False),
)


def _of(framework: str, *, guarded: bool) -> Scenario:
    return Scenario(
        f"{framework}+ledger" if guarded else framework,
        "after_effect@charge_card",
        "after_effect@send_receipt",
        guarded=guarded,
        framework=framework,
    )


INTEGRATIONS: Final[tuple[Scenario, ...]] = tuple(
    _of(framework, guarded=guarded) for framework in FRAMEWORKS for guarded in (False, True)
)
"""The shop as an agent of each framework, as it is and with `LedgerPlugin`."""
