"""The rules of a claim: what an attempt may do about the row that it finds.

Pure functions over rows, so that the table below can be read, and tested, by itself. `claim`
locks the rows, calls these, and writes what they say.

    found                                        the attempt
    -----                                        -----------
    no row                                       writes it, dispatched, and calls
    ... of a retry, after a failover             writes it, and takes it over as below: the row
                                                 of the attempt before may be lost
    a row that the relay sends, in any state     answers that it is accepted
    an intent: nothing was sent                  dispatches and calls
    done                                         returns the stored outcome
    parked                                       answers unknown
    dispatched by this very attempt              goes on: the COMMIT's answer was lost
    dispatched by an earlier attempt             takes over, by the row's effect: calls
                                                 again, looks it up, or parks
    dispatched by a later attempt                is fenced: calls nothing
    ... of two without an order                  takes over, as from an earlier one
    dispatched for another action, which is live waits
    the domain key, held by another action:
      done, same arguments                       returns that outcome, as a duplicate
      ... and its run is being undone            waits: the key is free soon, or the action stands
      ... and an undo of it is unknown           is refused: it is unknown whether it stands
      parked, same arguments                     answers unknown, and names the holder
      a live lease, or the relay sends it        waits
      its question waits for an answer           is refused, rather than hold a worker for days
      an intent, or its attempt is dead          carries that row out, by its effect
      other arguments                            is refused: the existing action stands
    an earlier turn's equal call, unknown        answers unknown, and names it (no domain key)
    an undo, and what it undoes
      is undone by another one                   is refused: nothing is left to undo
      ... which is at work                       waits
      ... which is unknown, or lost              is refused: a second one could undo it twice
      is another action now, by its fact         is refused: it was asked for before that one
    an undo of the fact that is to be held       waits, or is refused, as above: it could undo
                                                 this action, too
    another tool or other arguments here         fails the run: the plan diverged

*Without an order* are an attempt of which the engine does not know when it began (`unordered`), and
all attempts at a row that such a one has claimed. Each of two may take the row over from the other.
So neither is told to have lost: what it *knows* counts, whoever holds the claim. An ``ok`` settles
the row, and the first one stands. An error without effect is believed of nobody but the holder of
the claim, and of that one only if it has not taken over: the other may have had the effect.

*Is refused* of a business fact that another action has: a row with an error and without effect.
For other arguments `ActionLedger.claim` raises `IdempotencyKeyConflict` from that row, each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Final

from ..canonical import scrub
from ..errors import Fenced, IdempotencyKeyConflict, PlanDivergence, RunNotRunning
from ..identity import ActionKey
from .action_records import Action, ActionRequest, Attempt, Effect, Outcome
from .claim_results import Busy
from .question_rules import Question


class Verdict(Enum):
    """What an attempt may do about a row: its own, or the one that holds its domain key."""

    RETURN = auto()
    """Return the outcome that is recorded."""
    ANSWER_UNKNOWN = auto()
    """Answer that it is unknown: a person settles it."""
    WAIT = auto()
    """Claim again later."""
    ACCEPT = auto()
    """Answer that it is accepted: the relay carries it out."""
    PARK = auto()
    """Leave it to a person, and answer that it is unknown."""
    GO_ON = auto()
    """Call: this attempt has dispatched it before."""
    DISPATCH = auto()
    """Call: nothing was sent yet."""
    TAKE_OVER = auto()
    """Call again, in the place of an attempt that was lost."""
    LOOK_UP = auto()
    """Look it up in the downstream system."""


_TAKEN_UP_WITHIN: Final = timedelta(minutes=2)
"""How long after its lease a lost undo is waited for, as in ``commitline_standing``."""

MAY_SEND: Final = frozenset({Verdict.DISPATCH, Verdict.GO_ON, Verdict.TAKE_OVER, Verdict.LOOK_UP})
"""The verdicts by which something is sent, now or later: only in a run that is running."""


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
        # However it ended: on a replay the model reads what it read first. The end comes as a
        # notice.
        return Verdict.ACCEPT
    if found.status == "done":
        return Verdict.RETURN
    if found.parked:
        return Verdict.ANSWER_UNKNOWN
    if found.dispatched_at is None:
        return Verdict.DISPATCH
    if found.leased and (found.claimed_by != found.key or _precedes_relay(found, request, attempt)):
        return Verdict.WAIT
    return _judge_attempt(found, request, attempt)


def check_to_be_settled(found: Action | None, request: ActionRequest) -> None:
    """Refuse to settle what was never sent: that would send it for the first time.

    Raises:
        RunNotRunning: The attempt has handed the row back since the undo was planned, or a failover
            has lost it.
    """
    if request.purpose != "settle":
        return
    if found is None:
        raise RunNotRunning(f"{request.key} is gone: a failover lost it")
    if found.state == "intent":
        raise RunNotRunning(f"{request.key} was never sent: nothing is unknown about it")


def _precedes_relay(found: Action, request: ActionRequest, attempt: Attempt) -> bool:
    """Whether the relay found the attempt of another call, for whose lease it waits.

    Attempts of the relay's own call began after that call was scheduled.
    """
    if found.unordered:
        # It cannot know the attempts of its own call, but this very one.
        return request.purpose == "relay" and found.claim_token != attempt.token
    since, at = attempt.scheduled_at, found.attempt_at
    return request.purpose == "relay" and since is not None and at is not None and at < since


def _judge_attempt(found: Action, request: ActionRequest, attempt: Attempt) -> Verdict:
    """Judge a dispatched row by who dispatched it: this attempt, an earlier or a later one."""
    if found.claim_token == attempt.token:
        return Verdict.LOOK_UP if found.looking_up else Verdict.GO_ON
    if found.unordered or attempt.unordered:
        return take_over(found, request, attempt)
    assert found.attempt_at is not None, "agent_actions_dispatch_is_complete"
    if found.attempt_at >= attempt.started_at:
        raise Fenced(
            f"{found.key} is owned by the attempt of {found.attempt_at.isoformat()}; "
            f"this one began at {attempt.started_at.isoformat()}"
        )
    return take_over(found, request, attempt)


def take_over(found: Action, request: ActionRequest, attempt: Attempt) -> Verdict:
    """Judge a dispatched row whose attempt is over, by the row's effect, not by newer code."""
    can_look_up = request.can_look_up
    if request.lookup_only or found.undone_by is not None:  # it would happen after it was undone
        return Verdict.LOOK_UP if can_look_up else Verdict.PARK
    if found.effect is Effect.IDEMPOTENT and not found.key_forgotten(attempt):
        return Verdict.TAKE_OVER
    if found.effect is Effect.AT_MOST_ONCE:
        # The downstream system is at work on it: the same request again is no second effect.
        return Verdict.TAKE_OVER if found.in_progress else Verdict.PARK
    return Verdict.LOOK_UP if can_look_up else Verdict.PARK


