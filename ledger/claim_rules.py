"""The rules of a claim: what an attempt may do about the row that it finds.

Pure functions over rows, so that the table below can be read, and tested, by itself. The
ledger locks the rows, asks these, and writes what they say.

    found                                        the attempt
    -----                                        -----------
    no row                                       writes it, dispatched, and calls
    an intent: nothing was sent                  dispatches and calls
    ... that the relay sends, in whatever state  answers that it is accepted
    done                                         returns the stored outcome
    parked                                       answers unknown
    dispatched by this very attempt              goes on: the COMMIT's answer was lost
    dispatched by an earlier attempt             takes over, by the row's effect: calls
                                                 again, asks downstream, or parks
    dispatched by a later attempt                is fenced: calls nothing
    the domain key, held by another action:
      done, same arguments                       returns that receipt, marked as existing
      parked, same arguments                     answers unknown, naming it
      a live lease, or the relay sends it        waits
      it asks a person, and waits for an answer  is refused: it says so, and holds no worker
      an intent, or its attempt is dead          settles that row, by its effect
      other arguments                            is refused: the existing action stands
    an earlier turn's equal call, unknown        answers unknown, naming it (keyless tools)
    another tool or other arguments here         fails the run: the plan diverged
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Final, TypeAlias
from uuid import UUID

from ..canonical import parse, scrub
from ..errors import Fenced, IdempotencyKeyConflict, PlanDivergence, SettlementRefused
from ..identity import ActionKey, Position, RunKey, split_action_key
from .question_rules import Question
from .records import Action, ActionRequest, Attempt, Effect, Outcome

CONFLICT = IdempotencyKeyConflict.__name__


@dataclass(frozen=True)
class Dispatched:
    """Call the tool, now, with these arguments and this key; then record."""

    key: ActionKey
    tool: str
    args: str
    """The *stored* arguments (JSON text), which a newer plan or newer code does not change."""
    idempotency_key: str
    domain_key: str | None
    attempt: Attempt
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
    """Whether the claimant can ask the downstream system what became of it."""
    asked: tuple[Question, ...] = ()
    """What earlier attempts have asked a person, in order, with the answers."""

    @property
    def place(self) -> tuple[RunKey, Position]:
        """The run and the position of the action."""
        return split_action_key(self.key)

    @property
    def token(self) -> UUID:
        """The claim's token."""
        return self.attempt.token

    @property
    def owned(self) -> Owned:
        """What it takes to record, without the rest."""
        return Owned(self.key, self.token, self.domain_key)


@dataclass(frozen=True)
class Owned:
    """A claim, reduced to what records its outcome: for whoever records in its place."""

    key: ActionKey
    token: UUID
    domain_key: str | None


@dataclass(frozen=True)
class LookUp:
    """Ask the downstream system whether it happened. Send only if it surely did not."""

    call: Dispatched
    """What to ask about, and what to send after `ActionLedger.send_after_lookup`."""
    settles_in: timedelta
    """From when on "it never happened" counts; zero or less is now."""


@dataclass(frozen=True)
class AlreadyDone:
    """It already happened: return the stored outcome, call nothing.

    ``action.duplicate_of`` names the action whose receipt this is, where it is another's.
    """

    action: Action


@dataclass(frozen=True)
class Parked:
    """It may have happened and is never sent again by itself: answer unknown."""

    action: Action


@dataclass(frozen=True)
class Busy:
    """Another live attempt is doing this now: claim again later."""

    holder: ActionKey


@dataclass(frozen=True)
class Intended:
    """The relay carries it out: call nothing, and answer that it is accepted.

    ``action.run_key`` is another run's where that one's action is the same business fact.
    """

    action: Action


Claim: TypeAlias = Dispatched | LookUp | AlreadyDone | Parked | Busy | Intended


class Verdict(Enum):
    """What an attempt may do about the row at its own position."""

    RETURN = auto()
    ANSWER_UNKNOWN = auto()
    WAIT = auto()
    GO_ON = auto()
    DISPATCH = auto()
    TAKE_OVER = auto()
    LOOK_UP = auto()
    PARK = auto()
    ACCEPT = auto()


FORWARD: Final = frozenset({Verdict.DISPATCH, Verdict.GO_ON, Verdict.TAKE_OVER, Verdict.LOOK_UP})
"""The verdicts by which something is sent, now or later: only in a run that runs."""


def judge_own(found: Action, request: ActionRequest, attempt: Attempt) -> Verdict:
    """Judge the row that stands under the request's own action key.

    Raises:
        PlanDivergence: It is another call.
        Fenced: A later attempt owns it.
    """
    if (found.tool, found.requested_digest) != (request.tool, request.requested_digest):
        raise PlanDivergence(
            f"at {found.key} stands {found.tool} with arguments {found.requested_digest[:12]}, "
            f"the plan now has {request.tool} with {request.requested_digest[:12]}"
        )
    if found.relayed and request.purpose == "forward":
        # Whatever became of it: what the model was told first is what it reads on a replay. How
        # it ended comes as a notice.
        return Verdict.ACCEPT
    if found.status == "done":
        return Verdict.RETURN
    if found.parked:
        return Verdict.ANSWER_UNKNOWN
    if found.dispatched_at is None:
        return Verdict.DISPATCH
    if found.leased and (found.claimed_by != found.key or _is_anothers(found, request, attempt)):
        return Verdict.WAIT
    return _judge_attempt(found, request, attempt)


def _is_anothers(found: Action, request: ActionRequest, attempt: Attempt) -> bool:
    """Whether who has the row is no attempt of the same call: the relay, of all, must wait.

    Its retries began after its call was scheduled.
    """
    since, at = attempt.scheduled_at, found.attempt_at
    return request.purpose == "relay" and since is not None and at is not None and at < since


