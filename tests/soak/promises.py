"""What must hold of undos, approvals, intents and the relay's queue: pure functions.

undo      an action that is recorded as undone was undone once, after it had happened; any other
          was not undone, or its undo is unknown. What repeats another action did nothing itself:
          it is undone where that one is, by the same undo
run       a run is *compensated* only if no effect that a tool can undo is left; each undo that
          was wanted was at least tried
approval  what no person approved never happened
intent    what was rolled back never happened; what was committed has its action; actions that
          share an order reached the provider in the order of their commits
queue     everything due was sent, unless an action before it waits for a person; nothing is at
          work any more
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from commitline.identity import ActionKey, RunKey
from commitline.ledger import Action, Approval, QueuedAction
from commitline.tests.soak.counted import Counted, Violation
from commitline.tests.soak.script import without_local

GATED: Final = "pay"
"""The tool that a person has to approve."""


@dataclass(frozen=True)
class RunUndo:
    """What the ledger says of a run's undo, at the end."""

    run_key: RunKey
    state: str
    """As `UndoReport.state`."""
    wanted: bool
    """The run was stopped with ``compensate``, its plan failed, or a client requested the undo."""
    gone: bool
    """Its workflow ended without recording its end, so nothing is undone by itself."""


@dataclass(frozen=True)
class Intent:
    """A row that an application wrote in one transaction with its intent."""

    number: int
    subject: str
    """What the call is about; empty if other calls may be about it, too."""
    action: ActionKey | None
    """None where the transaction did not commit."""
    order_key: str | None = None
    seq: int = 0
    """In the order of the commits of those that share an order."""


def of_undos(actions: Sequence[Action], counted: Counted) -> Iterator[Violation]:
    """Compare what the rows record as undone with what the provider undid."""
    undos = _undos(actions)
    rows = {one.key: one for one in actions}
    for key in undos:
        if key not in rows:
            yield Violation("all runs", key, "is undone and has no row")
    for action in actions:
        if action.undoes is not None:
            continue
        mine = undos.get(action.key, [])
        if action.duplicate_of is not None:
            yield from _of_repeat(action, rows.get(action.duplicate_of), mine)
            continue
        taken_back = sum(counted.effects[one.key] for one in mine)
        if taken_back not in _allowed(action, mine):
            says = "undone" if action.undone_by is not None else "not undone"
            yield _wrong(action, f"says {says} and was undone {taken_back} x")
        if action.undone_by is not None and action.undone_by not in {one.key for one in mine}:
            yield _wrong(action, f"is undone by {action.undone_by}, which does not undo it")
        forward, back = (
            _places(counted, action),
            [at for one in mine for at in _places(counted, one)],
        )
        if back and (not forward or min(back) < min(forward)):
            yield _wrong(action, "was undone before it had happened")


def _of_repeat(
    repeat: Action, original: Action | None, undos: Sequence[Action]
) -> Iterator[Violation]:
    """Compare an action that repeats another one with that one, whose effect is undone for both."""
    if undos:
        yield _wrong(repeat, f"happened as {repeat.duplicate_of}, and was itself to be undone")
    if original is None:
        yield _wrong(repeat, f"repeats {repeat.duplicate_of}, which has no row")
        return
    # A refusal repeats nothing. What is unknown like its original learns it together with that.
    by = original.undone_by if repeat.effect_possible else None
    if repeat.status == "done" and repeat.undone_by != by:
        yield _wrong(repeat, f"is undone by {repeat.undone_by}, and {original.key} by {by}")


def of_runs_undone(
    runs: Sequence[RunUndo], actions: Sequence[Action], counted: Counted
) -> Iterator[Violation]:
    """Find effects that are left of runs that are compensated, or that were to be undone."""
    undos = _undos(actions)
    told = {run.run_key: run for run in runs}
    for action in actions:
        run = told.get(action.run_key)
        mine = undos.get(action.key, [])
        if run is None or action.compensator is None or action.undoes is not None:
            continue
        if action.duplicate_of is not None or not _stands(action, mine, counted):
            continue
        if run.state == "compensated":
            yield _wrong(action, f"stands, and {run.run_key} is compensated")
        # What is unknown itself, or has an undo that is unknown or was refused, was tried.
        if run.wanted and not run.gone and action.status == "done" and not mine:
            yield _wrong(action, f"stands, and nobody tried to undo it: {run.state}")


