"""`ActionLedger`: intent before the call, outcome after it, in Postgres.

Every method is one bounded ledger call. It takes a connection for its statements and gives
it back before it returns, so none is held while a tool or a model works. Each opens its own
transaction, or is a single statement in autocommit; none may be called inside a caller's.

A call that meets a transient failure (a cut connection, a deadlock, a restart) is repeated
until its deadline. That is safe because of the claim token: a claim that finds its own token
goes on, and a record that finds itself recorded returns what stands.

How a claim goes through the rows that it finds is in `claim`, how an outcome is written in
`outcome`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from psycopg import errors as pg

from ..canonical import storable
from ..errors import ActionNotFound, Fenced, RunNotRunning, StatementRefused, Unstorable
from ..identity import ActionKey, RunKey
from .action_records import Action, ActionRequest, ActionState, Attempt, Outcome
from .approvals import ApprovalLedger
from .claim import claim_action
from .claim_results import (
    AlreadyDone,
    Busy,
    Claim,
    Dispatched,
    HeldClaim,
    attempt_parameters,
)
from .outbox import intend
from .outcome import park_action, record_outcome, settle_action
from .outcome_rules import fenced, raise_if_conflict, without_result
from .questions import QuestionLedger
from .relay import RelayLedger
from .run_records import Run
from .run_rules import may_start
from .runs import RunLedger
from .statements import Connection, LedgerCalls, execute, fetch, fetch_one
from .sub_runs import SubRunLedger
from .threads import ThreadLedger
from .transaction import transaction
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
    def runs(self) -> RunLedger:
        """The runs, over the same pool."""
        return RunLedger(self._pool, statement_seconds=self._seconds)

    @property
    def threads(self) -> ThreadLedger:
        """The conversations over the same pool."""
        return ThreadLedger(self._pool, statement_seconds=self._seconds)

    @property
    def approvals(self) -> ApprovalLedger:
        """The calls that a person approves, over the same pool."""
        return ApprovalLedger(self._pool, statement_seconds=self._seconds)

    @property
    def relay(self) -> RelayLedger:
        """The relay's queue, over the same pool."""
        return RelayLedger(self._pool, statement_seconds=self._seconds)

    @property
    def undo(self) -> UndoLedger:
        """The undo of runs, over the same pool."""
        return UndoLedger(self._pool, statement_seconds=self._seconds)

    @property
    def sub_runs(self) -> SubRunLedger:
        """The runs of sub-agents, over the same pool."""
        return SubRunLedger(self._pool, statement_seconds=self._seconds)

    @property
    def questions(self) -> QuestionLedger:
        """The questions that calls raise midway, over the same pool."""
        return QuestionLedger(self._pool, statement_seconds=self._seconds)

    intend = staticmethod(intend)
    """See `commitline.ledger.outbox.intend`: on the application's connection, not on the pool."""

    async def outcome(self, key: ActionKey, *, wait_seconds: float = 0.0) -> Outcome | None:
        """Return how an action ended; None while that is not known.

        Then the row says which (`get`): its ``state`` is ``intent`` or ``dispatched`` while it is
        on its way, ``unknown`` while a person has to settle it. Safe to repeat; it only reads.

        Args:
            key: As `intend` returned it.
            wait_seconds: How long to wait for its end. It looks again and again, more seldom with
                time; choose no more than a person waits for.

        Raises:
            ActionNotFound: No such row: not intended, rolled back, or not committed yet; or the
                role of the connection neither intended it itself nor may read the table.
            LedgerUnavailable: No answer within the deadline.
        """
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + wait_seconds, _FIRST_LOOK_SECONDS
        while True:
            row = await self._fetch_row("outcome_of", key=key)
            if row is None:
                raise ActionNotFound(f"there is no action {key}")
            left = until - loop.time()
            if row["outcome"] is not None:
                return Outcome(
                    row["outcome"], row["result"], row["effect_possible"], row["state_changes"]
                )
            if left <= 0:
                return None
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_LOOK_SECONDS)

    async def claim(self, request: ActionRequest, attempt: Attempt) -> Claim:
        """Claim the right to call, and commit the intent: *dispatched* before anything is sent.

        One round trip in the common case (a new action, its domain key free). Safe to repeat
        within an attempt, and never to be assumed from another one's answer.

        Returns:
            `Dispatched`: call, then record. `LookUp`: look it up in the downstream system, then
            record, or `send_after_lookup`. `AlreadyDone`: return the stored outcome. `Parked`:
            answer unknown. `Busy`: claim again later. `Accepted`: answer that it is accepted.

        Raises:
            PlanDivergence: Another call stands at this position; final.
            IdempotencyKeyConflict: The domain key was used for something else, which stands.
            Fenced: A later attempt of this action owns it.
            RunNotRunning: The run is unknown, stopping, undoing or ended.
            LedgerUnavailable: No answer within the deadline. Nothing was called, and the
                same attempt may claim again; ``reached`` says whether the claim may have been
                committed all the same.
        """

        async def work(connection: Connection) -> Claim:
            try:
                return await claim_action(connection, request, attempt)
            except pg.LockNotAvailable:
                return Busy(None)

        claim = await self._call(work)
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
            async with transaction(connection):
                run = await fetch(connection, Run, "lock_run", run_key=request.run_key)
                own = await fetch(connection, Action, "get_action", key=claim.key)
                if run is None or not may_start(run, request, own):
                    raise RunNotRunning(f"the run {request.run_key} has ended")
                if not await execute(connection, "send_after_lookup", key=claim.key, **parameters):
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
        counted = await self._execute(
            "fail_try",
            key=claim.key,
            token=claim.token,
            failures=failures,
            in_progress=in_progress,
            over=over,
        )
        if not counted:
            raise fenced(claim, await self.get(claim.key))
        return failures

    async def record(self, claim: Dispatched | HeldClaim, outcome: Outcome) -> Outcome:
        """Commit the outcome; return the one that *stands*, which is the first one recorded.

        One round trip in the common case. Safe to repeat: only the holder of the claim
        records, once. An error without effect releases the action's domain key. An action that
        was parked meanwhile is settled by it, and so are the calls that were answered with it.

        Raises:
            Fenced: Another attempt has taken the action over and has not recorded yet.
            LedgerUnavailable: No answer within the deadline. Record again; do not call again.
            StatementRefused: Postgres refuses it. Record again; do not call again.
        """
        try:
            return await self._call(lambda connection: record_outcome(connection, claim, outcome))
        except Unstorable as err:
            kept = without_result(outcome, err)
        try:
            return await self._call(lambda connection: record_outcome(connection, claim, kept))
        except Unstorable as err:
            raise StatementRefused(f"not even that it ended: {err.message}") from err

    async def park(
        self,
        claim: Dispatched | HeldClaim,
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
                and no person may settle the row before that has run out.
            failures: Tries that the tool has failed so far, this one included.

        Raises:
            Fenced: Another attempt has taken the action over.
            LedgerUnavailable: No answer within the deadline.
        """
        return await self._call(
            lambda connection: park_action(
                connection, claim, storable(reason), over=over, failures=failures
            )
        )

    async def park_unsent(self, key: ActionKey, reason: str) -> Action:
        """Leave an intent to a person; nothing of it was sent. Safe to repeat.

        Raises:
            LedgerUnavailable: No answer within the deadline.
        """

        async def work(connection: Connection) -> Action:
            parked = await fetch(
                connection, Action, "park_unsent", key=key, reason=storable(reason)
            )
            if parked is not None:
                return parked
            return await fetch_one(connection, Action, "get_action", key=key)

        return await self._call(work)

    async def settle(self, key: ActionKey, outcome: Outcome, *, by: str) -> Sequence[Action]:
        """Record how an unknown action ended, as a person found out.

        Also settles the calls that were answered with it. An error without effect (it did not
        happen) releases the domain key. Returns the rows that were settled.

        Safe to repeat: the same outcome by the same person changes nothing; another is refused.

        Args:
            key: Of the action itself, not of a call that repeats it.
            outcome: What the person found.
            by: The person; kept on the row, as `storable` has it.

        Raises:
            SettlementRefused: No such action, it is settled already, it repeats another, it
                was never sent, or an attempt may still be at work on it.
            LedgerUnavailable: No answer within the deadline; settle again.
        """

        async def work(connection: Connection) -> Sequence[Action]:
            async with transaction(connection):
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
        return await self._execute(
            "hand_back", key=request.key, token=attempt.token, failures=failures
        )

    async def get(self, key: ActionKey) -> Action | None:
        """Return one action, or None. Safe to repeat; it only reads."""
        return await self._fetch(Action, "get_action", key=key)

    async def list(
        self,
        run_key: RunKey | None = None,
        *,
        only_parked: bool = False,
        newest_first: bool = False,
        limit: int = 1000,
    ) -> Sequence[Action]:
        """Return actions of one run, or of all: the first ``limit`` in the given order.

        Safe to repeat; it only reads.
        """
        return await self._fetch_list(
            Action,
            "list_actions",
            run_key=run_key,
            only_parked=only_parked,
            newest_first=newest_first,
            limit=limit,
        )

    async def find(
        self,
        *,
        run_keys: Sequence[RunKey] | None = None,
        agent: str | None = None,
        state: ActionState | None = None,
        limit: int = 1000,
    ) -> Sequence[Action]:
        """Return the newest actions of which all that is named is true; it only reads.

        Args:
            run_keys: Of these runs; None is of all.
            agent: Of the runs of this agent, or of this plan.
            state: In this state; ``unknown`` is what waits for a person.
            limit: How many at most.
        """
        keys = None if run_keys is None else list(run_keys)
        given = {"run_keys": keys, "agent": agent, "state": state, "limit": limit}
        return await self._fetch_list(Action, "find_actions", **given)

    async def put_value(self, key: ActionKey, thread_id: str, value: str) -> None:
        """Keep a read's result (JSON text) that is too large to travel. Safe to repeat.

        Not of a conversation that was deleted, or of a run that the ledger does not have.
        """
        await self._execute("put_value", key=key, thread_id=thread_id, value=value)

    async def result_of(self, key: ActionKey) -> str | None:
        """Return what a call returned (JSON text), or None where nothing is kept; it only reads.

        Args:
            key: Of an action that happened, or of a read whose result `put_value` kept.
        """
        found = await self.get(key)
        return await self.get_value(key) if found is None else found.returned

    async def get_value(self, key: ActionKey) -> str | None:
        """Return what `put_value` kept, or None; it only reads."""
        row = await self._fetch_row("get_value", key=key)
        return None if row is None else str(row["value"])

    async def keep_completion(self, key: ActionKey, run_key: RunKey, value: str) -> str:
        """Keep a model's completion (JSON text); return what stands: the first. Safe to repeat."""
        row = await self._fetch_row("keep_completion", key=key, run_key=run_key, value=value)
        assert row is not None
        return str(row["value"])
