"""`ActionLedger`: intent before the call, outcome after it, in Postgres.

Every method is one bounded ledger call. It takes a connection for its statements and gives
it back before it returns, so none is held while a tool or a model works. Each opens its own
transaction, or is a single statement in autocommit; none may be called inside a caller's.

A call that meets a transient failure (a cut connection, a deadlock, a restart) is repeated
until its deadline. That is safe because of the claim token: a claim that finds its own token
goes on, and a record that finds itself recorded returns what stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from psycopg import errors as pg

from ..canonical import Json, parse
from ..errors import (
    ActionNotFound,
    Fenced,
    IdempotencyKeyConflict,
    RunInputConflict,
    RunNotRunning,
    StaleThread,
)
from ..identity import (
    UNDO_PREFIX,
    ActionKey,
    RunKey,
    default_idempotency_key,
    epoch_of,
    parent_of,
    step_of,
    undo_key,
    with_generation,
)
from .actions import NEVER_SENT, Action, ActionRequest, Attempt, Outcome, Run
from .approvals import ApprovalLedger
from .calls import Connection, LedgerCalls, Row, execute, fetch, fetch_all
from .claims import (
    CONFLICT,
    AlreadyDone,
    Ask,
    Busy,
    Claim,
    Dispatched,
    Intended,
    Owned,
    Parked,
    Verdict,
    judge_holder,
    judge_own,
    judge_settlement,
    key_life,
    raise_if_conflict,
    settles_in,
    why_parked,
)
from .outbox import intend
from .question_ledger import QuestionLedger, close_expired
from .questions import Question
from .relay import RelayLedger
from .sql import QUERIES
from .sub_runs import SubRunLedger
from .threads import ThreadLedger
from .undo import UndoLedger

WAITS: Final = "WaitsForAnswer"
"""The kind of the error that a call ends with whose business fact waits for a person."""

_FORWARD: Final = frozenset({Verdict.DISPATCH, Verdict.GO_ON, Verdict.TAKE_OVER, Verdict.ASK})
"""The verdicts by which something is sent, now or later: only in a run that runs."""

_FIRST_LOOK_SECONDS: Final = 0.05
_LAST_LOOK_SECONDS: Final = 1.0
"""Between two looks of `ActionLedger.outcome`, which grow."""


class ActionLedger(LedgerCalls):
    """The ledger over an open psycopg pool (see `ledger_pool`).

    Args:
        pool: Opened and closed by the caller.
        statement_seconds: The deadline of one ledger call, waiting for a connection included.
    """

    @property
    def threads(self) -> ThreadLedger:
        """The conversations over the same pool."""
        return ThreadLedger(self._pool, statement_seconds=self._seconds)

    @property
    def approvals(self) -> ApprovalLedger:
        """What waits for a person, over the same pool."""
        return ApprovalLedger(self._pool, statement_seconds=self._seconds)

    @property
    def relay(self) -> RelayLedger:
        """What needs somebody, over the same pool."""
        return RelayLedger(self._pool, statement_seconds=self._seconds)

    @property
    def undo(self) -> UndoLedger:
        """What was done and is to be taken back, over the same pool."""
        return UndoLedger(self._pool, statement_seconds=self._seconds)

    @property
    def sub_runs(self) -> SubRunLedger:
        """The runs of sub-agents, over the same pool."""
        return SubRunLedger(self._pool, statement_seconds=self._seconds)

    @property
    def questions(self) -> QuestionLedger:
        """What calls ask midway, over the same pool."""
        return QuestionLedger(self._pool, statement_seconds=self._seconds)

    intend = staticmethod(intend)
    """See `commitline.ledger.outbox.intend`: on the application's connection, not on the pool."""

    async def outcome(self, key: ActionKey, *, wait_seconds: float = 0.0) -> Outcome | None:
        """Return how an action ended; None while that is not known.

        Then the row says which (`get`): its ``state`` is ``intent`` or ``dispatched`` where it is
        on its way, ``unknown`` where a person has to settle it. Safe to repeat; it only reads.

        Args:
            key: As `intend` returned it.
            wait_seconds: How long to wait for its end. Looks again and again, more seldom with
                time; ask for no more than a person waits for.

        Raises:
            ActionNotFound: No such row: not intended, rolled back, or not committed yet.
            LedgerUnavailable: No answer within the deadline.
        """
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + wait_seconds, _FIRST_LOOK_SECONDS
        while True:
            found = await self.get(key)
            if found is None:
                raise ActionNotFound(f"there is no action {key}")
            left = until - loop.time()
            if found.recorded is not None or left <= 0:
                return found.recorded
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_LOOK_SECONDS)

    async def open_run(
        self,
        *,
        run_key: RunKey,
        workflow_id: str,
        agent: str,
        input_digest: str,
        attempt_at: datetime,
        thread_id: str | None = None,
        spec: str | None = None,
        namespace: str | None = None,
    ) -> Run:
        """Register a run before its first action. Safe to repeat: the run key makes it one row.

        Args:
            run_key: See `commitline.identity.run_key`.
            workflow_id: For people and for listing.
            agent: The agent's name.
            input_digest: Of the run's input; the same run cannot have another. Empty where
                the caller does not know it.
            attempt_at: When the caller's attempt began, by the engine's clock. A run that
                ended before that goes on (a retry or a reset of its workflow).
            thread_id: The conversation that it writes, if it writes one.
            spec: JSON of what it is to keep of its agent. The first one stands.
            namespace: Where its workflow lives; nobody looks for it elsewhere.

        Raises:
            RunInputConflict: The run exists with other input.
            RunNotRunning: It is a sub-agent's, and another workflow acts for it by now.
            LedgerUnavailable: No answer within the deadline; nothing is lost by trying again.
        """
        parent = parent_of(run_key)
        row = await self._one(
            "open_run",
            run_key=run_key,
            workflow_id=workflow_id,
            agent=agent,
            input_digest=input_digest,
            attempt_at=attempt_at,
            thread_id=thread_id,
            spec=spec,
            parent_key=parent,
            owner=None if parent is None else workflow_id,
            namespace=namespace,
        )
        run = Run.from_row(row)
        if not run.is_of(workflow_id):
            raise RunNotRunning(f"{run_key} is carried out by {run.owner or 'no workflow'} by now")
        if input_digest and run.input_digest != input_digest:
            raise RunInputConflict(f"{run_key} was opened with other input")
        return run

    async def stop_run(
        self,
        run_key: RunKey,
        *,
        workflow_id: str,
        agent: str,
        reason: str,
        attempt_at: datetime,
        compensate: bool = False,
        namespace: str | None = None,
    ) -> Run:
        """Commit that the run is to stop: from then on none of its claims succeeds anywhere.

        The runs of its sub-agents stop with it, in the same transaction. What is being undone
        goes on being undone. A run that has not opened yet never does, and one that has ended
        is opened by no reset and no retry. Safe to repeat: the first reason stands.

        Args:
            run_key: The run.
            workflow_id: For a run that the ledger does not know yet.
            agent: The same.
            reason: For people; kept on the run.
            attempt_at: The same as for the id: when the run was started.
            compensate: Whether what it did is to be undone.
            namespace: Where its workflow lives.

        Raises:
            LedgerUnavailable: No answer within the deadline. It is *not* known to be stopping;
                stop it again.
        """
        parent = parent_of(run_key)
        parameters = {
            "run_key": run_key,
            "workflow_id": workflow_id,
            "agent": agent,
            "reason": reason,
            "attempt_at": attempt_at,
            "parent_key": parent,
            "owner": None if parent is None else workflow_id,
            "compensate": compensate,
            "namespace": namespace,
        }

        async def work(connection: Connection) -> Row:
            async with connection.transaction():
                row = await fetch(connection, "stop_run", **parameters)
                # A statement of its own: it sees what was begun below until the one before had
                # its lock, which every such beginning shares.
                await execute(connection, "stop_below", run_key=run_key, reason=reason)
                assert row is not None, "stop_run returns a row"
                return row

        return Run.from_row(await self._call(work))

    async def end_run(
        self, run_key: RunKey, *, attempt_at: datetime, owner: str | None = None
    ) -> Run:
        """Close a run: no attempt that began before ``attempt_at`` claims anything any more.

        What it leaves dispatched is parked: its calls have ended, and none comes to tell how.
        A run that is being undone is left alone: that closes it.
        Safe to repeat. A run that the ledger does not know raises `RunNotRunning`.

        Args:
            run_key: The run.
            attempt_at: When the caller's attempt began, by the engine's clock.
            owner: The workflow that ends it. A sub-agent's run for which another one acts by
                now is left as it is; None ends it all the same.
        """
        parameters = {"run_key": run_key, "attempt_at": attempt_at, "owner": owner}

        async def work(connection: Connection) -> Row | None:
            async with connection.transaction():
                ended = await fetch(connection, "end_run", **parameters)
                if ended is None:
                    return await fetch(connection, "get_run", run_key=run_key)
                await execute(connection, "park_left_over", **parameters)
                return ended

        row = await self._call(work)
        if row is None:
            raise RunNotRunning(f"{run_key} is not in the ledger", known=False)
        return Run.from_row(row)

    async def get_run(self, run_key: RunKey) -> Run | None:
        """Return one run, or None. Safe to repeat; it only reads."""
        row = await self._maybe("get_run", run_key=run_key)
        return None if row is None else Run.from_row(row)

    async def list_runs(self, *, workflow_id: str | None = None, limit: int = 100) -> Sequence[Run]:
        """Return the newest runs first, those of one workflow id if it is given; it only reads."""
        return [
            Run.from_row(row)
            for row in await self._all("list_runs", workflow_id=workflow_id, limit=limit)
        ]

    async def claim(self, request: ActionRequest, attempt: Attempt) -> Claim:
        """Ask for the right to call, and commit the intent: *dispatched* before anything is sent.

        One round trip in the common case (a new action, its domain key free). Safe to repeat
        within an attempt, and never to be assumed from another one's answer.

        Returns:
            `Dispatched`: call, then record. `Ask`: ask the downstream system, then record, or
            `send_after_asking`. `AlreadyDone`: return the stored outcome. `Parked`: answer
            unknown. `Busy`: claim again later. `Intended`: answer that it is accepted.

        Raises:
            PlanDivergence: Another call stands at this position; final.
            IdempotencyKeyConflict: The domain key was used for something else, which stands.
            Fenced: A later attempt of this action owns it.
            RunNotRunning: The run is unknown, stopping, unwinding or ended.
            LedgerUnavailable: No answer within the deadline. Nothing was called, and the
                same attempt may claim again; ``reached`` says whether the claim may have been
                committed all the same.
        """

        async def work(connection: Connection) -> Claim:
            if await _claim_new(connection, request, attempt):
                return _dispatched_new(request, attempt)
            claim = await _claim_as_found(connection, request, attempt)
            if claim is None and request.purpose == "forward":
                # The run has ended: go on with it if this execution is younger than its end.
                await fetch(
                    connection,
                    "reopen_run",
                    run_key=request.run_key,
                    attempt_at=attempt.started_at,
                )
                claim = await _claim_as_found(connection, request, attempt)
            if claim is None:
                raise RunNotRunning(f"the run {request.run_key} has ended")
            return claim

        claim = await self._call(work)
        if isinstance(claim, AlreadyDone):
            raise_if_conflict(claim.action)
        return claim

    async def send_after_asking(self, request: ActionRequest, claim: Dispatched) -> None:
        """Commit that an action is sent which, as the downstream system says, never happened.

        Safe to repeat. Call the tool only after it has returned.

        Raises:
            Fenced: Another attempt has taken the action over, or it is settled.
            RunNotRunning: The run may start nothing any more.
            LedgerUnavailable: No answer within the deadline. Nothing was called.
        """

        async def work(connection: Connection) -> None:
            parameters = _attempt_parameters(claim.attempt)
            async with connection.transaction():
                run = await fetch(connection, "lock_run", run_key=request.run_key)
                if run is None or not _runs(run, request):
                    raise RunNotRunning(f"the run {request.run_key} has ended")
                sent = await fetch(connection, "send_after_asking", key=claim.key, **parameters)
                if sent is None:
                    raise Fenced(f"{claim.key} was taken over by another attempt, or is settled")

        await self._call(work)

    async def fail_try(
        self, claim: Dispatched, *, in_progress: bool = False, over: bool = True
    ) -> int:
        """Count that the tool failed its try; return how many it has failed so far.

        Safe to repeat for one claim: it counts once.

        Args:
            claim: The claim whose try failed.
            in_progress: It failed because the downstream system is at work on this very
                request; that uses up no try.
            over: Whether the tool has ended. If it may go on (in a thread), it may still send.

        Raises:
            Fenced: Another attempt has taken the action over.
            LedgerUnavailable: No answer within the deadline.
        """
        failures = claim.failures if in_progress else claim.failures + 1
        row = await self._maybe(
            "fail_try",
            key=claim.key,
            token=claim.token,
            failures=failures,
            in_progress=in_progress,
            over=over,
        )
        if row is None:
            raise Fenced(f"{claim.key} was taken over by another attempt, or is settled")
        return failures

    async def record(self, claim: Dispatched | Owned, outcome: Outcome) -> Outcome:
        """Commit the outcome; return the one that *stands*, which is the first one recorded.

        One round trip in the common case. Safe to repeat: only the holder of the claim
        records, once. An error without effect releases the action's domain key. An action that
        was parked meanwhile is settled by it, and so are the calls that were answered with it.

        Raises:
            Fenced: Another attempt has taken the action over and has not recorded yet.
            LedgerUnavailable: No answer within the deadline. Record again; do not call again.
        """
        releases = claim.domain_key is not None and not outcome.effect_possible
        parameters = {
            "key": claim.key,
            "token": claim.token,
            "outcome": outcome.kind,
            "effect_possible": outcome.effect_possible,
            "result": outcome.result,
            "state_changes": outcome.state_changes,
        }

        async def work(connection: Connection) -> Outcome:
            if not releases and await fetch(connection, "record", **parameters) is not None:
                return outcome
            if await _record_in_full(connection, claim, parameters, releases=releases):
                return outcome
            return _what_stands(await fetch(connection, "get_action", key=claim.key), claim)

        return await self._call(work)

    async def park(
        self,
        claim: Dispatched | Owned,
        reason: str,
        *,
        over: bool = True,
        failures: int | None = None,
    ) -> Action:
        """Leave the outcome unknown: the row waits for a person and is not sent again.

        Safe to repeat; an outcome that was recorded meanwhile stands. Returns the row.

        Args:
            claim: The claim that dispatched it.
            reason: Why it is unknown, for the person who settles it.
            over: Whether the call has ended. If it may go on (in a thread), its lease stays,
                and nobody may settle the row before that has run out.
            failures: Tries that the tool has failed so far, this one included.

        Raises:
            Fenced: Another attempt has taken the action over.
            LedgerUnavailable: No answer within the deadline.
        """
        parameters = {
            "key": claim.key,
            "token": claim.token,
            "reason": reason,
            "over": over,
            "failures": failures,
        }

        async def work(connection: Connection) -> Action:
            row = await fetch(connection, "park", **parameters)
            if row is None:
                row = await fetch(connection, "get_action", key=claim.key)
                if row is None or (row["status"] == "pending" and row["parked_at"] is None):
                    raise Fenced(f"{claim.key} was taken over by another attempt")
            return Action.from_row(row)

        return await self._call(work)

    async def park_unsent(self, key: ActionKey, reason: str) -> Action:
        """Leave an intent to a person; nothing of it was sent. Safe to repeat.

        Raises:
            LedgerUnavailable: No answer within the deadline.
        """

        async def work(connection: Connection) -> Action:
            row = await fetch(connection, "park_unsent", key=key, reason=reason)
            if row is None:
                row = await fetch(connection, "get_action", key=key)
            assert row is not None, "an intent is not deleted"
            return Action.from_row(row)

        return await self._call(work)

    async def settle(self, key: ActionKey, outcome: Outcome, *, by: str) -> Sequence[Action]:
        """Record a person's word about an action that is unknown.

        Also settles the calls that were answered with it. An error without effect (it did not
        happen) releases the domain key. Returns the rows that were settled.

        Safe to repeat: the same word by the same person changes nothing; another is refused.

        Args:
            key: Of the action itself, not of a call that repeats it.
            outcome: What the person found.
            by: Who says so; kept on the row.

        Raises:
            SettlementRefused: No such action, it is settled already, it repeats another, it
                was never sent, or an attempt may still be at work on it.
            LedgerUnavailable: No answer within the deadline; settle again.
        """

        async def work(connection: Connection) -> Sequence[Action]:
            async with connection.transaction():
                return await _settle(connection, key, outcome, by)

        return await self._call(work)

    async def hand_back(
        self, request: ActionRequest | Dispatched, attempt: Attempt, *, failures: int = 0
    ) -> bool:
        """Make the row a mere intent again, by an attempt that *knows* that it sent nothing.

        Returns whether it did; it does not where an earlier attempt may have sent something.
        Safe to repeat.

        Args:
            request: What was claimed, or the claim.
            attempt: The attempt that claimed.
            failures: Tries that the tool has failed so far, this one included.
        """
        row = await self._maybe(
            "hand_back", key=request.key, token=attempt.token, failures=failures
        )
        return row is not None

    async def take_notices(self, run_key: RunKey, step: int) -> Sequence[Action]:
        """Return what has been settled since the run was told that it is unknown.

        Marked as told at this turn. Safe to repeat for the same turn, which gets the same
        actions again, and those that came since.
        """

        async def work(connection: Connection) -> Sequence[Action]:
            at = {"run_key": run_key, "step": step}
            cursor = await connection.execute(QUERIES["untold"], at)
            found = [Action.from_row(row) for row in await cursor.fetchall()]
            if any(action.told_step is None for action in found):
                keys = [action.key for action in found]
                await connection.execute(QUERIES["mark_told"], {"keys": keys, "step": step})
            return found

        return await self._call(work)

    async def get(self, key: ActionKey) -> Action | None:
        """Return one action, or None. Safe to repeat; it only reads."""
        row = await self._maybe("get_action", key=key)
        return None if row is None else Action.from_row(row)

    async def list(
        self,
        run_key: RunKey | None = None,
        *,
        only_parked: bool = False,
        newest_first: bool = False,
        limit: int = 1000,
    ) -> Sequence[Action]:
        """Return actions of one run, or of all: the first ``limit`` in the order asked for.

        Safe to repeat; it only reads.
        """
        rows = await self._all(
            "list_actions",
            run_key=run_key,
            only_parked=only_parked,
            newest_first=newest_first,
            limit=limit,
        )
        return [Action.from_row(row) for row in rows]

    async def put_value(self, key: ActionKey, thread_id: str, value: str) -> None:
        """Keep a read's result (JSON text) that is too large to travel. Safe to repeat.

        Not of a conversation that was deleted, or that the ledger does not have.
        """

        async def work(connection: Connection) -> None:
            await execute(connection, "put_value", key=key, thread_id=thread_id, value=value)

        await self._call(work)

    async def get_value(self, key: ActionKey) -> str | None:
        """Return what `put_value` kept, or None; it only reads."""
        row = await self._maybe("get_value", key=key)
        return None if row is None else str(row["value"])

    async def get_completion(self, run_key: RunKey, step: int) -> Json | None:
        """Return what the model answered at this turn, or None; it only reads."""
        row = await self._maybe("get_completion", run_key=run_key, step=step)
        return None if row is None else parse(row["completion"])

    async def record_completion(self, run_key: RunKey, step: int, completion: str) -> Json:
        """Record a model's completion (JSON text); return the one that stands, the first.

        Safe to repeat: run and step make it one row.
        """

        async def work(connection: Connection) -> str:
            at = {"run_key": run_key, "step": step}
            row = await fetch(connection, "record_completion", **at, completion=completion)
            if row is None:
                row = await fetch(connection, "get_completion", **at)
            assert row is not None, "a completion that conflicts exists"
            return str(row["completion"])

        return parse(await self._call(work))


