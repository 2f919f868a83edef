"""The rules of an outcome: what follows from how a claimed call ended. Pure functions.

    ended with                    READ        IDEMPOTENT    LOOKUP       AT_MOST_ONCE
    ---------------------------   ----------  ------------  -----------  ------------
    a value                       ok          ok            ok           ok
    declined: nothing happened    error       error *       error *      error *
    not attempted                 again       again         again        again
    ... `tries` used up           error       error *       error *      error *
    still in progress             again, until the node's deadline; then as below
    transient, time-out           again       again, same   look up,     unknown
                                              key           then again
    ... `tries` used up           error       unknown       look up **   unknown
    anything else                 error       unknown       unknown      unknown
    a question to a person        the call waits as an intent, and is made again with the answer

    ** found: ok; surely never happened: error without effect; no time to know it: unknown.
    * unknown, where an earlier attempt may have sent something: a refusal or a failed connection
      speaks for its own call, and a tool's own check ("charged already") refuses *because* an
      earlier attempt went through.

*Again* is another attempt of Temporal's, after a while: it claims anew, and the row says what it
may do. Temporal's attempts are not limited. What the tool failed is counted on the row, so that a
dead worker or an outage of the ledger uses up none of its tries.
"""

from __future__ import annotations

from enum import Enum, auto

from ...ledger import Dispatched, Effect
from ..app.tool_failure import FailureKind, ToolFailure


class Next(Enum):
    """What follows from a failure."""

    AGAIN = auto()
    """Another attempt, after a while."""
    UNSENT = auto()
    """The relay could not send it: an operator tries it again, or calls it off."""
    NO_EFFECT = auto()
    """An error: nothing happened."""
    UNKNOWN = auto()
    """It may have happened, and nobody can tell."""


def judge_failure(
    claim: Dispatched,
    failure: ToolFailure,
    *,
    tries: int,
    has_time: bool,
    abandoned: bool,
    relayed: bool,
) -> Next:
    """Say what follows from a failure of a claimed call.

    Args:
        claim: By which it was called.
        failure: What the tool raised, or that it timed out.
        tries: How often the tool may fail the call.
        has_time: Another attempt may begin after the usual delay.
        abandoned: The tool goes on, and may still send something.
        relayed: The relay sends it.
    """
    if has_time and _is_tried_again(claim, failure, tries=tries, abandoned=abandoned):
        return Next.AGAIN
    if failure.kind is FailureKind.NOT_ATTEMPTED and relayed:
        return Next.UNSENT
    if failure.kind in (FailureKind.REFUSED, FailureKind.NOT_ATTEMPTED) and not claim.taken_over:
        return Next.NO_EFFECT
    return Next.UNKNOWN


def _is_tried_again(
    claim: Dispatched, failure: ToolFailure, *, tries: int, abandoned: bool
) -> bool:
    transient = failure.kind is FailureKind.TRANSIENT and claim.effect is not Effect.AT_MOST_ONCE
    if failure.kind is FailureKind.IN_PROGRESS:
        return True
    if not transient and failure.kind is not FailureKind.NOT_ATTEMPTED:
        return False
    # Not while the tool goes on: "it never happened" would be believed too soon.
    looks_up = claim.effect is Effect.LOOKUP and transient and claim.can_look_up and not abandoned
    return failed_so_far(claim, failure) < tries or looks_up


def failed_so_far(claim: Dispatched, failure: ToolFailure) -> int:
    """Return how often the tool has failed the call, this time included.

    That the downstream system is still at work on it is no failed try.
    """
    return claim.failures + (failure.kind is not FailureKind.IN_PROGRESS)


def why_unknown(claim: Dispatched, failure: ToolFailure, *, tries: int) -> str | None:
    """Say why the outcome is unknown; None where only the time for another try was missing."""
    if failure.kind in (FailureKind.REFUSED, FailureKind.NOT_ATTEMPTED):
        return f"an earlier attempt may have happened; now {failure.text}"
    in_progress = failure.kind is FailureKind.IN_PROGRESS
    if failure.kind is FailureKind.OTHER or (
        claim.effect is Effect.AT_MOST_ONCE and not in_progress
    ):
        return failure.text
    if claim.failures + 1 >= tries and not in_progress:
        return f"tried {claim.failures + 1} times; the last: {failure.text}"
    return None
