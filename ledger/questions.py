"""`QuestionLedger`: the questions that calls raise midway, and the one answer to each.

A question ends an attempt that has sent nothing: one transaction writes the question and hands
the call's row back. The row is an intent from then on. No other call carries it out, and none
voids it, while the question waits (see `claim`). Where an *earlier* attempt may have sent
something the row stays dispatched, and the next claim goes by its effect.

An answer is a compare-and-set on the question's row: the first one counts, and it outlives a
reset, a workflow retry and a continue-as-new of the run whose call raised the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ..canonical import storable
from ..errors import AnswerRefused, Fenced, RunNotRunning
from ..identity import ActionKey, RunKey, split_action_key
from .action_records import Action
from .claim_results import Dispatched, HeldClaim
from .outcome import end_intent, lock_with_domain_key
from .question_rules import Question, QuestionRequest, raised_before
from .run_records import Run
from .run_rules import may_raise_question, not_running
from .statements import Connection, LedgerCalls, execute, fetch, fetch_all, fetch_one
from .transaction import transaction

_RUN_ENDED: Final = (
    "its run ended while its question waited, and an earlier attempt may have happened"
)
_NOT_ANSWERED: Final = "an earlier attempt may have happened, and nobody answered its question"


class QuestionLedger(LedgerCalls):
    """Questions over an open psycopg pool (see `ledger_pool`)."""

    async def raise_question(
        self,
        request: QuestionRequest,
        claim: Dispatched | HeldClaim | None,
        *,
        attempt_at: datetime,
        over: bool = True,
    ) -> tuple[Question, Action | None]:
        """Write a question and hand the call's row back; or return the one that was raised before.

        Safe to repeat: a question that stands is not raised again. One that has expired ends
        its call: an intent is ended, what may have been sent is parked.

        Args:
            request: The question.
            claim: By which the call was dispatched; None where it has no row.
            attempt_at: When the attempt began, by the engine's clock: a run that ended before
                that goes on, as it does for a claim.
            over: Whether no attempt before this one may still send something.

        Returns:
            The question, which waits, is answered, or has expired; and the call's row where
            that has ended.

        Raises:
            RunNotRunning: The run may start nothing any more; no question is written. The row is
                handed back all the same.
            Fenced: Another attempt has taken the call over.
            LedgerUnavailable: No answer within the deadline; raise it again.
        """

        async def work(connection: Connection) -> tuple[Question, Action | None] | Run | None:
            # By itself: two that hold the run's lock in share would wait for each other.
            at = {"run_key": request.run_key, "attempt_at": attempt_at}
            await execute(connection, "reopen_run", **at)
            async with transaction(connection):
                run = await fetch(connection, Run, "lock_run", run_key=request.run_key)
                owns = claim is None or await _lock_own(connection, claim)
                if not may_raise_question(run, request.position):
                    if claim is not None and owns:
                        await _hand_back_or_park(connection, claim)
                    return run
                question = await _raise(connection, request, owns=owns)
                if question is None:
                    raise Fenced(f"{request.key} was taken over by another attempt")
                if claim is not None and owns:
                    await _hand_back_or_leave(connection, claim, over=over)
                expired = question.state == "expired"
                return question, await _close(connection, question) if expired else None

        raised = await self._call(work)
        if isinstance(raised, tuple):
            return raised
        raise not_running(raised, f"the run of {request.key} may start nothing any more")

    async def look(self, key: ActionKey, number: int) -> tuple[Question | None, Action | None]:
        """Return a question and the row of its call, which ends where that has expired.

        Safe to repeat. None where the call has no row: it only reads.

        Raises:
            RunNotRunning: The ledger has lost the question, and its run, too.
        """

        async def work(connection: Connection) -> tuple[Question | None, Action | None]:
            async with transaction(connection):
                await lock_with_domain_key(connection, key)
                questions = await fetch_all(connection, Question, "lock_questions", key=key)
                found = next((one for one in questions if one.number == number), None)
                if found is not None and found.state == "expired":
                    return found, await _close(connection, found)
                if found is None:
                    await _check_run(connection, split_action_key(key)[0])
                return found, await fetch(connection, Action, "get_action", key=key)

        return await self._call(work)

    async def get(self, key: ActionKey, number: int | None = None) -> Question | None:
        """Return one question of a call, by default the newest. Safe to repeat; it only reads."""
        if number is None:
            return await self._fetch(Question, "newest_question", key=key)
        return await self._fetch(Question, "get_question", key=key, number=number)

    async def reopen_run(self, run_key: RunKey, *, attempt_at: datetime) -> None:
        """Open a run again, as `ApprovalLedger.reopen_run` does. Safe to repeat."""
        await self._execute("reopen_run", run_key=run_key, attempt_at=attempt_at)

    async def of_call(self, key: ActionKey) -> Sequence[Question]:
        """Return the questions of a call that it has not replaced, in order; it only reads."""
        return await self._fetch_all(Question, "questions_of", key=key)

    async def answer(self, key: ActionKey, number: int, answer: str, *, by: str) -> Question:
        """Answer, once. Safe to repeat: the same answer by the same person changes nothing.

        Args:
            key: The action key of the call.
            number: Which of its questions.
            answer: JSON text; not ``null``.
            by: The person; kept on the row, as `storable` has it.

        Raises:
            AnswerRefused: It has another answer, has expired, was replaced by another
                question, was never raised, or its run acts no more.
            LedgerUnavailable: No answer within the deadline; answer again.
        """
        if answer == "null":
            raise AnswerRefused(f"an answer to {key} needs a value")
        at, by = {"key": key, "number": number}, storable(by)

        async def work(connection: Connection) -> Question:
            answered = await fetch(connection, Question, "answer", **at, answer=answer, by=by)
            if answered is not None:
                return answered
            found = await fetch(connection, Question, "get_question", **at)
            if found is None:
                raise AnswerRefused(f"{key} has raised no question {number}")
            if (found.answer, found.answered_by) == (answer, by):
                return found
            raise refusal_of(found)

        return await self._call(work)

    async def list(
        self, run_key: RunKey | None = None, *, only_waiting: bool = True, limit: int = 1000
    ) -> Sequence[Question]:
        """Return those that wait for an answer, longest first, or all of them; it only reads."""
        return await self._fetch_list(
            Question, "list_questions", run_key=run_key, only_waiting=only_waiting, limit=limit
        )


async def _raise(
    connection: Connection, request: QuestionRequest, *, owns: bool
) -> Question | None:
    """Return the question that stands; None where this attempt may not raise another one."""
    questions = await fetch_all(connection, Question, "lock_questions", key=request.key)
    found = raised_before(questions, request)
    if found is not None or not owns:
        return found
    if request.index < len(questions):
        replaced = questions[request.index].number
        await execute(connection, "replace_questions", key=request.key, number=replaced)
    new = {**vars(request), "key": request.key}
    return await fetch_one(connection, Question, "insert_question", **new)


async def _lock_own(connection: Connection, claim: Dispatched | HeldClaim) -> bool:
    """Whether the row is still the claim's: it is not where it was handed back already."""
    row = await lock_with_domain_key(connection, claim.key)
    if row is None or row.claim_token != claim.token:
        return False
    return row.status == "pending" and not row.parked