async def _claim_new(connection: Connection, request: ActionRequest, attempt: Attempt) -> bool:
    if request.purpose != "forward" or request.undoes_domain_key is not None or request.detached:
        return False  # what undoes another is linked to it, under that one's lock
    parameters = _request_parameters(request) | _attempt_parameters(attempt)
    parameters["idempotency_key"] = _first_key(request)
    try:
        return await fetch(connection, "claim_new", **parameters) is not None
    except pg.UniqueViolation:
        # Somebody took the domain key between our look and our insert: the row is there now.
        return False


async def _claim_as_found(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim | None:
    try:
        return await _claim_found(connection, request, attempt)
    except pg.UniqueViolation:
        # Another attempt of this action wrote its row meanwhile: it is there now.
        return await _claim_found(connection, request, attempt)


async def _claim_found(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim | None:
    """Claim by the rules of `claims`, rows locked. None: the run has ended, nothing is written."""
    async with connection.transaction():
        run = await fetch(connection, "lock_run", run_key=request.run_key)
        if run is None:
            raise RunNotRunning(f"the run {request.run_key} is not in the ledger", known=False)
        own = await fetch(connection, "lock_action", key=request.key)
        if own is not None:
            found = Action.from_row(own)
            verdict = judge_own(found, request, attempt)
            asks = request.only_asks and verdict is Verdict.ASK
            if request.purpose == "relay" and not _is_the_relays(run, found):
                raise RunNotRunning(f"the run {request.run_key} goes on, and sees to it itself")
            if verdict in _FORWARD and not asks and not _runs(run, request):
                return None
            return await _carry_out(connection, verdict, found, request, attempt)
        if not _runs(run, request):
            return None
        return await _claim_unwritten(connection, request, attempt)


async def _claim_unwritten(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim:
    """Claim what has no row yet."""
    if request.undoes_domain_key is not None:
        request = await _link(connection, request)
    if request.undoes is not None and request.domain_key is not None:
        # A receipt of it frees the other one's key, which is locked first.
        undone = await fetch(connection, "get_action", key=request.undoes)
        if undone is not None and undone["domain_key"] is not None:
            await fetch(connection, "lock_domain_key", domain_key=undone["domain_key"])
    if request.domain_key is not None:
        return await _claim_domain_key(connection, request, attempt)
    if request.purpose == "forward":  # two undos are of two actions, however equal
        unknown = await fetch(connection, "open_unknown", **_request_parameters(request))
        if unknown is not None:
            return await _insert_duplicate(connection, request, Action.from_row(unknown))
    return await _insert(connection, request, attempt, generation=1)


def _runs(run: Row, request: ActionRequest) -> bool:
    """Whether the run may start something. False: it has ended and might be opened again."""
    if request.only_asks:
        raise RunNotRunning(f"{request.key} is only asked about, and was never sent")
    match request.purpose:
        case "undo":
            return run["state"] == "unwinding" or run["unwound_at"] is not None
        case "settle":
            return bool(run["state"] == "unwinding")
        case "relay":
            # What was stopped is never driven forward.
            return run["state"] in ("running", "ended") and run["stopped_at"] is None
        case "forward":
            return _runs_forward(run, request)


def _runs_forward(run: Row, request: ActionRequest) -> bool:
    older = run["epoch"] > epoch_of(request.position)
    if older and (step_of(request.position) or 0) >= run["fork_step"]:
        raise StaleThread(f"{request.key}: the run was forked, and goes another way")
    if run["state"] in ("stopping", "unwinding"):
        raise RunNotRunning(
            f"the run {run['run_key']} is {run['state']}", stopping=run["state"] == "stopping"
        )
    if run["stopped_at"] is not None:
        raise RunNotRunning(f"the run {run['run_key']} was stopped: {run['stop_reason']}")
    running = bool(run["state"] == "running")
    if running and run["owner"] not in (None, request.owner):
        raise Fenced(f"{request.run_key} is carried out by {run['owner'] or 'no workflow'} by now")
    return running


def _is_the_relays(run: Row, found: Action) -> bool:
    """Whether the relay sees to a row: its run is over, or does not see to it itself."""
    settled = found.status == "done" or found.parked
    return settled or run["state"] == "ended" or found.relayed or found.reopened_at is not None


async def _carry_out(
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
                reason=why_parked(found, only_asks=request.only_asks),
                over=False,
                failures=None,
            )
            assert row is not None, "the row is locked and pending"
            return Parked(Action.from_row(row))
        case Verdict.GO_ON:
            asked = await _asked(connection, found)
            return _dispatched(found, request, attempt, taken_over=found.tries > 1, asked=asked)
        case Verdict.DISPATCH | Verdict.TAKE_OVER | Verdict.ASK:
            return await _take(connection, verdict, found, request, attempt)


async def _take(
    connection: Connection,
    verdict: Verdict,
    found: Action,
    request: ActionRequest,
    attempt: Attempt,
) -> Claim:
    """Make the row this attempt's: to call, or to ask about it."""
    asks = verdict is Verdict.ASK
    row = await fetch(
        connection,
        "take_to_ask" if asks else "dispatch",
        key=found.key,
        claimed_by=request.key,
        **_attempt_parameters(attempt),
    )
    assert row is not None, "the row is locked and pending"
    taken = Action.from_row(row)
    call = _dispatched(
        taken,
        request,
        attempt,
        taken_over=verdict is not Verdict.DISPATCH,
        asked=await _asked(connection, found),
    )
    return Ask(call, settles_in(taken, request)) if asks else call


async def _link(connection: Connection, request: ActionRequest) -> ActionRequest:
    """Name the action that a call undoes, by whichever holds the business fact now.

    That one's domain key is locked first, wherever both are.
    """
    held = await fetch(connection, "lock_domain_key", domain_key=request.undoes_domain_key)
    assert held is not None, "the key's row is made if there is none"
    own = request.domain_key
    if own is not None and held["generation"] > 1:
        own = undo_key(own, held["generation"])
    return replace(request, undoes=held["held_by"], domain_key=own)


async def _claim_domain_key(
    connection: Connection, request: ActionRequest, attempt: Attempt
) -> Claim:
    held = await fetch(connection, "lock_domain_key", domain_key=request.domain_key)
    assert held is not None, "the key's row is made if there is none"
    holder = held["held_by"]
    if holder is None or holder == request.key:
        # Free; or ours, from a row that a failover lost: the same key again, not the next one.
        generation = held["generation"] + (1 if holder is None else 0)
        return await _hold_and_insert(connection, request, attempt, generation)
    row = await fetch(connection, "lock_action", key=holder)
    if row is None:
        error = IdempotencyKeyConflict(
            f"{request.domain_key!r} is held by {holder}, whose record is gone", existing=holder
        )
        return await _refuse(connection, request, error)
    found = Action.from_row(row)
    question = await _open_question(connection, found)
    if question is not None and question.state == "expired":
        await close_expired(connection, found, question)
        found = Action.from_row(await _locked(connection, found.key))
    if found.state == "intent" and not await _is_sent(connection, found):
        await fetch(connection, "void_intent", key=found.key, result=NEVER_SENT.result)
        await execute(connection, "leave_relay", keys=[found.key])
        found = Action.from_row(await _locked(connection, found.key))
    if found.state == "error" and not found.effect_possible:
        # It was an intent until now: nothing was sent, and the key is free.
        return await _hold_and_insert(connection, request, attempt, held["generation"] + 1)
    return await _claim_held(connection, request, attempt, found, question)


async def _claim_held(
    connection: Connection,
    request: ActionRequest,
    attempt: Attempt,
    found: Action,
    question: Question | None,
) -> Claim:
    """Claim what another action holds the domain key of, and perhaps asks a person about."""
    try:
        await _check_undoes_the_same(connection, found, request)
        waits = await _is_being_undone(connection, found, request)
        verdict = Verdict.WAIT if waits else judge_holder(found, request, attempt)
    except IdempotencyKeyConflict as error:
        return await _refuse(connection, request, error)
    if question is not None and question.state == "waiting" and verdict in _FORWARD:
        return await _turn_away(connection, request, question)
    claim = await _carry_out(connection, verdict, found, request, attempt)
    if isinstance(claim, AlreadyDone | Parked):
        return await _insert_duplicate(connection, request, claim.action)
    return claim


async def _locked(connection: Connection, key: ActionKey) -> Row:
    row = await fetch(connection, "lock_action", key=key)
    assert row is not None, "the row is locked"
    return row


async def _open_question(connection: Connection, holder: Action) -> Question | None:
    """Return what the holder has asked a person and has no answer to; locked."""
    if holder.status == "done" or holder.parked:
        return None
    rows = await fetch_all(connection, "lock_questions", key=holder.key)
    return next((Question.from_row(row) for row in rows if row["answer"] is None), None)


async def _asked(connection: Connection, found: Action) -> tuple[Question, ...]:
    """Return what a call has asked before, which it gets the answers of."""
    rows = await fetch_all(connection, "questions_of", key=found.key)
    return tuple(Question.from_row(row) for row in rows)


async def _turn_away(connection: Connection, request: ActionRequest, question: Question) -> Claim:
    """End a call whose business fact waits for a person: it does nothing, and holds nothing.

    It may take days, so it is not waited for here; and what a person is asked about is carried
    out by whoever asked, or not at all.
    """
    away = Outcome.error(
        kind=WAITS,
        message=(
            f"not executed: {question.key} is at it, and waits for a person's answer; what "
            "becomes of it is told there"
        ),
        effect_possible=False,
    )
    return AlreadyDone(
        await _insert_settled(
            connection,
            request,
            duplicate_of=None,
            generation=1,
            outcome=away,
            parked_reason=None,
        )
    )


async def _hold_and_insert(
    connection: Connection, request: ActionRequest, attempt: Attempt, generation: int
) -> Claim:
    await connection.execute(
        QUERIES["hold_domain_key"],
        {"domain_key": request.domain_key, "key": request.key, "generation": generation},
    )
    return await _insert(connection, request, attempt, generation=generation)


async def _insert(
    connection: Connection, request: ActionRequest, attempt: Attempt, *, generation: int
) -> Claim:
    """Write the action: dispatched, or as an intent that the relay sends."""
    if request.detached:
        return await _insert_intent(connection, request, generation=generation)
    return await _insert_dispatched(connection, request, attempt, generation=generation)


async def _check_undoes_the_same(
    connection: Connection, holder: Action, request: ActionRequest
) -> None:
    """Refuse an undo whose domain key was used for what undid another action, or came before.

    That receipt would say of something that stands that it is undone.
    """
    if request.undoes is None:
        return
    undone = await fetch(connection, "get_action", key=request.undoes)
    at = None if undone is None else undone["dispatched_at"]
    # An intent can be named by what undoes it, and be sent only after that.
    after = at is None or holder.dispatched_at is None or holder.dispatched_at >= at
    if not (after and holder.undoes in (None, request.undoes)):
        raise IdempotencyKeyConflict(
            f"{request.domain_key!r} was used by {holder.key}, which did not undo "
            f"{request.undoes}: what tells two calls apart has to tell their undos apart",
            existing=holder.key,
        )


async def _is_being_undone(connection: Connection, holder: Action, request: ActionRequest) -> bool:
    """Whether what holds the business fact is being taken back: nobody is to rely on it now.

    Not locked, as below: who reads a moment earlier has a receipt of what is undone later.
    """
    if request.purpose != "forward" or holder.compensator is None or holder.status != "done":
        return False
    if holder.undone_by is not None or not holder.effect_possible:
        return False
    run = await fetch(connection, "get_run", run_key=holder.run_key)
    return run is not None and run["state"] == "unwinding"


async def _is_sent(connection: Connection, holder: Action) -> bool:
    """Whether somebody may still send the holder; not locked: that would be a deadlock.

    That is its run, while it runs, or is undone; of what the relay sends, the relay, unless the
    run was stopped. A run that is opened again at this very moment finds its intent void, or has
    claimed it.
    """
    run = await fetch(connection, "get_run", run_key=holder.run_key)
    if run is None:
        return False
    if holder.position.startswith(UNDO_PREFIX):
        return bool(run["state"] == "unwinding")
    relayed = holder.relayed and run["state"] == "ended" and run["stopped_at"] is None
    return run["state"] == "running" or relayed


async def _insert_intent(
    connection: Connection, request: ActionRequest, *, generation: int
) -> Intended:
    key = request.domain_key and with_generation(request.domain_key, generation)
    parameters = _request_parameters(request) | {"idempotency_key": key or _first_key(request)}
    row = await fetch(connection, "insert_intent", generation=generation, **parameters)
    assert row is not None, "an insert without a conflict clause returns its row"
    await fetch(connection, "queue_intent", key=request.key, tool=request.tool)
    return Intended(Action.from_row(row))


async def _settle(
    connection: Connection, key: ActionKey, outcome: Outcome, by: str
) -> Sequence[Action]:
    await _lock_around(connection, await fetch(connection, "get_action", key=key))
    row = await fetch(connection, "lock_action", key=key)
    if row is not None and row["decided_by"] == by and Action.from_row(row).recorded == outcome:
        return [Action.from_row(row)]  # said before, by the same person: the answer was lost
    found = judge_settlement(key, None if row is None else Action.from_row(row), outcome)
    cursor = await connection.execute(
        QUERIES["settle"],
        {
            "key": key,
            "outcome": outcome.kind,
            "effect_possible": outcome.effect_possible,
            "result": outcome.result,
            "by": by,
        },
    )
    settled = [Action.from_row(row) for row in await cursor.fetchall()]
    if found.domain_key is not None and not outcome.effect_possible:
        await connection.execute(
            QUERIES["release_domain_key"], {"domain_key": found.domain_key, "key": key}
        )
    await _became_known(connection, [action.key for action in settled])
    return settled


async def _lock_around(connection: Connection, seen: Row | None) -> None:
    """Lock what is written with an action's outcome, in the lock order.

    Its run, where its end decides who undoes it, and writes both rows of an undo; the domain
    key of what it undoes; its own.
    """
    if seen is None:
        return
    if seen["compensator"] is not None or seen["undoes"] is not None:
        await fetch(connection, "lock_run", run_key=seen["run_key"])
    keys = [seen["domain_key"]]
    if seen["undoes"] is not None:
        undone = await fetch(connection, "get_action", key=seen["undoes"])
        keys.insert(0, undone and undone["domain_key"])
    for key in keys:
        if key is not None:
            await fetch(connection, "lock_domain_key", domain_key=key)


async def _became_known(connection: Connection, keys: Sequence[ActionKey]) -> None:
    """Write what follows from outcomes: another action is undone, or is to be."""
    await execute(connection, "mark_undone", keys=list(keys))
    await execute(connection, "leave_relay", keys=list(keys))
    for key in keys:
        await execute(connection, "release_undone", key=key)
        await execute(connection, "relay_undo", key=key)


async def _insert_dispatched(
    connection: Connection, request: ActionRequest, attempt: Attempt, *, generation: int
) -> Claim:
    key = request.domain_key and with_generation(request.domain_key, generation)
    parameters = _request_parameters(request) | _attempt_parameters(attempt)
    parameters["idempotency_key"] = key or _first_key(request)
    row = await fetch(connection, "insert_dispatched", generation=generation, **parameters)
    assert row is not None, "an insert without a conflict clause returns its row"
    return _dispatched(Action.from_row(row), request, attempt, taken_over=False)


async def _insert_duplicate(
    connection: Connection, request: ActionRequest, original: Action
) -> Claim:
    """Give the claimant a row of its own that says whose receipt it has."""
    done = original.recorded is not None
    row = await _insert_settled(
        connection,
        request,
        duplicate_of=original.key,
        generation=original.generation,
        outcome=original.recorded,
        parked_reason=None if done else f"the same as {original.key}, which is unknown",
    )
    if done and request.undoes is not None:
        await execute(connection, "mark_undone", keys=[row.key])
    return AlreadyDone(row) if done else Parked(row)


async def _refuse(
    connection: Connection, request: ActionRequest, error: IdempotencyKeyConflict
) -> Claim:
    """Record a conflict, so that a replay refuses it too, whatever became of the holder."""
    refused = Outcome.error(kind=CONFLICT, message=error.message, effect_possible=False)
    return AlreadyDone(
        await _insert_settled(
            connection,
            request,
            duplicate_of=error.existing,
            generation=1,
            outcome=refused,
            parked_reason=None,
        )
    )


async def _insert_settled(
    connection: Connection,
    request: ActionRequest,
    *,
    duplicate_of: str | None,
    generation: int,
    outcome: Outcome | None,
    parked_reason: str | None,
) -> Action:
    row = await fetch(
        connection,
        "insert_settled",
        **_request_parameters(request),
        idempotency_key=None,
        generation=generation,
        duplicate_of=duplicate_of,
        status="pending" if outcome is None else "done",
        outcome=outcome and outcome.kind,
        effect_possible=outcome and outcome.effect_possible,
        result=outcome and outcome.result,
        parked_reason=parked_reason,
    )
    assert row is not None, "an insert without a conflict clause returns its row"
    return Action.from_row(row)


async def _record_in_full(
    connection: Connection,
    claim: Dispatched | Owned,
    parameters: dict[str, Any],
    *,
    releases: bool,
) -> bool:
    """Record what the common case does not: a key is released, or the action was parked."""
    async with connection.transaction():
        await _lock_around(connection, await fetch(connection, "get_action", key=claim.key))
        recorded = await fetch(connection, "record", **parameters)
        if recorded is None:
            recorded = await fetch(connection, "record_late", **parameters)
            if recorded is None:
                return False
            repeats = await fetch_all(connection, "settle_repeats", **parameters)
            await _became_known(connection, [claim.key, *(row["key"] for row in repeats)])
        if releases:
            await connection.execute(
                QUERIES["release_domain_key"], {"domain_key": claim.domain_key, "key": claim.key}
            )
        return True


def _what_stands(row: Row | None, claim: Dispatched | Owned) -> Outcome:
    if row is None:
        raise Fenced(f"{claim.key} is gone: a failover lost it", lost=True)
    recorded = Action.from_row(row).recorded
    if recorded is None:
        raise Fenced(f"{claim.key} was taken over by another attempt")
    return recorded


def _dispatched(
    row: Action,
    request: ActionRequest,
    attempt: Attempt,
    *,
    taken_over: bool,
    asked: tuple[Question, ...] = (),
) -> Dispatched:
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
        key_life=key_life(row) if taken_over else None,
        can_ask=request.can_ask,
        asked=asked,
    )


def _dispatched_new(request: ActionRequest, attempt: Attempt) -> Dispatched:
    return Dispatched(
        key=request.key,
        tool=request.tool,
        args=request.args,
        idempotency_key=_first_key(request),
        domain_key=request.domain_key,
        attempt=attempt,
        effect=request.effect,
        can_ask=request.can_ask,
    )


def _first_key(request: ActionRequest) -> str:
    return request.domain_key or default_idempotency_key(request.key)


def _request_parameters(request: ActionRequest) -> dict[str, Any]:
    return {
        **vars(request),
        "key": request.key,
        "thread": request.thread_id or request.run_key,
        "epoch": epoch_of(request.position),
        "step": step_of(request.position) or 0,
    }


def _attempt_parameters(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt_at": attempt.started_at,
        "token": attempt.token,
        "lease": attempt.lease,
        "deadline": attempt.lease if attempt.deadline is None else attempt.deadline,
    }