def of_approvals(
    approvals: Sequence[Approval], actions: Sequence[Action], counted: Counted
) -> Iterator[Violation]:
    """Find what happened though no person had approved it."""
    decided = {one.key: one.decision for one in approvals}
    for action in actions:
        if without_local(action.tool) != GATED or decided.get(action.key) == "approved":
            continue
        if action.dispatched_at is not None or counted.effects[action.key]:
            yield _wrong(action, f"was called, and a person had {decided.get(action.key)}")


def of_intents(
    intents: Sequence[Intent], actions: Sequence[Action], counted: Counted
) -> Iterator[Violation]:
    """Compare what applications committed, and rolled back, with what came of it."""
    rows = {one.key: one for one in actions}
    committed = {one.action for one in intents}
    for one in intents:
        if one.action is None and one.subject and counted.subjects[one.subject]:
            yield Violation("outbox", "", f"{one.subject} was rolled back, and happened")
        if one.action is not None and one.action not in rows:
            yield Violation("outbox", one.action, f"{one.subject} was committed without an action")
    for action in actions:
        if action.run_key.startswith("outbox/") and action.key not in committed:
            yield _wrong(action, "is an intent of nobody's transaction")
    for order in _in_order(intents):
        done = [key for key in order if counted.happened[key]]
        for before, after in pairwise(done):
            if min(counted.arrived[after]) < min(counted.happened[before]):
                yield Violation("outbox", after, f"was sent before {before} had happened")


def of_queue(queue: Sequence[QueuedAction], actions: Sequence[Action]) -> Iterator[Violation]:
    """Find what the relay has not sent, and what nothing will ever send."""
    queued = {one.key for one in queue}
    for one in due_for_relay(queue):
        yield Violation(one.run_key, one.key, f"is due ({one.why}) and was not sent")
    for action in actions:
        if action.state == "intent" and action.relayed and action.key not in queued:
            yield _wrong(action, "is an intent that is not in the queue")
        if action.state == "dispatched":
            lease = "at work" if action.leased else "and its lease is over"
            yield _wrong(action, f"is left dispatched, {lease}")


def due_for_relay(queue: Sequence[QueuedAction]) -> Sequence[QueuedAction]:
    """Return what the relay has to send, now or later, and no action before it holds back."""
    held: dict[str, int] = {}
    for one in queue:
        if one.due_at is None and one.order_key is not None:
            held[one.order_key] = min(one.seq, held.get(one.order_key, one.seq))
    return [
        one
        for one in queue
        if one.due_at is not None and one.seq < held.get(one.order_key or "", one.seq + 1)
    ]


def of_balances(counted: Counted) -> Iterator[Violation]:
    """Find orders that stood as charged more than once, or were refunded without a charge."""
    for order, stands in counted.balances.items():
        if not all(0 <= one <= 1 for one in stands):
            yield Violation("all runs", "", f"the charge of {order} stood {stands} x")


def _undos(actions: Sequence[Action]) -> Mapping[str, list[Action]]:
    found: dict[str, list[Action]] = defaultdict(list)
    for action in actions:
        # What repeats another undo did nothing itself.
        if action.undoes is not None and action.duplicate_of is None:
            found[action.undoes].append(action)
    return found


def _allowed(action: Action, undos: Sequence[Action]) -> range:
    """Return how often an action may have been undone, by what the rows say."""
    if action.undone_by is not None:
        return range(1, 2)
    unknown = any(one.status == "pending" and one.dispatched_at is not None for one in undos)
    return range(2) if unknown else range(1)


def _stands(action: Action, undos: Sequence[Action], counted: Counted) -> bool:
    return counted.effects[action.key] > sum(counted.effects[one.key] for one in undos)


def _places(counted: Counted, action: Action) -> Sequence[int]:
    return counted.happened.get(action.key, [])


def _in_order(intents: Sequence[Intent]) -> Iterator[Sequence[ActionKey]]:
    orders: dict[str, list[Intent]] = defaultdict(list)
    for one in intents:
        if one.action is not None and one.order_key is not None:
            orders[one.order_key].append(one)
    for order in orders.values():
        order.sort(key=lambda one: one.seq)
        yield [one.action for one in order if one.action is not None]


def _wrong(action: Action, text: str) -> Violation:
    return Violation(action.run_key, action.key, f"{action.tool} ({action.state}) {text}")
