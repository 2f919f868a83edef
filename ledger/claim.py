"""Claiming an action: one statement where nothing stands in the way, else by the rows it finds.

The module reads from top to bottom, as a claim goes:

    claim_action          one statement, if the action and its domain key are new: `claim_new`
    claim_found           else one transaction. Locks the run. If the action has a row, that one
                          counts: what may be done about it is said by `judge_own`
    _claim_unwritten      no row yet: locks the domain keys, or looks for an equal unknown call
    _claim_domain_key     the key is free: its holder from now on; or another action holds it
    _claim_held           what may be done about that holder is said by `judge_holder`
    _act_on               does what was said about a row
    _begin                the key is free; what of an undo stands in the way says `LockedFacts`
    _insert, ...          writes the action's own row

Rows are locked in one order: the run; the domain key of what it undoes; the action's own row, if
there is one, else its own domain key, and the action that holds that key. Where an undo is to be
sent, the action that it undoes comes last: its record locks the undo before that, too.

`run_rules` judges the run, `claim_rules` judges the actions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from psycopg import errors as pg

from ..errors import IdempotencyKeyConflict, RunNotRunning
from ..idempotency_key import undo_key, with_generation
from ..identity import ActionKey, epoch_of, step_of
from .action_records import NEVER_SENT, Action, ActionRequest, Attempt, Outcome
from .claim_facts import LockedFacts
from .claim_results import (
    Accepted,
    AlreadyDone,
    Busy,
    Claim,
    Dispatched,
    LookUp,
    Parked,
    attempt_parameters,
    first_key,
    new_call,
    stored_call,
)
from .claim_rules import (
    MAY_SEND,
    Standing,
    Verdict,
    check_to_be_settled,
    check_undoes_the_same,
    judge_holder,
    judge_own,
    perhaps_undone,
    settles_in,
    take_over,
    waits_for_answer,
    why_parked,
)
from .outcome import call_off, give_up, mark_undone
from .outcome_rules import conflict_outcome
from .question_rules import Question
from .questions import close_expired
from .run_records import Run
from .run_rules import is_for_the_relay, may_start, will_be_sent
from .statements import Connection, execute, fetch, fetch_all, fetch_one, fetch_row
from .transaction import transaction


async def claim_action(connection: Connection, request: ActionRequest, attempt: Attempt) -> Claim:
    """Claim an action, in transactions of its own. See `ActionLedger.claim`."""
    claimant = _Claimant(connection, request, attempt)
    if await claimant.write_new():
        return new_call(request, attempt)
    claim = await claimant.claim_found()
    if claim is None and request.purpose == "forward":
        # The run has ended. `reopen_run` opens it for an execution that began after that end.
        await execute(connection, "reopen_run", **claimant.parameters)
        claim = await claimant.claim_found()
    if claim is None:
        raise RunNotRunning(f"the run {request.run_key} has ended")
    return claim


class _NeverSent(Exception):
    """An intent is not to be sent. Another transaction ends it: its domain key is locked first."""

    def __init__(self, key: ActionKey, outcome: Outcome) -> None:
        super().__init__(key)
        self.key, self.outcome = key, outcome


class _Claimant:
    """One attempt that claims one action over one connection; its query parameters, bound once."""

    def __init__(
        self,
        connection: Connection,
        request: ActionRequest,
        attempt: Attempt,
        facts: LockedFacts | None = None,
    ) -> None:
        self._connection = connection
        self._request = request
        self._attempt = attempt
        self._facts = LockedFacts(connection) if facts is None else facts
        self.parameters: dict[str, Any] = {
            **vars(request),
            **attempt_parameters(attempt),
            "repeats": attempt.repeats,
            "key": request.key,
            "thread": request.thread_id or request.run_key,
            "epoch": epoch_of(request.position),
            "step": step_of(request.position) or 0,
            "idempotency_key": first_key(request),
        }

    async def write_new(self) -> bool:
        """Write the row, dispatched, in one statement; False where something stands in the way."""
        request = self._request
        if request.purpose != "forward" or request.undoes_domain_key is not None:
            return False  # an undo is linked to the action that it undoes, under that one's lock
        if request.detached:
            return False
        try:
            return await execute(self._connection, "claim_new", **self.parameters)
        except pg.UniqueViolation:
            # Another claim took the domain key at the same moment: its row is there now.
            return False

    async def claim_found(self) -> Claim | None:
        """Claim by the rows that are there. None: the run has ended, and nothing was written."""
        for _ in range(3):
            try:
                return await self._claim_found()
            except pg.UniqueViolation:
                # Another attempt wrote this action's row meanwhile, or sent another undo of what
                # it undoes: that is there now.
                continue
            except _NeverSent as found:
                await call_off(self._connection, found.key, found.outcome)
        return await self._claim_found()

    async def _claim_found(self) -> Claim | None:
        request = self._request
        async with transaction(self._connection):
            self._facts = LockedFacts(self._connection)
            run = await fetch(self._connection, Run, "lock_run", run_key=request.run_key)
            if run is None:
                raise RunNotRunning(f"the run {request.run_key} is not in the ledger", known=False)
            await self._facts.lock_undone_by(request.key)
            own = await fetch(self._connection, Action, "lock_action", key=request.key)
            check_to_be_settled(own, request)
            if own is None:
                return await self._claim_unwritten() if may_start(run, request) else None
            verdict = judge_own(own, request, self._attempt)
            if request.purpose == "relay" and not is_for_the_relay(run, own):
                raise RunNotRunning(f"the run {request.run_key} goes on, and carries it out itself")
            only_looks_up = request.lookup_only and verdict is Verdict.LOOK_UP
            if verdict in MAY_SEND and not only_looks_up and not may_start(run, request, own):
                return None
            return await self._act_on(own, verdict)

    async def _claim_unwritten(self) -> Claim:
        """Claim an action that has no row yet."""
        claimant = await self._naming_what_it_undoes()
        request = claimant._request
        if request.domain_key is not None:
            return await claimant._claim_domain_key(request.domain_key)
        if request.purpose == "forward":  # an undo repeats no other undo: each has its own action
            unknown = await fetch(self._connection, Action, "open_unknown", **claimant.parameters)
            if unknown is not None:
                return await claimant._insert_duplicate(unknown)
        return await claimant._begin(generation=1)

    async def _naming_what_it_undoes(self) -> _Claimant:
        """Name the action that the call undoes, and lock the domain key of that action.

        That key is locked before the undo's own: a duplicate of an earlier undo frees it.
        """
        request = self._request
        if request.undoes_domain_key is not None:
            fact = await self._facts.lock(request.undoes_domain_key)
            own = request.domain_key
            if own is not None and fact.generation > 1:
                own = undo_key(own, fact.generation)
            request = replace(request, undoes=fact.held_by, domain_key=own)
        if request.undoes is not None:
            # Also without a key of its own: the outbox finds out by that row what has changed.
            action = await fetch(self._connection, Action, "get_action", key=request.undoes)
            if action is not None and action.domain_key is not None:
                await self._facts.lock(action.domain_key)
        return _Claimant(self._connection, request, self._attempt, self._facts)

    async def _claim_domain_key(self, domain_key: str) -> Claim:
        """Claim by the domain key: take it if it is free, else go by the action that holds it."""
        held = await self._facts.lock(domain_key)
        if held.held_by is None:
            return await self._begin(generation=held.generation + 1)
        if held.held_by == self._request.key:
            # A failover lost this action's row: the same generation again, not the next one.
            return await self._begin(generation=held.generation)
        holder = await fetch(self._connection, Action, "lock_action", key=held.held_by)
        if holder is None:
            lost = f"{domain_key!r} is held by {held.held_by}, whose record is gone"
            return await self._refuse(IdempotencyKeyConflict(lost, existing=held.held_by))
        question = await self._open_question(holder)
        if question is not None and question.state == "expired":
            await close_expired(self._connection, holder, question)
            holder = await self._lock_action(holder.key)
        if holder.state == "intent" and not await self._will_be_sent(holder):
            await give_up(self._connection, holder.key, NEVER_SENT)
            holder = await self._lock_action(holder.key)
        if holder.state == "error" and not holder.effect_possible:
            # It was an intent until now: nothing was sent, and the key is free.
            return await self._begin(generation=held.generation + 1)
        return await self._claim_held(holder, question)

    async def _claim_held(self, holder: Action, question: Question | None) -> Claim:
        """Claim where another action holds the domain key, and perhaps waits for an answer."""
        request = self._request
        try:
            if request.undoes is not None:
                undone = await fetch(self._connection, Action, "get_action", key=request.undoes)
                check_undoes_the_same(holder, request, undone)
            standing = await self._standing(holder)
            undoing = standing is Standing.UNDOING
            verdict = Verdict.WAIT if undoing else judge_holder(holder, request, self._attempt)
        except IdempotencyKeyConflict as conflict:
            return await self._refuse(conflict)
        if standing is Standing.PERHAPS_UNDONE:
            return AlreadyDone(await self._insert_settled(perhaps_undone(holder)))
        if question is not None and question.state == "waiting" and verdict in MAY_SEND:
            # The answer may take days: too long to wait here. And the answer is for the call that
            # raised the question: that one is carried out, or none.
            return AlreadyDone(await self._insert_settled(waits_for_answer(question)))
        if verdict is Verdict.ACCEPT:
            await execute(self._connection, "rely", key=holder.key)
        claim = await self._act_on(holder, verdict)
        if isinstance(claim, AlreadyDone | Parked):
            return await self._insert_duplicate(claim.action)
        return claim

    async def _act_on(self, row: Action, verdict: Verdict) -> Claim:  # noqa: PLR0911 one per verdict
        """Do what the rules say about a row: the action's own, or its domain key's holder."""
        match verdict:
            case Verdict.RETURN:
                return AlreadyDone(row)
            case Verdict.ANSWER_UNKNOWN:
                return Parked(row)
            case Verdict.WAIT:
                return Busy(row.claimed_by or row.key)
            case Verdict.ACCEPT:
                return Accepted(row)
            case Verdict.PARK:
                return Parked(await self._park(row))
            case Verdict.GO_ON:
                # More than one try: an attempt before this one dispatched the row too.
                return await self._stored_call(row, row, taken_over=row.tries > 1)
            case Verdict.DISPATCH:
                return await self._dispatch(row)
            case Verdict.TAKE_OVER:
                taken = await self._take(row, "dispatch")
                return await self._stored_call(row, taken, taken_over=True)
            case Verdict.LOOK_UP:
                taken = await self._take(row, "take_to_look_up")
                call = await self._stored_call(row, taken, taken_over=True)
                return LookUp(call, settles_in(taken, self._request, self._attempt))

    async def _dispatch(self, intent: Action) -> Claim:
        found = await self._facts.in_the_way(intent)
        if isinstance(found, Outcome):
            raise _NeverSent(intent.key, found)
        if found is not None:
            return found
        taken = await self._take(intent, "dispatch")
        return await self._stored_call(intent, taken, taken_over=False)

    async def _take(self, row: Action, query: str) -> Action:
        by = {"claimed_by": self._request.key, **attempt_parameters(self._attempt)}
        return await fetch_one(self._connection, Action, query, key=row.key, **by)

    async def _park(self, row: Action) -> Action:
        reason = why_parked(row, lookup_only=self._request.lookup_only)
        given = {"token": None, "reason": reason, "over": False, "failures": None}
        return await fetch_one(self._connection, Action, "park", key=row.key, **given)

    async def _stored_call(self, found: Action, taken: Action, *, taken_over: bool) -> Dispatched:
        questions = await fetch_all(self._connection, Question, "questions_of", key=found.key)
        return stored_call(
            taken,
            self._request,
            self._attempt,
            taken_over=taken_over,
            questions=tuple(questions),
            lost_trace=found.trace_parent if taken_over else None,
        )

    # --- The action's own row ---------------------------------------------------------------

    async def _begin(self, *, generation: int) -> Claim:
        """Write the row, and hold its domain key, unless an undo stands in the way."""
        found = await self._facts.in_the_way(self._request)
        if isinstance(found, Busy):
            return found
        if found is not None:
            return AlreadyDone(await self._insert_settled(found))
        return await self._insert(generation=generation)

    async def _insert(self, *, generation: int) -> Claim:
        """Hold the domain key; write the row: dispatched, or as an intent that the relay sends."""
        request = self._request
        row = self.parameters | {"generation": generation}
        if request.domain_key is not None:
            await execute(self._connection, "hold_domain_key", **row)
            row["idempotency_key"] = with_generation(request.domain_key, generation)
        if request.detached:
            intent = await fetch_one(self._connection, Action, "insert_intent", **row)
            await execute(self._connection, "queue_intent", **row)
            return Accepted(intent)
        written = await fetch_one(self._connection, Action, "insert_dispatched", **row)
        if self._attempt.repeats and await self._may_lack_a_row(row):
            return await self._act_on(written, take_over(written, request, self._attempt))
        return stored_call(written, request, self._attempt, taken_over=False)

    async def _may_lack_a_row(self, row: dict[str, Any]) -> bool:
        """Whether an earlier attempt may have called, and its row is lost or was never written."""
        if self._attempt.unrecorded_before:
            return True
        return await execute(self._connection, "failed_over", **row)

    async def _insert_duplicate(self, original: Action) -> AlreadyDone | Parked:
        """Write a row that has the outcome of another action, or is unknown as that one is."""
        outcome = original.recorded
        unknown = None if outcome else f"the same as {original.key}, which is unknown"
        row = await self._insert_settled(
            outcome, of=original.key, generation=original.generation, parked_reason=unknown
        )
        if outcome is None:
            return Parked(row)
        if self._request.undoes is not None:
            await mark_undone(self._connection, [row.key])
        return AlreadyDone(row)

    async def _refuse(self, conflict: IdempotencyKeyConflict) -> AlreadyDone:
        """Write the conflict, so that a replay is refused too, whatever becomes of the holder."""
        outcome = conflict_outcome(conflict)
        return AlreadyDone(await self._insert_settled(outcome, of=conflict.existing))

    async def _insert_settled(
        self,
        outcome: Outcome | None,
        *,
        of: str | None = None,
        generation: int = 1,
        parked_reason: str | None = None,
    ) -> Action:
        """Write a row for which nothing is ever sent: it ends with the claim."""
        row = self.parameters | {
            "idempotency_key": None,
            "generation": generation,
            "duplicate_of": of,
            "status": "pending" if outcome is None else "done",
            "outcome": outcome and outcome.kind,
            "effect_possible": outcome and outcome.effect_possible,
            "result": outcome and outcome.result,
            "parked_reason": parked_reason,
        }
        return await fetch_one(self._connection, Action, "insert_settled", **row)

    # --- Other rows ---------------------------------------------------------------------------

    async def _lock_action(self, key: ActionKey) -> Action:
        return await fetch_one(self._connection, Action, "lock_action", key=key)

    async def _open_question(self, holder: Action) -> Question | None:
        """Lock the holder's questions; return the one that has no answer."""
        if holder.status == "done" or holder.parked:
            return None
        questions = await fetch_all(self._connection, Question, "lock_questions", key=holder.key)
        return next((question for question in questions if question.answer is None), None)

    async def _will_be_sent(self, intent: Action) -> bool:
        run = await fetch(self._connection, Run, "get_run", run_key=intent.run_key)
        return will_be_sent(intent, run)

    async def _standing(self, holder: Action) -> Standing:
        if self._request.purpose != "forward" or holder.status != "done":
            return Standing.STANDS
        found = await fetch_row(self._connection, "standing", key=holder.key)
        return Standing.STANDS if found is None else Standing(found["standing"])