def settles_in(found: Action, request: ActionRequest, attempt: Attempt) -> timedelta:
    """Return from when on "not found" means that no attempt so far had an effect.

    Not before the last of them can have sent something, and not before the downstream system
    shows what it was sent; both have passed by the database's clock and by the engine's.
    """
    assert found.sent_until is not None, "agent_actions_dispatch_is_complete"
    return found.sent_until + request.settles_after - found.now_by(attempt)[0]


def why_parked(found: Action, *, lookup_only: bool = False) -> str:
    """Return why a row that `take_over` parks is not sent again."""
    lost = "an earlier attempt was lost after it was dispatched"
    if found.undone_by is not None:
        return f"{lost}, and {found.undone_by} has undone it since"
    if lookup_only:
        return f"{lost}, its run is over, and {found.tool} has no lookup"
    if found.effect is Effect.IDEMPOTENT:
        return f"{lost}, and the downstream system remembers its key only for {found.key_ttl}"
    if found.effect is Effect.LOOKUP:
        return f"{lost}, and this worker has no lookup for {found.tool}"
    return f"{lost}, and {found.tool} must not be sent twice"


def judge_holder(holder: Action, request: ActionRequest, attempt: Attempt) -> Verdict:
    """Judge the row of the other action that holds the request's domain key.

    Raises:
        Fenced: A later attempt of the claimant is settling it.
        IdempotencyKeyConflict: It was used for something else, which stands.
    """
    if (holder.tool, holder.effective_digest) != (request.tool, request.effective_digest):
        raise IdempotencyKeyConflict(
            f"{request.domain_key!r} was used by {holder.key} for {_shown(holder, request)}, and "
            f"is now asked for {request.tool} {scrub(request.args)}",
            existing=holder.key,
        )
    if holder.status == "done":
        return Verdict.RETURN
    if holder.parked:
        return Verdict.ANSWER_UNKNOWN
    if request.detached or holder.relayed:
        # A detached call is only promised that it will be carried out. The relay sends what it has
        # queued, in its order: a second sender could send it twice.
        return Verdict.ACCEPT if request.detached else Verdict.WAIT
    if holder.dispatched_at is None:
        return Verdict.DISPATCH  # its attempt sent nothing, and is over
    if holder.claimed_by == request.key:
        return _judge_attempt(holder, request, attempt)
    return Verdict.WAIT if holder.leased else take_over(holder, request, attempt)


def _shown(holder: Action, request: ActionRequest) -> str:
    """Return what a conflict tells of the holder: a stranger's arguments are told to nobody."""
    conversation = request.thread_id or request.run_key
    if (holder.thread_id or holder.run_key) != conversation:
        return "another tool or other arguments"
    return f"{holder.tool} {scrub(holder.args)}"


