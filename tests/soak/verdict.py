"""What must hold after a soak, judged from outside.

    a row that says                 its effects in the world
    -----------------------------   ------------------------
    ok                              exactly one
    ok, as another's receipt        none of its own
    error without effect            none
    unknown, with a reason          one at most
    intent, in a stopped run        none
    undone                          exactly one, and one of the undo's
    anything else                   is a violation whatever happened

No effect is without a row, no key is sent with two bodies, every run has ended, in Temporal and
in the ledger, and what its model was told is what its rows say. A run that nobody ended has
completed, unless no worker was there until its turn's time was up: then what it did is undone.
Each request of a conversation has one reply, which all of its senders got, and every conversation
is whole (see `conversations`). What is undone, approved, intended and queued is judged by
`promises`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from commitline.activities.contract.conversation import Message, RunResult, ToolResult
from commitline.activities.contract.encoding import from_text
from commitline.canonical import parse
from commitline.errors import NodeTimeout
from commitline.identity import Position, RunKey, action_key
from commitline.ledger import Action, Approval, QueuedAction, StoredMessage
from commitline.tests.soak.conversations import malformed
from commitline.tests.soak.counted import READ, Counted, Violation
from commitline.tests.soak.promises import (
    Intent,
    RunUndo,
    of_approvals,
    of_balances,
    of_intents,
    of_queue,
    of_runs_undone,
    of_undos,
)
from commitline.tests.soak.script import without_local


@dataclass(frozen=True)
class RunSeen:
    """A run, as Temporal and the ledger have it at the end."""

    id: str
    run_key: RunKey
    state: str
    """Of the workflow: ``completed``, ``canceled``, …"""
    failure: str
    """Why, if it failed."""
    ledger_state: str
    stopped: bool
    """Somebody ended it, or tried to."""
    stored: Sequence[StoredMessage]
    """Its conversation; empty where that is a named one."""
    may_fail: bool = False
    """A plan's may, for good; then it is judged by what is undone."""

    @property
    def may_be_torn(self) -> bool:
        """Whether its last calls may have no results: it ended before it told them its model."""
        return self.stopped or self.state == "failed"


@dataclass(frozen=True)
class TalkSeen:
    """A named conversation at the end."""

    id: str
    version: int
    stored: Sequence[StoredMessage]
    replies: Mapping[str, Sequence[RunResult | None]]
    """What the senders of each request got; None is nothing at all."""
    kept: Mapping[str, RunResult | None]
    """The reply that the ledger has for it."""


class Aftermath:
    """Everything that is left after a soak.

    Args:
        runs: All of them.
        actions: Every row of the ledger.
        requests: What reached the provider, in order: ``kind``, ``key``, ``body``, ``effect``.
        talks: The named conversations; their runs are among the runs.
        undos: What is said of each run's undo.
        approvals: All that was asked.
        intents: All that an application committed, or rolled back.
        queue: What the relay still has.
    """

    def __init__(
        self,
        runs: Sequence[RunSeen],
        actions: Sequence[Action],
        requests: Sequence[Mapping[str, Any]],
        talks: Sequence[TalkSeen] = (),
        *,
        undos: Sequence[RunUndo] = (),
        approvals: Sequence[Approval] = (),
        intents: Sequence[Intent] = (),
        queue: Sequence[QueuedAction] = (),
    ) -> None:
        self.runs = runs
        self.actions = actions
        self.requests = requests
        self.talks = talks
        self.undos = undos
        self.approvals = approvals
        self.intents = intents
        self.queue = queue
        self._runs = {run.run_key: run for run in runs}
        self._rows = {action.key: action for action in actions}
        self._counted = Counted(requests)

    def violations(self) -> list[Violation]:
        """Return all that must not be."""
        return [
            *self._of_runs(),
            *(found for action in self.actions for found in self._of_row(action)),
            *self._of_effects(),
            *(found for run in self.runs for found in self._of_told(run)),
            *(found for talk in self.talks for found in self._of_told(talk)),
            *(found for talk in self.talks for found in _of_talk(talk)),
            *of_undos(self.actions, self._counted),
            *of_runs_undone(self.undos, self.actions, self._counted),
            *of_approvals(self.approvals, self.actions, self._counted),
            *of_intents(self.intents, self.actions, self._counted),
            *of_queue(self.queue, self.actions),
            *of_balances(self._counted),
        ]

    def _of_runs(self) -> Iterator[Violation]:
        for run in self.runs:
            good = {"completed", "canceled", "terminated"} if run.stopped else {"completed"}
            if run.may_fail or NodeTimeout.code in run.failure:
                good |= {"failed"}
            if run.state not in good:
                yield Violation(run.id, "", f"the run is {run.state}: {run.failure}")
            known = {"ended", "none"} if run.stopped else {"ended"}
            if run.ledger_state not in known:
                yield Violation(run.id, "", f"the ledger has the run as {run.ledger_state}")

    def _of_row(self, action: Action) -> Iterator[Violation]:
        happened = self._counted.effects[action.key]
        run = self._runs.get(action.run_key)
        text = _wrong_row(action, stopped=run is not None and run.stopped)
        if text is None and happened not in _allowed(action):
            text = f"{action.tool} ({action.effect}) says {action.state} and happened {happened} x"
        if text is not None:
            reason = f"; reason: {action.parked_reason}" if action.parked else ""
            yield Violation(str(action.run_key), action.key, text + reason)

    def _of_effects(self) -> Iterator[Violation]:
        for key in self._counted.effects:
            if key not in self._rows:
                yield Violation(key.partition(":")[0], key, "an effect without a row")
        bodies = defaultdict(set)
        for request in self.requests:
            if request["key"] is not None:
                bodies[request["key"]].add(request["body"])
        for key, sent in bodies.items():
            if len(sent) > 1:
                yield Violation("all runs", "", f"{key} was sent with several bodies: {sent}")

    def _of_told(self, seen: RunSeen | TalkSeen) -> Iterator[Violation]:
        torn = isinstance(seen, RunSeen) and seen.may_be_torn
        for text in malformed(seen.stored, torn=torn):
            yield Violation(seen.id, "", text)
        for asked, told in pairwise(seen.stored):
            # Another run may tell the results; the calls are those of the run that made them.
            for result in from_text(Message, told.message).results:
                key = action_key(asked.run_key, Position(result.position))
                wrong = _wrong_telling(result, self._rows.get(key))
                if wrong is not None:
                    yield Violation(seen.id, key, wrong)


