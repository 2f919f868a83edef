"""What the ledger holds of an action: the request, its attempts, the row, the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, Self
from uuid import UUID

from ..canonical import Json, dumps, parse
from ..identity import ActionKey, Position, RunKey, action_key

ActionStatus = Literal["pending", "done"]
OutcomeKind = Literal["ok", "error"]
ActionState = Literal["intent", "dispatched", "unknown", "ok", "error"]
"""In one word, as people read it; `Action.state`."""
Purpose = Literal["forward", "undo", "settle", "relay"]
"""What a claim is for; each purpose needs its run in another state.

``forward`` carries a call of the plan out; ``undo`` undoes an action; ``settle`` finds out how an
action ended before it is undone; ``relay`` is for what only the relay carries out or looks up."""


class Effect(StrEnum):
    """What repeating a call would do to the world. Every tool declares one.

    It decides what becomes of a call whose first attempt was lost after it was dispatched.
    """

    READ = "read"
    """Repeating it does no harm. It is not in the ledger; a lost call is simply made again."""
    IDEMPOTENT = "idempotent"
    """The downstream system deduplicates on our key: called again with the same key and the
    stored arguments, as long as it remembers the key (``key_ttl``)."""
    LOOKUP = "lookup"
    """The downstream system can look up whether it happened; never sent again without a lookup."""
    AT_MOST_ONCE = "at_most_once"
    """Neither: never sent again; parked as unknown until a person settles it."""


@dataclass(frozen=True)
class Outcome:
    """How an action ended, as it is recorded. The first record stands for ever."""

    kind: OutcomeKind
    """``ok`` or ``error``."""
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
"""The outcome of an intent that no worker sends, where another call needs its domain key."""


@dataclass(frozen=True)
class Attempt:
    """One try at an action, by one worker."""

    started_at: datetime
    """By the engine's clock: of two attempts of one action, the later one owns it, unless one of
    them is `unordered`."""
    token: UUID
    """Unique to this attempt; keep it for every ledger call that the attempt makes."""
    lease: timedelta
    """How long, from the claim, no other attempt may take the action over: the attempt's deadline
    plus grace. By the database's clock; never renewed."""
    deadline: timedelta | None = None
    """How long, from the claim, the attempt may still send something. By default its lease."""
    scheduled_at: datetime | None = None
    """When the workflow scheduled the call, by the engine's clock: before all its attempts."""
    engine_now: datetime | None = None
    """The engine's clock at this claim: ``started_at``, and what the attempt has lasted since, by
    the clock of its own process. By default ``started_at``."""
    repeats: bool = False
    """Whether another attempt at this call came before it, or may have: what that one wrote may be
    lost."""
    unordered: bool = False
    """Nobody can say whether it is the later one of two: the engine does not know when it began."""
    unrecorded_before: bool = False
    """Whether attempts before it may have called without a row: their worker had no guard."""
    trace_parent: str | None = None
    """Its span, as W3C's traceparent; None where its worker does not trace."""


@dataclass(frozen=True)
class ActionRequest:
    """What a claim names: the call, and what is to be done with it."""

    run_key: RunKey
    """The run that makes the call."""
    position: Position
    """Where in the run the call stands; run and position make the action's key."""
    tool: str
    """The name of the tool that is called."""
    args: str
    """JSON text of the effective arguments: validated, defaults fixed."""
    effect: Effect
    """As the tool declares it now. A row that exists keeps its own."""
    requested_digest: str
    """Of the arguments as the plan had them; another one at this position is a divergence."""
    effective_digest: str
    """Of what makes two requests the same business fact; see ``IdempotencyKeyConflict``."""
    domain_key: str | None = None
    """Names the business fact, where the tool declares a key from the domain."""
    key_ttl: timedelta | None = None
    """How long the downstream system remembers a key; None is for ever."""
    thread_id: str | None = None
    """The conversation that it belongs to; the run's own if none is named."""
    can_look_up: bool = False
    """Whether the claimant can look up in the downstream system how a lost attempt ended."""
    settles_after: timedelta = timedelta(seconds=60)
    """How long after an attempt may have sent something its effect may still appear there."""
    compensator: str | None = None
    """The tool that undoes it, if it has one."""
    undoes: ActionKey | None = None
    """The action that it undoes."""
    undoes_domain_key: str | None = None
    """The domain key of the action that it undoes: the action that holds that key."""
    purpose: Purpose = "forward"
    """What the claim is for; see `Purpose`."""
    lookup_only: bool = False
    """Nothing is sent: the action is looked up, or left to a person."""
    owner: str | None = None
    """The workflow that acts. In a sub-agent's run only the one that its parent started last may;
    in every other run it does not matter."""
    detached: bool = False
    """The claimant does not carry the call out: the relay does, whatever becomes of the run."""

    @property
    def key(self) -> ActionKey:
        """The primary key of the action."""
        return action_key(self.run_key, self.position)


