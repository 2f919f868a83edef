"""What follows from how a claimed call ended. `row` writes it.

    ended with                    READ        IDEMPOTENT    LOOKUP       AT_MOST_ONCE
    ---------------------------   ----------  ------------  -----------  ------------
    a value                       ok          ok            ok           ok
    declined: nothing happened    error       error *       error *      error *
    not attempted                 again       again         again        again
    ... `tries` used up           error       error *       error *      error *
    still in progress             again, until the node's deadline; then as *anything else*
    transient, time-out           again       again, same   look up,     unknown
                                              key           then again
    ... `tries` used up           error       unknown       look up **   unknown
    anything else                 error       unknown       unknown      unknown
    a question to a person        the call waits as an intent, and is made again with the answer
    an interrupt of a framework   the same, whatever tries and attempts are left

    told that it is cancelled,    again       again, same   look up,     unknown
    at its deadline ***                       key           then again
    ... by a stop                 cancelled   unknown       unknown      unknown
    ... by a worker that ends     again       taken over by the next attempt, by effect
    ... and it ends late          nothing     unknown       unknown      unknown

    ** found: ok; surely never happened: error without effect; no time to know it: unknown.
    *** whatever it returns, raises or asks then: `CancelledError`. What a tool says after our own
    cancellation has reached it ("I was cancelled, sorry") proves nothing. What ended before that
    has its own row above, however late it is seen; so has a plain function, whose thread cannot
    be told, and a process that had answered before it was killed. A lookup's answer is no other.
    * unknown, where an earlier attempt may have sent something: a refusal or a failed connection
      speaks for its own call, and a tool's own check ("charged already") refuses *because* an
      earlier attempt went through.

*Again* is another attempt of Temporal's, after a while: it claims anew, and the row says what it
may do. Temporal's attempts are not limited. What the tool failed is counted on the row, so that a
dead worker or an outage of the ledger uses up none of its tries.

A READ has no row: `read_attempt` does what its column says.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias

from temporalio import activity

from ...errors import NodeTimeout
from ...ledger import Dispatched, Effect, Outcome, QuestionRequest
from ..app.tool_context import ToolContext
from ..app.tool_failure import FailureKind, ToolFailure
from ..runner.bounded_call import Abandoned, CallEnd, Raised, Returned
from .guarded_call import GuardedCall
from .invocation import NotBegun, failure_of, is_question, question_request
from .retry import delay_after, time_for

NO_TIME = f"no time for another try [{NodeTimeout.code}]"


@dataclass(frozen=True)
class Known:
    """It is known how the action ended: record it."""

    outcome: Outcome


@dataclass(frozen=True)
class Unknown:
    """The action may have happened: park it."""

    reason: str
    """Why it is unknown, for the operator who settles it."""
    over: bool
    """Whether the tool has ended; if not, it may still send something."""
    failures: int | None = None
    """Tries that the tool has failed so far, this one included."""
    out_of_time: bool = False
    """Only the time for another try was missing."""


@dataclass(frozen=True)
class Unsent:
    """The relay could not send the action: an operator has it tried again, or calls it off."""

    reason: str
    failures: int


@dataclass(frozen=True)
class Again:
    """Temporal starts another attempt."""

    failure: ToolFailure
    delay: timedelta
    failures: int
    over: bool
    """Whether the tool has ended; if not, it may still send something."""
    otherwise: Known | Unknown | Unsent
    """What follows where the row cannot be handed back, and must not be sent twice."""


@dataclass(frozen=True)
class Asked:
    """The call put a question to a person: it waits for the answer as an intent."""

    question: QuestionRequest
    stopped: bool
    """The call was cancelled as it put the question."""


@dataclass(frozen=True)
class Stopped:
    """The call was cancelled: with its run, or because its worker shuts down."""

    over: bool
    """Whether the tool has ended."""


Follows: TypeAlias = Known | Unknown | Unsent | Again | Asked | Stopped | NotBegun


def judge_end(
    call: GuardedCall, claim: Dispatched, end: CallEnd | NotBegun, context: ToolContext
) -> Follows:
    """Say what follows from the end of a call.

    Args:
        call: The call.
        claim: The claim that allowed the call.
        end: How it ended.
        context: What it was made with.
    """
    if isinstance(end, NotBegun):
        return end
    if isinstance(end.how, Returned):
        return Known(_encoded(call, claim, end.how))
    if is_question(end):
        if _may_have_sent_beside(claim, context):
            reason = (
                "it raised a question while another task of it was at work, which may have sent"
            )
            return Unknown(reason, over=True)
        return Asked(question_request(call, context), stopped=end.stopped_by == "caller")
    abandoned = isinstance(end.how, Abandoned)
    if end.stopped_by == "caller":
        return Stopped(over=not abandoned)
    return _after_failure(call, claim, failure_of(call, end), abandoned=abandoned)


def _may_have_sent_beside(claim: Dispatched, context: ToolContext) -> bool:
    """Whether the call may have sent something beside its question, and the next one would again.

    The key of an `IDEMPOTENT` call keeps the second one from counting.
    """
    worked = context.questions is not None and context.questions.worked_beside
    return worked and claim.effect is not Effect.IDEMPOTENT


def late_outcome(call: GuardedCall, claim: Dispatched, end: Returned | Raised) -> Outcome | None:
    """Return what the end of an abandoned tool says for sure; None where it says nothing."""
    if isinstance(end, Returned):
        return _encoded(call, claim, end)
    if isinstance(end.error, asyncio.CancelledError):
        call.log.info("tool.ended_cancelled", action_key=claim.key)
        return None  # also where `refused_on` names it: the cancellation is ours
    failure = call.guarded.failure(end.error)
    call.log.info("tool.ended_late", action_key=claim.key, error=failure.type)
    surely_nothing = failure.kind is FailureKind.REFUSED and not claim.taken_over
    return failure.without_effect if surely_nothing else None


def _encoded(call: GuardedCall, claim: Dispatched, end: Returned) -> Outcome:
    """Return the outcome of a call that returned.

    What it changed in the state counts only where the row's own call had the same copy: not in
    another run's conversation, and not a turn later.
    """
    outcome = call.guarded.encode(end.value)
    run_key, at = claim.place
    header = call.header
    here = (header.run_key, header.position.rpartition(".")[0])
    if claim.settles_for is None or here == (run_key, at.rpartition(".")[0]):
        return outcome
    return replace(outcome, state_changes=None)


def _after_failure(
    call: GuardedCall, claim: Dispatched, failure: ToolFailure, *, abandoned: bool
) -> Follows:
    in_progress = failure.kind is FailureKind.IN_PROGRESS
    # That the downstream system is still at work on it is no failed try; nor is an interrupt.
    failures = claim.failures + failure.counts
    delay = delay_after(call, failure, failed=activity.info().attempt if in_progress else failures)
    final = _final(call, claim, failure, failures, abandoned=abandoned)
    if not _is_tried_again(call, claim, failure, failures, abandoned=abandoned):
        return final
    if not failure.interrupts and not time_for(call, delay):
        return final
    return Again(failure, delay, failures, over=not abandoned, otherwise=final)


def _is_tried_again(
    call: GuardedCall, claim: Dispatched, failure: ToolFailure, failures: int, *, abandoned: bool
) -> bool:
    if failure.kind is FailureKind.IN_PROGRESS:
        return True
    transient = failure.kind is FailureKind.TRANSIENT and claim.effect is not Effect.AT_MOST_ONCE
    if not transient and failure.kind is not FailureKind.NOT_ATTEMPTED:
        return False
    # Not while the tool goes on: "it never happened" would be believed too soon.
    looks_up = claim.effect is Effect.LOOKUP and transient and claim.can_look_up and not abandoned
    return failures < call.tries or looks_up


def _final(
    call: GuardedCall, claim: Dispatched, failure: ToolFailure, failures: int, *, abandoned: bool
) -> Known | Unknown | Unsent:
    """Say what follows where the call is not tried again."""
    if failure.kind is FailureKind.NOT_ATTEMPTED and call.header.purpose == "relay":
        return Unsent(f"tried {failures} times; the last: {failure.text}", failures)
    nothing_sent = failure.kind in (FailureKind.REFUSED, FailureKind.NOT_ATTEMPTED)
    if nothing_sent and not claim.taken_over:
        return Known(failure.without_effect)
    over, out_of_time = not abandoned, False
    in_progress = failure.kind is FailureKind.IN_PROGRESS
    at_most_once = claim.effect is Effect.AT_MOST_ONCE and not in_progress
    if nothing_sent:
        reason = f"an earlier attempt may have happened; now {failure.text}"
    elif failure.kind is FailureKind.OTHER or at_most_once:
        reason = failure.text
    elif failures >= call.tries and not in_progress:
        reason = f"tried {failures} times; the last: {failure.text}"
    else:
        reason, out_of_time = f"{NO_TIME}; the last: {failure.text}", True
    return Unknown(reason, over, failures, out_of_time)
