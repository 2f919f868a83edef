"""`QuestionLedger`: what calls ask midway, in Postgres, and the one answer to each question.

To ask ends an attempt that has sent nothing: in one transaction the question is written and
the call's row handed back. It is an intent from then on, which nobody else calls and nobody
voids while the question waits (`domain_keys.claim_domain_key`). Where an *earlier* attempt
may have sent something it stays dispatched, and what is next done about it goes by its effect.

An answer is a compare-and-set on the question's row: the first one counts, and it outlives a
reset, a workflow retry and a continue-as-new of the run that asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..canonical import storable
from ..errors import AnswerRefused, Fenced, RunNotRunning
from ..identity import ActionKey, RunKey, epoch_of, step_of
from .calls import Connection, LedgerCalls, Row, execute, fetch, fetch_all
from .claim_rules import Dispatched, Owned
from .question_rules import Question, QuestionRequest, standing
from .records import Action

_AT_ITS_END = "its run ended while it asked a person, and an earlier attempt may have happened"


class QuestionLedger(LedgerCalls):
    """Questions over an open psycopg pool (see `ledger_pool`)."""

    async def ask(
        self,
        request: QuestionRequest,
        claim: Dispatched | Owned | None,
        *,
        attempt_at: datetime,
        over: bool = True,
    ) -> tuple[Question, Action | None]:
        """Ask, and hand the call's row back; or return what was asked and answered.

        Safe to repeat: a question that stands is not asked again. One that has expired ends
        its call: an intent is closed, what may have been sent is parked.

        Args:
            request: What is asked.
            claim: By which the call was dispatched; None where it has no row.
            attempt_at: When the attempt began, by the engine's clock: a run that ended before
                that goes on, as it does for a claim.
            over: Whether no attempt before this one may still send something.

        Returns:
            The question, which waits, is answered, or has expired; and the call's row where
            that has ended.

        Raises:
            RunNotRunning: The run may start nothing any more; nothing is asked. The row is
                handed back all the same.
            Fenced: Another attempt has taken the call over.
            LedgerUnavailable: No answer within the deadline; ask again.
        """

        async def work(connection: Connection) -> tuple[Question, Action | None] | Row | None:
            # By itself: two that hold the run's lock in share would wait for each other.
            at = {"run_key": request.run_key, "attempt_at": attempt_at}
            await fetch(connection, "reopen_run", **at)
            async with connection.transaction():
                run = await fetch(connection, "lock_run", run_key=request.run_key)
                owns = claim is None or await _lock_own(connection, claim)
                if run is None or not _runs(run, request):
                    if claim is not None and owns:
                        await _leave_for_good(connection, claim)
                    return run
                found = await _ask(connection, request, owns=owns)
                if found is None:
                    raise Fenced(f"{request.key} was taken over by another attempt")
                if claim is not None and owns:
                    await _leave(connection, claim, over=over)
                ended = None if found.state != "expired" else await _close(connection, found)
                return found, ended

        asked = await self._call(work)
        if isinstance(asked, tuple):
            return asked
        stopping = asked is not None and asked["state"] == "stopping"
        raise RunNotRunning(
            f"the run of {request.key} may start nothing any more", stopping=stopping
        )

    async def look(self, key: ActionKey, number: int) -> tuple[Question | None, Action | None]:
        """Return a question and the row of its call, which ends where that has expired.

        Safe to repeat. None where the call has no row: it only reads.
        """

        async def work(connection: Connection) -> tuple[Question | None, Action | None]:
            async with connection.transaction():
                await _lock_action(connection, key)
                rows = await fetch_all(connection, "lock_questions", key=key)
                found = next((row for row in rows if row["number"] == number), None)
                question = None if found is None else Question.from_row(found)
                if question is not None and question.state == "expired":
                    return question, await _close(connection, question)
                action = await fetch(connection, "get_action", key=key)
                return question, None if action is None else Action.from_row(action)

        return await self._call(work)

    async def get(self, key: ActionKey, number: int | None = None) -> Question | None:
        """Return one question of a call, by default the newest. Safe to repeat; it only reads."""
        row = (
            await self._maybe("newest_question", key=key)
            if number is None
            else await self._maybe("get_question", key=key, number=number)
        )
        return None if row is None else Question.from_row(row)

    async def go_on(self, run_key: RunKey, *, attempt_at: datetime) -> None:
        """Open a run again that has ended, as `ApprovalLedger.go_on` does. Safe to repeat."""
        await self._maybe("reopen_run", run_key=run_key, attempt_at=attempt_at)

    async def asked(self, key: ActionKey) -> Sequence[Question]:
        """Return what a call has asked and not asked differently since, in order; only reads."""
        return [Question.from_row(row) for row in await self._all("questions_of", key=key)]

    async def answer(self, key: ActionKey, number: int, answer: str, *, by: str) -> Question:
        """Answer, once. Safe to repeat: the same answer by the same person changes nothing.

        Args:
            key: The action key of the call.
            number: Which of its questions.
            answer: JSON text; not ``null``.
            by: Who says so; kept on the row, as `storable` has it.

        Raises:
            AnswerRefused: It has another answer, has expired, was replaced by another
                question, was never asked, or its run acts no more.
            LedgerUnavailable: No answer within the deadline; answer again.
        """
        if answer == "null":
            raise AnswerRefused(f"an answer to {key} needs a value")
        at, by = {"key": key, "number": number}, storable(by)

        async def work(connection: Connection) -> Question:
            row = await fetch(connection, "answer", **at, answer=answer, by=by)
            if row is not None:
                return Question.from_row(row)
            row = await fetch(connection, "get_question", **at)
            if row is None:
                raise AnswerRefused(f"{key} has asked no question {number}")
            found = Question.from_row(row)
            if (found.answer, found.answered_by) == (answer, by):
                return found
            raise AnswerRefused(_why_not(found))

        return await self._call(work)

    async def list(
        self, run_key: RunKey | None = None, *, only_waiting: bool = True, limit: int = 1000
    ) -> Sequence[Question]:
        """Return what waits for an answer, longest first, or all that was asked; it only reads."""
        rows = await self._all(
            "list_questions", run_key=run_key, only_waiting=only_waiting, limit=limit
        )
        return [Question.from_row(row) for row in rows]


async def _ask(connection: Connection, request: QuestionRequest, *, owns: bool) -> Question | None:
    """Return the question that stands; None where this attempt may not ask another one."""
    rows = await fetch_all(connection, "lock_questions", key=request.key)
    asked = [Question.from_row(row) for row in rows]
    found = standing(asked, request)
    if found is not None or not owns:
        return found
    if request.index < len(asked):
        replaced = asked[request.index].number
        await execute(connection, "replace_questions", key=request.key, number=replaced)
    row = await fetch(connection, "insert_question", key=request.key, **vars(request))
    assert row is not None, "an insert without a conflict clause returns its row"
    return Question.from_row(row)


async def _lock_own(connection: Connection, claim: Dispatched | Owned) -> bool:
    """Whether the row is still the claim's: it is not where it was handed back already."""
    row = await _lock_action(connection, claim.key)
    return (
        row is not None
        and row["claim_token"] == claim.token
        and row["status"] == "pending"
        and row["parked_at"] is None
    )