@dataclass(frozen=True)
class Action:
    """A row of ``agent_actions``; times are by the database's clock unless they say otherwise."""

    key: ActionKey
    """Run and position, as one text."""
    tool: str
    """The name of the tool."""
    args: str
    """JSON text of the effective arguments, as they were first claimed."""
    status: ActionStatus
    """``pending`` until an outcome is recorded; ``done`` is final."""
    result: str | None
    """JSON text: the returned value, or the error; see `Outcome.result`."""
    created_at: datetime
    """When the row was written."""
    run_key: RunKey
    """The run that made the call."""
    position: Position
    """Where in the run the call stands."""
    thread_id: str | None
    """The conversation; None is the run's own."""
    idempotency_key: str | None
    """What is sent to the downstream system; None for an action that is never sent."""
    domain_key: str | None
    """The business fact, where the tool declares a key from the domain."""
    generation: int
    """Which holder of the domain key it is; counts from one."""
    effect: Effect
    """As the tool declared it when the row was written."""
    key_ttl: timedelta | None
    """How long the downstream system remembers the key; None is for ever."""
    requested_digest: str
    """Of the arguments as the plan had them."""
    effective_digest: str
    """Of what makes two calls the same business fact."""
    claim_token: UUID | None
    """The token of the attempt that claimed last."""
    claimed_by: ActionKey | None
    """The action whose call carries the row out: this one, or one with the same domain key."""
    attempt_at: datetime | None
    """When the attempt that claimed last began, by the engine's clock."""
    lease_until: datetime | None
    """Until then no other attempt takes it over."""
    tries: int
    """How often it was dispatched: given to its tool to call."""
    dispatched_at: datetime | None
    """Of the first dispatch; None is an intent, of which nothing was sent."""
    done_at: datetime | None
    """When the outcome was recorded."""
    outcome: OutcomeKind | None
    """``ok`` or ``error``; None while it is pending."""
    effect_possible: bool | None
    """Whether the outside world may have changed; None while it is pending."""
    parked_at: datetime | None
    """Since when it waits for a person."""
    parked_reason: str | None
    """Why it does."""
    duplicate_of: ActionKey | None
    """The action whose outcome this one has, where nothing was sent for it."""
    codec_version: int
    """Of the codec that wrote ``result``."""
    decided_by: str | None
    """The person who settled it."""
    decided_at: datetime | None
    """When they did."""
    failures: int
    """Tries that the tool itself failed; dead workers and outages do not count."""
    sent_until: datetime | None
    """Until then an attempt so far may still send something."""
    looking_up: bool
    """The attempt that holds the claim looks it up, and has sent nothing itself."""
    in_progress: bool
    """The downstream system said that it is at work on this very request."""
    settled_at: datetime | None
    """When it became known, after it had been unknown or pending to the model."""
    notified_version: int | None
    """The version of the thread in which the model read that."""
    compensator: str | None
    """The tool that undoes it."""
    undoes: ActionKey | None
    """The action that this one undoes."""
    undone_by: ActionKey | None
    """The action that undid this one."""
    reopened_at: datetime | None
    """When it was tried again, or looked up, after it had been parked."""
    relayed: bool
    """The relay sends it, whatever becomes of its run."""
    now: datetime
    """The database's clock when the row was read."""
    state_changes: str | None = None
    """JSON text of what it changed in the conversation's state, recorded with its outcome."""
    undoes_domain_key: str | None = None
    """The business fact that it undoes, where its tool names one."""
    clocks_apart: timedelta | None = None
    """How far the database's clock was ahead of the engine's when it was dispatched."""
    live_undo_of: ActionKey | None = None
    """The action that it may be undoing now, or may have undone; an action has one such undo."""
    unordered: bool = False
    """An `unordered` attempt has claimed it: none of its attempts is the later one."""
    adopted_at: datetime | None = None
    """Since when the relay has it because somebody else than its run relies on it."""
    trace_parent: str | None = None
    """The span of the attempt that claimed last, where its worker traces."""

    @property
    def parked(self) -> bool:
        """Whether it waits for a person."""
        return self.parked_at is not None

    @property
    def adopted(self) -> bool:
        """Whether the relay sends it for somebody else, also if its run was stopped."""
        return self.adopted_at is not None

    @property
    def only_intended(self) -> bool:
        """Whether nothing of it was sent, and nobody but its run is going to send it.

        Only of such an action, or of one without a row, "not executed" is true.
        """
        return self.state == "intent" and not self.relayed

    @property
    def leased(self) -> bool:
        """Whether an attempt may still be at work on it."""
        return self.lease_until is not None and self.lease_until > self.now

    @property
    def may_be_sent(self) -> bool:
        """Whether an attempt so far may still send something, also one that lost its claim."""
        return self.sent_until is not None and self.sent_until > self.now

    def now_by(self, attempt: Attempt) -> tuple[datetime, datetime]:
        """Return the present, at the earliest and at the latest, as an attempt may take it.

        The database's clock may have jumped since the dispatch, by a failover to a server with
        another clock, or the engine's. What has passed by one of them only may not have passed.
        """
        if self.clocks_apart is None:
            return self.now, self.now
        by_engine = (attempt.engine_now or attempt.started_at) + self.clocks_apart
        return min(self.now, by_engine), max(self.now, by_engine)

    def key_life(self, attempt: Attempt | None = None) -> timedelta | None:
        """Return how long the downstream system still remembers the key; None is for ever.

        Args:
            attempt: The attempt that is to send it; without one the database's clock counts alone.
        """
        if self.key_ttl is None or self.dispatched_at is None:
            return None
        now = self.now if attempt is None else self.now_by(attempt)[1]
        return self.key_ttl - (now - self.dispatched_at)

    def key_forgotten(self, attempt: Attempt | None = None) -> bool:
        """Whether the downstream system has forgotten the key: it would take a new call for new."""
        life = self.key_life(attempt)
        return life is not None and life <= timedelta()

    @property
    def state(self) -> ActionState:
        """In one word: ``unknown`` is parked, ``error`` and ``ok`` are done."""
        if self.outcome is not None:
            return self.outcome
        if self.parked:
            return "unknown"
        return "intent" if self.dispatched_at is None else "dispatched"

    @property
    def returned(self) -> str | None:
        """What it returned, as JSON text; None where it did not, or not yet."""
        return self.result if self.outcome == "ok" else None

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