def _judge_attempt(found: Action, request: ActionRequest, attempt: Attempt) -> Verdict:
    """Judge a dispatched row by who dispatched it: this attempt, an earlier or a later one."""
    if found.claim_token == attempt.token:
        return Verdict.LOOK_UP if found.asking else Verdict.GO_ON
    assert found.attempt_at is not None, "agent_actions_dispatch_is_complete"
    if found.attempt_at >= attempt.started_at:
        raise Fenced(
            f"{found.key} is owned by the attempt of {found.attempt_at.isoformat()}; "
            f"this one began at {attempt.started_at.isoformat()}"
        )
    return take_over(found, can_look_up=request.can_look_up, lookup_only=request.lookup_only)


def take_over(found: Action, *, can_look_up: bool, lookup_only: bool = False) -> Verdict:
    """Judge a dispatched row whose attempt is over, by the row's effect, not by newer code."""
    if lookup_only:
        return Verdict.LOOK_UP if can_look_up else Verdict.PARK
    if found.effect is Effect.IDEMPOTENT and not key_forgotten(found):
        return Verdict.TAKE_OVER
    if found.effect is Effect.AT_MOST_ONCE:
        # Asking again about what the downstream system is at work on is no second effect.
        return Verdict.TAKE_OVER if found.in_progress else Verdict.PARK
    return Verdict.LOOK_UP if can_look_up else Verdict.PARK


def key_life(found: Action) -> timedelta | None:
    """Return how long the downstream system still remembers the key; None is for ever."""
    if found.key_ttl is None or found.dispatched_at is None:
        return None
    return found.key_ttl - (found.now - found.dispatched_at)


def key_forgotten(found: Action) -> bool:
    """Whether the downstream system has forgotten the key: sent again it would be a new call."""
    life = key_life(found)
    return life is not None and life <= timedelta()


def settles_in(found: Action, request: ActionRequest) -> timedelta:
    """Return from when on "not found" means that no attempt so far had an effect.

    Not before the last of them can have sent something, and not before the downstream system
    shows what it was sent.
    """
    last = found.sent_until or found.lease_until
    assert last is not None, "agent_actions_dispatch_is_complete"
    return last + request.settles_after - found.now


def why_parked(found: Action, *, lookup_only: bool = False) -> str:
    """Say why a row that `take_over` parks is not sent again."""
    lost = "an earlier attempt was lost after it was dispatched"
    if lookup_only:
        return f"{lost}, its run is over, and {found.tool} cannot be asked what became of it"
    if found.effect is Effect.IDEMPOTENT:
        return f"{lost}, and the downstream system remembers its key only for {found.key_ttl}"
    if found.effect is Effect.LOOKUP:
        return f"{lost}, and this worker cannot ask the downstream system about {found.tool}"
    return f"{lost}, and {found.tool} must not be sent twice"


def judge_holder(holder: Action, request: ActionRequest, attempt: Attempt) -> Verdict:
    """Judge the row of the other action that holds the request's domain key.

    Raises:
        Fenced: A later attempt of the claimant is settling it.
        IdempotencyKeyConflict: It was used for something else, which stands.
    """
    if (holder.tool, holder.effective_digest) != (request.tool, request.effective_digest):
        raise IdempotencyKeyConflict(
            f"{request.domain_key!r} was used by {holder.key} for {holder.tool} "
            f"{scrub(holder.args)}, and is now asked for {request.tool} {scrub(request.args)}",
            existing=holder.key,
        )
    if holder.status == "done":
        return Verdict.RETURN
    if holder.parked:
        return Verdict.ANSWER_UNKNOWN
    if request.detached or holder.relayed:
        # Somebody is to do it, which is all that a detached call is promised. What the relay is
        # to send, it sends, in its order: a second sender would be one too many.
        return Verdict.ACCEPT if request.detached else Verdict.WAIT
    if holder.dispatched_at is None:
        return Verdict.DISPATCH  # its attempt sent nothing and is gone: somebody has to
    if holder.claimed_by == request.key:
        return _judge_attempt(holder, request, attempt)
    return Verdict.WAIT if holder.leased else take_over(holder, can_look_up=request.can_look_up)


def judge_settlement(key: ActionKey, found: Action | None, word: Outcome) -> Action:
    """Return the row, if a person may settle it with this word.

    Raises:
        SettlementRefused: They may not, or not now; the message says why.
    """
    if found is None:
        raise SettlementRefused(f"there is no action {key}")
    if found.status == "done":
        raise SettlementRefused(f"{key} is settled already: {found.state}")
    if found.duplicate_of is not None:
        raise SettlementRefused(f"{key} repeats {found.duplicate_of}: settle that one")
    calls_off = found.relayed and not word.effect_possible
    if found.dispatched_at is None and not calls_off:
        raise SettlementRefused(f"{key} was never sent: nothing is unknown about it")
    if found.leased:
        raise SettlementRefused(
            f"an attempt may be at work on {key} until {found.lease_until:%Y-%m-%d %H:%M:%S %Z}"
        )
    return found


def raise_if_conflict(found: Action) -> None:
    """Refuse again what was refused: a conflict is kept as its own row, with its message.

    Known by its shape, not by the name of an error, which a tool may choose: it names the
    action that stands, had no effect, and was never unknown until somebody decided it, or its
    own attempt told late.
    """
    refused = found.outcome == "error" and not found.effect_possible
    settled = found.decided_by is not None or found.settled_at is not None
    if refused and found.duplicate_of is not None and not settled:
        message = parse(found.result or "{}").get("message", "")
        raise IdempotencyKeyConflict(message, existing=found.duplicate_of)
