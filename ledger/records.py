"""What the ledger holds: runs, actions, their effects and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, Self
from uuid import UUID

from ..canonical import Json, dumps, parse
from ..identity import ActionKey, Position, RunKey, action_key

RunState = Literal["running", "stopping", "undoing", "ended"]
ActionStatus = Literal["pending", "done"]
OutcomeKind = Literal["ok", "error"]
Purpose = Literal["forward", "undo", "settle", "relay"]
"""What a call is for, by which its run has to be in another state: what the plan asks for; the
undo of an action; to learn what became of one before it is undone; what the relay sees to."""


class Effect(StrEnum):
    """What repeating a call would do to the world. Every tool declares one.

    It decides what becomes of a call whose first attempt was lost after it was dispatched.
    """

    READ = "read"
    """Repeating it harms nobody. Not in the ledger; simply run again."""
    IDEMPOTENT = "idempotent"
    """The downstream system deduplicates on our key: called again with the same key and the
    stored arguments, as long as it remembers the key (``key_ttl``)."""
    LOOKUP = "lookup"
    """The downstream system can be asked whether it happened; never sent again unasked."""
    AT_MOST_ONCE = "at_most_once"
    """Neither: never sent again by itself, parked as unknown until a person settles it."""


@dataclass(frozen=True)
class Outcome:
    """How an action ended, as it is recorded. The first record stands for ever."""

    kind: OutcomeKind
    result: str
    """JSON text: the returned value, or ``{"type": …, "message": …}`` of an error."""
    effect_possible: bool
    """Whether the outside world may have changed. An error without effect releases its key."""
    state_changes: str | None = None
    """JSON text of what the call changed in the conversation's state; None is nothing."""

    @classmethod
    def ok(cls, result: str) -> Self:
        """It happened, and this is what it returned (JSON text)."""
        return cls("ok", result, effect_possible=True)

    @classmethod
    def error(cls, *, kind: str, message: str, effect_possible: bool) -> Self:
        """It ended with an error; ``effect_possible=False`` only where that is certain."""
        return cls(
            "error",
            dumps({"type": kind, "message": message}),
            effect_possible=effect_possible,
        )

    @property
    def value(self) -> Json:
        """``result``, read."""
        return parse(self.result)


NEVER_SENT: Final = Outcome.error(
    kind="NeverSent",
    message="its run ended before anything was sent, and the business fact was asked for again",
    effect_possible=False,
)
"""Of an intent that nobody sends any more, and that stood in the way of the next one."""


@dataclass(frozen=True)
class Attempt:
    """One try at an action, by one worker."""

    started_at: datetime
    """By the engine's clock: of two attempts of one action, the later one owns it."""
    token: UUID
    """Unique to this attempt; keep it for every ledger call that the attempt makes."""
    lease: timedelta
    """How long nobody else may take the action for dead, from the claim, by the database's
    clock: the attempt's deadline plus grace. Never renewed."""
    deadline: timedelta | None = None
    """How long, from the claim, it may still send something. By default as long as its lease."""
    scheduled_at: datetime | None = None
    """When the engine was told of the call, by its clock: the attempts of the call come after."""


@dataclass(frozen=True)
class ActionRequest:
    """An action that somebody is about to take."""

    run_key: RunKey
    position: Position
    tool: str
    args: str
    """JSON text of the effective arguments: validated, defaults fixed."""
    effect: Effect
    requested_digest: str
    """Of the arguments as the plan had them; another one at this position is a divergence."""
    effective_digest: str
    """Of what makes two requests the same business fact; see ``IdempotencyKeyConflict``."""
    domain_key: str | None = None
    key_ttl: timedelta | None = None
    """How long the downstream system remembers a key; None is for ever."""
    thread_id: str | None = None
    """The conversation that it belongs to; the run's own if none is named."""
    can_look_up: bool = False
    """Whether the claimant can ask the downstream system what became of a lost attempt."""
    settles_after: timedelta = timedelta(seconds=60)
    """How long after an attempt may have sent something its effect may still appear there."""
    compensator: str | None = None
    """The tool that undoes it, if it has one."""
    undoes: ActionKey | None = None
    """The action that it undoes."""
    undoes_domain_key: str | None = None
    """The domain key of the action that it undoes, whichever holds that."""
    purpose: Purpose = "forward"
    lookup_only: bool = False
    """Nothing is sent for it: what became of it is asked, or left to a person."""
    owner: str | None = None
    """The workflow that acts. In a sub-agent's run only the one that its parent started last may;
    in every other run it is not asked about."""
    detached: bool = False
    """The claimant does not carry it out: the relay does, whatever becomes of the run."""

    @property
    def key(self) -> ActionKey:
        """The primary key of the action."""
        return action_key(self.run_key, self.position)


