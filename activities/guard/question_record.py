"""Writing down the question of a call that stops to put one to a person.

The question is written down and the call's row becomes an intent again, in one transaction. The
workflow waits for the answer, holding no worker, and then has the call made again.
"""

from __future__ import annotations

import asyncio

from ...crash import crash_point
from ...ledger import Action, ActionLedger, Dispatched, Question, QuestionRequest
from ..runner.clock import began_at
from .guarded_call import GuardedCall
from .ledger_write import finish


async def write_question(
    ledger: ActionLedger,
    call: GuardedCall,
    request: QuestionRequest,
    *,
    claim: Dispatched | None,
    stopped: bool,
) -> Question | Action:
    """Write a question down and make the row an intent again. Safe to repeat.

    This attempt goes on trying while the ledger is away: no other attempt may take the row for
    lost.

    Args:
        ledger: Where it is written.
        call: The call.
        request: The question.
        claim: By which the call was made; None for a READ, which has no row.
        stopped: The call was cancelled as it put the question.

    Returns:
        The question; or the row, where its outcome is known, or it is parked, by now.

    Raises:
        asyncio.CancelledError: The run was cancelled. The question stands.
    """
    attempt_at = began_at()
    # A lost attempt before this one may still send something, until its own time is up.
    over = claim is None or not claim.taken_over

    async def write() -> tuple[Question, Action | None]:
        return await ledger.questions.raise_question(
            request, claim, attempt_at=attempt_at, over=over
        )

    crash_point("before_record", tool=call.guarded.name)
    question, row = await finish(write)
    call.log.info(
        "question.asked",
        action_key=question.key,
        number=question.number,
        state=question.state,
        expires=question.expires_at,
    )
    if stopped and call.cancelled_with_its_run:
        raise asyncio.CancelledError
    return question if row is None else row
