"""`ActionLedger`: intent before the call, outcome after it, in Postgres.

Every method is one bounded ledger call. It takes a connection for its statements and gives
it back before it returns, so none is held while a tool or a model works. Each opens its own
transaction, or is a single statement in autocommit; none may be called inside a caller's.

A call that meets a transient failure (a cut connection, a deadlock, a restart) is repeated
until its deadline. That is safe because of the claim token: a claim that finds its own token
goes on, and a record that finds itself recorded returns what stands.

How a claim goes through the rows that it finds is in `claiming`; what is written with an outcome,
in `settling`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ..canonical import Json, parse, storable
from ..errors import ActionNotFound, Fenced, RunInputConflict, RunNotRunning
from ..identity import ActionKey, RunKey, parent_of
from .action_rows import attempt_parameters
from .approvals import ApprovalLedger
from .calls import Connection, LedgerCalls, Row, execute, fetch
from .claim import claim_action
from .claim_rules import AlreadyDone, Claim, Dispatched, Owned, raise_if_conflict
from .outbox import intend
from .outcome import record_outcome, settle_action
from .questions import QuestionLedger
from .records import Action, ActionRequest, Attempt, Outcome, Run
from .relay import RelayLedger
from .run_rules import may_start
from .sql import QUERIES
from .sub_runs import SubRunLedger
from .threads import ThreadLedger
from .undo import UndoLedger

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
        reason = storable(reason)
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
            `Dispatched`: call, then record. `LookUp`: ask the downstream system, then record, or
            `send_after_lookup`. `AlreadyDone`: return the stored outcome. `Parked`: answer
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
        claim = await self._call(lambda connection: claim_action(connection, request, attempt))
        if isinstance(claim, AlreadyDone):
            raise_if_conflict(claim.action)
        return claim

    async def send_after_lookup(self, request: ActionRequest, claim: Dispatched) -> None:
        """Commit that an action is sent which, as the downstream system says, never happened.

        Safe to repeat. Call the tool only after it has returned.

        Raises:
            Fenced: Another attempt has taken the action over, or it is settled.
            RunNotRunning: The run may start nothing any more.
            LedgerUnavailable: No answer within the deadline. Nothing was called.
        """

        async def work(connection: Connection) -> None:
            parameters = attempt_parameters(claim.attempt)
            async with connection.transaction():
                run = await fetch(connection, "lock_run", run_key=request.run_key)
                if run is None or not may_start(run, request):
                    raise RunNotRunning(f"the run {request.run_key} has ended")
                sent = await fetch(connection, "send_after_lookup", key=claim.key, **parameters)
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
        return await self._call(lambda connection: record_outcome(connection, claim, outcome))

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
            "reason": storable(reason),
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
            row = await fetch(connection, "park_unsent", key=key, reason=storable(reason))
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
            by: Who says so; kept on the row, as `storable` has it.

        Raises:
            SettlementRefused: No such action, it is settled already, it repeats another, it
                was never sent, or an attempt may still be at work on it.
            LedgerUnavailable: No answer within the deadline; settle again.
        """

        async def work(connection: Connection) -> Sequence[Action]:
            async with connection.transaction():
                return await settle_action(connection, key, outcome, storable(by))

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
            cursor = await connection.execute(QUERIES["pending_notices"], at)
            found = [Action.from_row(row) for row in await cursor.fetchall()]
            if any(action.notified_step is None for action in found):
                keys = [action.key for action in found]
                await connection.execute(QUERIES["mark_notified"], {"keys": keys, "step": step})
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