@dataclass(frozen=True)
class Run:
    """A row of ``agent_runs``."""

    run_key: RunKey
    workflow_id: str
    agent: str
    input_digest: str
    state: RunState
    epoch: int
    opened_attempt_at: datetime
    ended_attempt_at: datetime | None
    created_at: datetime
    stopped_at: datetime | None
    """When a stop was asked for. Nothing opens the run again."""
    stop_reason: str | None
    thread_id: str | None
    """The conversation that it writes; None where an older release opened it."""
    spec: str | None
    """JSON of what it keeps of its agent."""
    fork_step: int | None
    """The model turn from which its newest epoch goes another way."""
    input_tokens: int
    output_tokens: int
    """What its model requests took so far."""
    parent_key: RunKey | None
    """The run that called it, where it is a sub-agent's."""
    owner: str | None
    """The workflow that may act for it, where it is a sub-agent's; ``""`` is none."""
    compensate: bool
    """It was stopped, and what it did is to be undone."""
    undo_began_at: datetime | None
    """When undoing what it did began last."""
    undo_ended_at: datetime | None
    """When that was through, with everything undone or a list of what stands."""
    gone_as: str | None
    """How its workflow ended, where the run could not say so itself."""
    namespace: str | None
    """Temporal's; None where an older release, or nobody, has said it."""
    now: datetime
    """The database's clock when the row was read."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row as psycopg gives it, which may have columns of a later release."""
        return cls(**{name: row[name] for name in _RUN_COLUMNS})

    def is_of(self, workflow_id: str) -> bool:
        """Whether this workflow may act for it."""
        return self.owner in (None, workflow_id)


@dataclass(frozen=True)
class Action:
    """A row of ``agent_actions``; times are by the database's clock unless they say otherwise."""

    key: ActionKey
    tool: str
    args: str
    status: ActionStatus
    result: str | None
    created_at: datetime
    run_key: RunKey
    position: Position
    thread_id: str | None
    idempotency_key: str | None
    domain_key: str | None
    generation: int
    effect: Effect
    key_ttl: timedelta | None
    requested_digest: str
    effective_digest: str
    claim_token: UUID | None
    claimed_by: ActionKey | None
    attempt_at: datetime | None
    """When the attempt that dispatched last began, by the engine's clock."""
    lease_until: datetime | None
    tries: int
    """How often it was dispatched: given to its tool to call."""
    dispatched_at: datetime | None
    done_at: datetime | None
    outcome: OutcomeKind | None
    effect_possible: bool | None
    parked_at: datetime | None
    parked_reason: str | None
    duplicate_of: ActionKey | None
    codec_version: int
    decided_by: str | None
    """Who settled it, where a person did."""
    decided_at: datetime | None
    failures: int
    """Tries that the tool itself failed; dead workers and outages do not count."""
    sent_until: datetime | None
    """Until when an attempt so far may still send something."""
    asking: bool
    """The attempt that owns it asks the downstream system, and has sent nothing itself."""
    in_progress: bool
    """The downstream system said that it is at work on this very request."""
    settled_at: datetime | None
    """When it became known, after it had been unknown."""
    notified_step: int | None
    """The model turn that told the run so, where an older release did."""
    notified_version: int | None
    """The version of the thread in which the model was told so."""
    compensator: str | None
    """The tool that undoes it."""
    undoes: ActionKey | None
    undone_by: ActionKey | None
    reopened_at: datetime | None
    """When it was tried again, or asked about, after it had been parked."""
    relayed: bool
    """The relay sends it, whatever becomes of its run."""
    now: datetime
    """The database's clock when the row was read."""
    state_changes: str | None = None
    """JSON of what it changed in the conversation's state, recorded with its outcome."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row as psycopg gives it."""
        values = {name: row[name] for name in _ACTION_COLUMNS}
        return cls(**{**values, "effect": Effect(row["effect"])})

    @property
    def parked(self) -> bool:
        """Whether it waits for a person."""
        return self.parked_at is not None

    @property
    def leased(self) -> bool:
        """Whether an attempt may still be at work on it."""
        return self.lease_until is not None and self.lease_until > self.now

    @property
    def state(self) -> Literal["intent", "dispatched", "unknown", "ok", "error"]:
        """In one word: ``unknown`` is parked, ``error`` and ``ok`` are done."""
        if self.outcome is not None:
            return self.outcome
        if self.parked:
            return "unknown"
        return "intent" if self.dispatched_at is None else "dispatched"

    @property
    def recorded(self) -> Outcome | None:
        """The outcome that stands, if the action is done."""
        if self.outcome is None or self.result is None or self.effect_possible is None:
            return None
        return Outcome(
            self.outcome,
            self.result,
            effect_possible=self.effect_possible,
            state_changes=self.state_changes,
        )


_RUN_COLUMNS = tuple(field.name for field in fields(Run))
_ACTION_COLUMNS = tuple(field.name for field in fields(Action))