async def _hand_back_or_leave(
    connection: Connection, claim: Dispatched | HeldClaim, *, over: bool
) -> None:
    """Make the row an intent again; leave it dispatched where an earlier attempt may have sent."""
    ours = {"key": claim.key, "token": claim.token}
    if not await execute(connection, "hand_back", **ours, failures=0):
        await execute(connection, "leave_dispatched", **ours, over=over)


async def _hand_back_or_park(connection: Connection, claim: Dispatched | HeldClaim) -> None:
    """The same in a run that has ended: no later attempt takes over what may have been sent."""
    ours = {"key": claim.key, "token": claim.token}
    if not await execute(connection, "hand_back", **ours, failures=0):
        await execute(connection, "park", **ours, reason=_RUN_ENDED, over=True, failures=None)


async def _close(connection: Connection, question: Question) -> Action | None:
    """End the call whose question has expired, rows locked; return its row, if it has one."""
    action = await fetch(connection, Action, "lock_action", key=question.key)
    if action is None:
        return None
    await close_expired(connection, action, question)
    return await fetch_one(connection, Action, "get_action", key=question.key)


async def close_expired(connection: Connection, action: Action, question: Question) -> None:
    """End an action whose question has expired; its row, and its domain key's, are locked.

    Not one that an attempt is at work on: that attempt raises its question again by itself.
    """
    if action.state == "intent":
        await end_intent(connection, action.key, question.not_executed)
    elif action.state == "dispatched" and not action.leased:
        given = {"token": None, "reason": _NOT_ANSWERED, "over": False, "failures": None}
        await execute(connection, "park", key=action.key, **given)


def refusal_of(found: Question) -> AnswerRefused:
    """Return why another answer to a question does not count."""
    return AnswerRefused(_why_not(found))


def _why_not(found: Question) -> str:
    of = f"question {found.number} of {found.key}"
    match found.state:
        case "answered":
            return f"{of} was answered by {found.answered_by} at {found.answered_at}"
        case "expired":
            return f"{of} has expired at {found.expires_at}; the call was not carried out"
        case "replaced":
            return f"{of} was replaced: the call, carried out again, raised another question"
        case "withdrawn":
            return f"the run of {found.key} went another way: the call is not made any more"
    return f"the run of {found.key} acts no more"


async def _check_run(connection: Connection, run_key: RunKey) -> None:
    """Refuse a run that is not there: its call would be begun anew."""
    if await fetch(connection, Run, "get_run", run_key=run_key) is None:
        raise RunNotRunning(f"{run_key} is not in the ledger", known=False)