def _of_talk(talk: TalkSeen) -> Iterator[Violation]:
    last = talk.stored[-1].version if talk.stored else 0
    if last != talk.version:
        yield Violation(talk.id, "", f"is at version {talk.version}, and ends with {last}")
    there = {one.request_id for one in talk.stored}
    for request, replies in talk.replies.items():
        if request not in there:
            yield Violation(talk.id, "", f"the request {request} is not there")
        kept = talk.kept[request]
        if kept is None or any(reply != kept for reply in replies):
            yield Violation(
                talk.id, "", f"the request {request} was answered {replies}, on record is {kept}"
            )


def _wrong_row(action: Action, *, stopped: bool) -> str | None:
    """Say what is wrong with a row by itself."""
    if action.state == "intent" and not stopped and not action.relayed:
        return f"{action.tool} ({action.effect}) is left an intent"
    if action.state == "unknown" and not action.parked_reason:
        return f"{action.tool} is parked without a reason"
    return None


def _allowed(action: Action) -> range:
    """Return how often an action may have happened, by what its row says."""
    if action.duplicate_of is not None or action.state == "intent":
        return range(1)
    if action.dispatched_at is None:
        return range(1)  # refused, called off, or never sent
    if action.recorded is not None:
        return range(1, 2) if action.recorded.effect_possible else range(1)
    return range(2)


def _wrong_telling(result: ToolResult, row: Action | None) -> str | None:
    """Say where what the model was told differs from the row."""
    told = parse(result.content)
    if row is None:
        nothing = result.status == "error" and told["error"]["effect"] == "none"
        if without_local(result.name) == READ or nothing:
            return None
        return f"the model was told {result.status} of {result.name}, which has no row"
    if isinstance(told, dict) and told.get("accepted"):
        known = row.relayed and result.name == row.tool
    elif result.status == "unknown":
        # Later it may have become known.
        known = row.state == "unknown" or row.settled_at is not None
    else:
        known = row.state == result.status and _content(row) == _told_content(told, row)
    if known:
        return None
    return (
        f"the model was told {result.status} of {result.name}: {result.content[:300]}; "
        f"the row says {row.state}: {(row.result or '')[:300]}"
    )


def _content(row: Action) -> Any:
    return None if row.recorded is None else row.recorded.value


def _told_content(told: Any, row: Action) -> Any:
    if row.state == "error":
        return {name: told["error"][name] for name in ("type", "message")}
    if row.duplicate_of is None:
        return told
    return told["result"] if told["action"] == row.duplicate_of else None