async def _lock_action(connection: Connection, key: ActionKey) -> Row | None:
    seen = await fetch(connection, "get_action", key=key)
    if seen is not None and seen["domain_key"] is not None:
        # The domain key first: that is the lock order.
        await fetch(connection, "lock_domain_key", domain_key=seen["domain_key"])
    return await fetch(connection, "lock_action", key=key)


async def _leave(connection: Connection, claim: Dispatched | Owned, *, over: bool) -> None:
    """Make the row an intent again; or let it rest, where an earlier attempt may have sent."""
    ours = {"key": claim.key, "token": claim.token}
    if await fetch(connection, "hand_back", **ours, failures=0) is None:
        await fetch(connection, "rest", **ours, over=over)


async def _leave_for_good(connection: Connection, claim: Dispatched | Owned) -> None:
    """The same in a run that ends: nobody comes for what may have been sent."""
    ours = {"key": claim.key, "token": claim.token}
    if await fetch(connection, "hand_back", **ours, failures=0) is None:
        await fetch(connection, "park", **ours, reason=_AT_ITS_END, over=True, failures=None)


async def _close(connection: Connection, question: Question) -> Action | None:
    """End the call whose question has expired, rows locked; return its row, if it has one."""
    row = await fetch(connection, "lock_action", key=question.key)
    if row is None:
        return None
    await close_expired(connection, Action.from_row(row), question)
    now = await fetch(connection, "get_action", key=question.key)
    assert now is not None, "the row is locked"
    return Action.from_row(now)


async def close_expired(connection: Connection, action: Action, question: Question) -> None:
    """End an action whose question has expired; its row, and its domain key's, are locked.

    Not one that an attempt is at work on: that comes to its question by itself.
    """
    if action.state == "intent":
        result = question.not_executed.result
        await fetch(connection, "void_intent", key=action.key, result=result)
        if action.domain_key is not None:
            await execute(
                connection, "release_domain_key", domain_key=action.domain_key, key=action.key
            )
    elif action.state == "dispatched" and not action.leased:
        await fetch(
            connection,
            "park",
            key=action.key,
            token=None,
            reason="an earlier attempt may have happened, and nobody answered its question",
            over=False,
            failures=None,
        )


def _runs(run: Row, request: QuestionRequest) -> bool:
    older = run["epoch"] > epoch_of(request.position)
    forked = older and (step_of(request.position) or 0) >= run["fork_step"]
    return bool(run["state"] == "running" and not forked)


def _why_not(found: Question) -> str:
    of = f"question {found.number} of {found.key}"
    match found.state:
        case "answered":
            return f"{of} was answered by {found.answered_by} at {found.answered_at}"
        case "expired":
            return f"{of} has expired at {found.expires_at}; the call was not carried out"
        case "replaced":
            return f"{of} is asked no more: the call, carried out again, asked something else"
    return f"the run of {found.key} acts no more"