def check_undoes_the_same(holder: Action, request: ActionRequest, undone: Action | None) -> None:
    """Refuse an undo whose domain key was used for an undo of another action, or an earlier one.

    Its outcome would say that something is undone which stands.

    Args:
        holder: The action that holds the domain key.
        request: The undo that is claimed.
        undone: The action that it undoes.

    Raises:
        IdempotencyKeyConflict: The holder undid something else.
    """
    at = None if undone is None else undone.dispatched_at
    # An intent can be named by what undoes it, and be sent only after that.
    after = at is None or holder.dispatched_at is None or holder.dispatched_at >= at
    if not (after and holder.undoes in (None, request.undoes)):
        raise IdempotencyKeyConflict(
            f"{request.domain_key!r} was used by {holder.key}, which did not undo "
            f"{request.undoes}: what tells two calls apart has to tell their undos apart",
            existing=holder.key,
        )


@dataclass(frozen=True)
class Fact:
    """A row of ``agent_domain_keys``."""

    domain_key: str
    generation: int
    """The last one that was given out; 0 for none."""
    held_by: ActionKey | None
    undone_by: ActionKey | None
    """The action that undid the last holder."""


class Standing(Enum):
    """Whether an action that happened still stands; values of ``commitline_standing`` in SQL."""

    STANDS = "stands"
    UNDOING = "undoing"
    PERHAPS_UNDONE = "perhaps undone"


def perhaps_undone(holder: Action) -> Outcome:
    """Return how a call ends whose domain key is held by an action of which an undo is unknown."""
    return Outcome.error(
        kind="MayBeUndone",
        message=(
            f"not executed: {holder.key} had done it, and was perhaps undone since; whether it "
            "stands is unknown until its undo is settled. Do not assume either."
        ),
        effect_possible=False,
    )


def judge_undo(undone: Action | None, live: Action | None) -> Busy | Outcome | None:
    """Judge an undo that is to be sent; None: it may be. An action has one undo, whatever its key.

    Args:
        undone: The action that it undoes.
        live: The undo of that action which was sent, and of which no outcome is known.

    Returns:
        How the undo ends where it is never sent, or that it waits.
    """
    if undone is None:
        return None
    if live is None:
        return None if undone.undone_by is None else already_undone(undone.key, undone.undone_by)
    return _beside(
        live,
        f"{undone.key} was perhaps undone by {live.key}, which is unknown until it is settled: "
        "another undo could undo it twice",
    )


def judge_fact(undoes: ActionKey | None, fact: Fact) -> Outcome | None:
    """Judge an undo that names a business fact, when it is to be sent; None: it may be.

    It undoes the action that held the fact when it was asked for, and no later one.

    Args:
        undoes: That action.
        fact: The fact as it is now, locked.
    """
    if fact.held_by is None:
        gone = undoes is None and fact.undone_by is not None
        return already_undone(f"{fact.domain_key!r}", fact.undone_by) if gone else None
    if fact.held_by == undoes:
        return None
    return Outcome.error(
        kind="UndoesAnother",
        message=(
            f"not executed: {fact.held_by} holds {fact.domain_key!r} since, which this undo was "
            "not asked for. Call it again if that is to be undone."
        ),
        effect_possible=False,
    )


def judge_undone(domain_key: str, live: Action | None) -> Busy | Outcome | None:
    """Judge an action that is to be sent; None: it may be. No undo of its fact may be under way.

    That was sent before this action, and could reach the downstream system after it.

    Args:
        domain_key: The business fact that the action holds.
        live: The undo of that fact which was sent, and of which no outcome is known.
    """
    if live is None:
        return None
    return _beside(
        live,
        f"{live.key} undoes {domain_key!r}, and is unknown until it is settled: it could undo "
        "this, too",
    )


def _beside(live: Action, why: str) -> Busy | Outcome:
    """Return that one waits for an undo that is at work, or how it ends where that is unknown."""
    assert live.lease_until is not None, "agent_actions_dispatch_is_complete"
    if not live.parked and live.lease_until > live.now - _TAKEN_UP_WITHIN:
        return Busy(live.key)
    return Outcome.error(
        kind="MayBeUndone",
        message=f"not executed: {why}. Do not assume either.",
        effect_possible=False,
    )


def already_undone(what: str, by: ActionKey | None) -> Outcome:
    """Return how an undo ends that comes after another one."""
    return Outcome.error(
        kind="AlreadyUndone",
        message=f"not executed: {what} was undone by {by}: nothing is left to undo",
        effect_possible=False,
    )


def waits_for_answer(question: Question) -> Outcome:
    """Return how a call ends whose domain key is held by a call that waits for an answer."""
    return Outcome.error(
        kind="WaitsForAnswer",
        message=(f"not executed: {question.key} carries it out, and waits for a person's answer"),
        effect_possible=False,
    )
