"""What a claim gives to its attempt: to call, to look up, to return, to wait.

Pure values. `claim_rules` gives the verdict on a row, `claim` acts on it and returns one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from ..idempotency_key import default_idempotency_key
from ..identity import ActionKey, Position, RunKey, split_action_key
from .action_records import Action, ActionRequest, Attempt, Effect
from .question_rules import Question


@dataclass(frozen=True)
class HeldClaim:
    """What it takes to record the outcome of a call: for a recorder other than its attempt."""

    key: ActionKey
    """The action."""
    token: UUID
    """Of the attempt that claimed it."""
    domain_key: str | None
    """The business fact that the action holds."""


@dataclass(frozen=True)
class Dispatched:
    """Call the tool, now, with these arguments and this key; then record."""

    key: ActionKey
    """The action to record for: the claimant's, or another one with the same domain key."""
    tool: str
    """The name of the tool."""
    args: str
    """The *stored* arguments (JSON text), which a newer plan or newer code does not change."""
    idempotency_key: str
    """What the downstream system deduplicates by."""
    domain_key: str | None
    """The business fact that the action holds."""
    attempt: Attempt
    """The attempt that claimed."""
    effect: Effect
    """As it is stamped on the row, whatever newer code declares."""
    taken_over: bool = False
    """An earlier attempt may have called already: the key keeps this one from counting twice."""
    settles_for: ActionKey | None = None
    """The claimant, where the row is another action's; claim again after the record."""
    failures: int = 0
    """Tries that the tool has failed so far."""
    key_life: timedelta | None = None
    """How long the downstream system still remembers the key of a call that is sent again:
    the call must have ended by then. None is for ever."""
    can_look_up: bool = False
    """Whether the claimant can look up in the downstream system how the call ended."""
    questions: tuple[Question, ...] = ()
    """What earlier attempts raised, in order, with the answers."""
    lost_trace: str | None = None
    """The span of the attempt that it takes over from, where that one's worker traced."""

    @property
    def place(self) -> tuple[RunKey, Position]:
        """The run and the position of the action."""
        return split_action_key(self.key)

    @property
    def token(self) -> UUID:
        """The claim's token."""
        return self.attempt.token

    @property
    def held(self) -> HeldClaim:
        """What it takes to record, without the rest."""
        return HeldClaim(self.key, self.token, self.domain_key)


@dataclass(frozen=True)
class LookUp:
    """Look up in the downstream system whether it happened. Send only if it surely did not."""

    call: Dispatched
    """What to look up, and what to send after `ActionLedger.send_after_lookup`."""
    settles_in: timedelta
    """From when on "it never happened" counts; zero or less is now."""


@dataclass(frozen=True)
class AlreadyDone:
    """It already happened: return the stored outcome, call nothing."""

    action: Action
    """The claimant's row; its ``duplicate_of`` names the action whose outcome this is, if it is
    another one's."""


@dataclass(frozen=True)
class Parked:
    """It may have happened and is never sent again: answer unknown."""

    action: Action
    """The claimant's row, or the one that it repeats."""


@dataclass(frozen=True)
class Busy:
    """Another live attempt is doing this now, or a transaction is open: claim again later."""

    holder: ActionKey | None
    """The action whose attempt it is. None: a transaction holds a lock, as an application's does
    that intends the same business fact, and nothing is known until that has ended."""


@dataclass(frozen=True)
class Accepted:
    """The relay carries it out: call nothing, and answer that it is accepted."""

    action: Action
    """Its ``run_key`` is another run's where that one's action is the same business fact."""


Claim: TypeAlias = Dispatched | LookUp | AlreadyDone | Parked | Busy | Accepted
"""What a claim gives, by what it found."""


def first_key(request: ActionRequest) -> str:
    """Return the idempotency key of an action whose domain key no action has held before."""
    return request.domain_key or default_idempotency_key(request.key)


def attempt_parameters(attempt: Attempt) -> dict[str, Any]:
    """Return the query parameters of an attempt: whose the row is, and for how long."""
    return {
        "attempt_at": attempt.started_at,
        "engine_now": attempt.engine_now or attempt.started_at,
        "token": attempt.token,
        "unordered": attempt.unordered,
        "trace_parent": attempt.trace_parent,
        "lease": attempt.lease,
        "deadline": attempt.lease if attempt.deadline is None else attempt.deadline,
    }


def new_call(request: ActionRequest, attempt: Attempt) -> Dispatched:
    """Return what the attempt calls of a row that it has just written."""
    return Dispatched(
        key=request.key,
        tool=request.tool,
        args=request.args,
        idempotency_key=first_key(request),
        domain_key=request.domain_key,
        attempt=attempt,
        effect=request.effect,
        can_look_up=request.can_look_up,
    )


def stored_call(
    row: Action,
    request: ActionRequest,
    attempt: Attempt,
    *,
    taken_over: bool,
    questions: tuple[Question, ...] = (),
    lost_trace: str | None = None,
) -> Dispatched:
    """Return what the attempt calls of a row that it has claimed."""
    assert row.idempotency_key is not None, "agent_actions_dispatch_is_complete"
    return Dispatched(
        key=row.key,
        tool=row.tool,
        args=row.args,
        idempotency_key=row.idempotency_key,
        domain_key=row.domain_key,
        attempt=attempt,
        effect=row.effect,
        taken_over=taken_over,
        settles_for=None if row.key == request.key else request.key,
        failures=row.failures,
        key_life=row.key_life(attempt) if taken_over else None,
        can_look_up=request.can_look_up,
        questions=questions,
        lost_trace=lost_trace,
    )
