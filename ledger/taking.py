"""Taking a row that is there: what the rules (`claims`) say is done, in the claim's transaction.

The row is locked. It is the claimant's own, or that of the action that holds its domain key.
"""

from __future__ import annotations

from .action_rows import attempt_parameters, dispatched
from .calls import Connection, fetch, fetch_all
from .claim_rules import (
    AlreadyDone,
    Busy,
    Claim,
    Intended,
    LookUp,
    Parked,
    Verdict,
    settles_in,
    why_parked,
)
from .question_rules import Question
from .records import Action, ActionRequest, Attempt


async def carry_out(
    connection: Connection,
    verdict: Verdict,
    found: Action,
    request: ActionRequest,
    attempt: Attempt,
) -> Claim:
    """Do what the rules say about a row: the claimant's own, or the holder's of its domain key."""
    match verdict:
        case Verdict.RETURN:
            return AlreadyDone(found)
        case Verdict.ANSWER_UNKNOWN:
            return Parked(found)
        case Verdict.ACCEPT | Verdict.WAIT:
            waits = verdict is Verdict.WAIT
            return Busy(found.claimed_by or found.key) if waits else Intended(found)
        case Verdict.PARK:
            row = await fetch(
                connection,
                "park",
                key=found.key,
                token=None,
                reason=why_parked(found, lookup_only=request.lookup_only),
                over=False,
                failures=None,
            )
            assert row is not None, "the row is locked and pending"
            return Parked(Action.from_row(row))
        case Verdict.GO_ON:
            asked = await _asked(connection, found)
            return dispatched(found, request, attempt, taken_over=found.tries > 1, asked=asked)
        case Verdict.DISPATCH | Verdict.TAKE_OVER | Verdict.LOOK_UP:
            return await _take(connection, verdict, found, request, attempt)


async def _take(
    connection: Connection,
    verdict: Verdict,
    found: Action,
    request: ActionRequest,
    attempt: Attempt,
) -> Claim:
    """Make the row this attempt's: to call, or to ask about it."""
    asks = verdict is Verdict.LOOK_UP
    row = await fetch(
        connection,
        "take_to_look_up" if asks else "dispatch",
        key=found.key,
        claimed_by=request.key,
        **attempt_parameters(attempt),
    )
    assert row is not None, "the row is locked and pending"
    taken = Action.from_row(row)
    call = dispatched(
        taken,
        request,
        attempt,
        taken_over=verdict is not Verdict.DISPATCH,
        asked=await _asked(connection, found),
    )
    return LookUp(call, settles_in(taken, request)) if asks else call


async def _asked(connection: Connection, found: Action) -> tuple[Question, ...]:
    """Return what a call has asked before, which it gets the answers of."""
    rows = await fetch_all(connection, "questions_of", key=found.key)
    return tuple(Question.from_row(row) for row in rows)
