"""What is counted after a scenario, and what of it is wrong.

The provider's count matters most: what it was sent, in order, and which requests had an effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from ...ledger import Action
from .scenarios import Scenario

DONE: Final = ("reservation", "charge", "shipment")
UNDONE: Final = ("cancellation", "refund", "release")
"""What undoes those, in the order in which it must happen."""
_TO_BE_SENT: Final = {
    **dict.fromkeys((*DONE, *UNDONE, "handover"), 1),
    # A worker dies between each of these and its record.
    "shipment": 2,
    "refund": 2,
}
_OF_THE_PLAN: Final = {
    "reserve_stock": "ok",
    "charge_card": "ok",
    "book_shipment": "ok",
    "hand_over": "error",
    "cancel_shipment": "ok",
    "refund_charge": "ok",
    "release_stock": "ok",
}
_READ: Final = {"charge_card": "ok", "send_receipt": "unknown"}
"""By the model of another framework, whose worker died after the mail."""


@dataclass(frozen=True)
class Sent:
    """A request that reached the provider."""

    kind: str
    key: str | None
    body: str
    effect: bool = True
    """Whether it had an effect: it had none if it was refused or repeated a key."""


@dataclass(frozen=True)
class World:
    """What is counted after a run has ended."""

    charges: int
    mails: int
    charge_requests: Sequence[tuple[str | None, str]]
    """Key and body of each."""
    actions: Sequence[Action]
    run: str
    sent: Sequence[Sent] = ()
    """All that reached the provider, in order."""
    undo: str = ""
    """What the ledger says of the run's undo: ``compensated``."""
    approval: str = ""
    """What the ledger records as the decision about the call that waited."""
    read: Mapping[str, str] = field(default_factory=dict)
    """What the model of another framework has read, by tool: ``ok``, ``unknown``."""
    early: int = 0
    """How many requests reached the provider before that decision."""

    @property
    def effects(self) -> Sequence[str]:
        """What the provider did, in order."""
        return [one.kind for one in self.sent if one.effect]


def faults(scenario: Scenario, world: World) -> list[str]:
    """Return what is wrong, in words; nothing if the scenario shows what it promises."""
    return [text for text, holds in _checks(scenario)(scenario, world).items() if not holds]


def _checks(scenario: Scenario) -> Callable[[Scenario, World], Mapping[str, bool]]:
    if scenario.framework:
        return _acted_once if scenario.guarded else _acted_twice
    if not scenario.guarded:
        return _charged_twice
    return {"undo": _undone, "approval": _approved}.get(scenario.mishap, _paid_once)


def _charged_twice(_: Scenario, world: World) -> Mapping[str, bool]:
    return {"the baseline did not charge twice: the demo shows nothing": world.charges > 1}


def _acted_twice(_: Scenario, world: World) -> Mapping[str, bool]:
    return {
        f"without the ledger {world.charges} charges and {world.mails} mails: the demo shows "
        "nothing": world.charges > 1 and world.mails > 1,
        f"the run is {world.run}": world.run == "completed",
    }


def _acted_once(scenario: Scenario, world: World) -> Mapping[str, bool]:
    return {
        **_paid_once(scenario, world),
        f"{world.mails} mails": world.mails == 1,
        f"the model has read {dict(world.read)}": world.read == _READ,
    }


def _paid_once(scenario: Scenario, world: World) -> Mapping[str, bool]:
    per_tool = Counter(action.tool for action in world.actions)
    states = _states(world)
    return {
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


def _undone(_: Scenario, world: World) -> Mapping[str, bool]:
    times = Counter(world.effects)
    first = list(dict.fromkeys(world.effects))
    stands = [
        done
        for done, undone in zip(DONE, reversed(UNDONE), strict=True)
        if times[done] > times[undone]
    ]
    return {
        f"the run is {world.run}": world.run == "failed",
        **{f"{kind}: {times[kind]} effects": times[kind] == 1 for kind in (*DONE, *UNDONE)},
        "handover: an effect, and it was refused": times["handover"] == 0,
        f"the order was {', '.join(first)}": first == [*DONE, *UNDONE],
        f"not undone: {', '.join(stands)}": not stands,
        f"the ledger says {world.undo!r}": world.undo == "compensated",
        **_sent_as(world, _TO_BE_SENT),
        f"rows: {_rows(world)}": _rows(world) == sorted(_OF_THE_PLAN.items()),
    }


def _approved(_: Scenario, world: World) -> Mapping[str, bool]:
    refunds = world.effects.count("refund")
    return {
        f"the run is {world.run}": world.run == "completed",
        "no call waited for a person": world.approval != "",
        f"the approval is {world.approval}": world.approval in ("", "approved"),
        f"{world.early} requests before the approval": world.early == 0,
        f"refund: {refunds} effects": refunds == 1,
        **_sent_as(world, {"refund": 1}),
        f"rows: {_rows(world)}": _rows(world) == [("refund_charge", "ok")],
    }


def _sent_as(world: World, wanted: Mapping[str, int]) -> Mapping[str, bool]:
    """Return what must hold of the requests: how many of each kind, with one key and body."""
    times = Counter(one.kind for one in world.sent)
    kinds = dict.fromkeys(chain(wanted, times))
    return {
        f"{kind}: {times[kind]} requests": times[kind] == wanted.get(kind, 0) for kind in kinds
    } | {
        f"{kind} requests with different keys or bodies": (
            len({(one.key, one.body) for one in world.sent if one.kind == kind}) <= 1
        )
        for kind in kinds
    }


def _states(world: World) -> Mapping[str, str]:
    return {action.tool: action.state for action in world.actions}


def _rows(world: World) -> Sequence[tuple[str, str]]:
    return sorted((action.tool, action.state) for action in world.actions)
