"""`UndoLedger`: what a run did that stands, in which order it is taken back, and what is left.

An undo is an action of its own, at the position ``undo-<position>`` of the same run, with a row,
a key and an outcome as any. The transaction that records its success marks what it undid and
frees that one's business fact.

    begin    the run, and the runs of its sub-agents, are unwinding: nothing goes forward any more
    plan     first what is unknown, to be settled without sending it where that can be; then what
             stands, the last that was dispatched first
    finish   ended; what is still unknown is a person's, and what comes to be known later the
             relay's
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime

from ..canonical import storable
from ..errors import RunNotRunning, UndoRefused
from ..identity import ActionKey, RunKey
from .calls import Connection, LedgerCalls, execute, fetch, fetch_all
from .records import Action, Run
from .undo_rules import DueUndo, UndoReport, due, report


class UndoLedger(LedgerCalls):
    """Undoing, over an open psycopg pool (see `ledger_pool`)."""

    async def begin(
        self,
        run_key: RunKey,
        *,
        why: str,
        failed: bool,
        attempt_at: datetime,
        again: bool = False,
        unless: Sequence[str] = (),
    ) -> bool:
        """Commit that a run is being undone, if it is to be; return whether it is.

        From then on nothing of it goes forward, for good: no claim, no reset, no retry. Safe to
        repeat.

        Args:
            run_key: The run; those of its sub-agents go with it.
            why: For people; kept on the run, unless it was stopped before.
            failed: Whether it failed, which undoes it. One that was cancelled is undone only
                where its stop said so.
            attempt_at: When the caller's attempt began, by the engine's clock.
            again: A person asks for it, of a run that has ended, or was stopped and whose
                workflow is gone.
            unless: Tools. Not where a call of one of them took effect, or may have: nothing
                undoes that. A person who asks for it, by a stop or later, gets it all the same.

        Raises:
            UndoRefused: ``again``, and the run has not ended.
            RunNotRunning: The ledger does not know the run, or it ended after this attempt
                began.
            LedgerUnavailable: No answer within the deadline.
        """

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                rows = await fetch_all(connection, "lock_tree", run_key=run_key)
                if not rows:
                    raise RunNotRunning(f"{run_key} is not in the ledger", known=False)
                run = Run.from_row(rows[0])
                keys = [row["run_key"] for row in rows]
                if not _to_be_undone(run, failed=failed, again=again, attempt_at=attempt_at):
                    return False
                asked_for = again or run.compensate or run.state == "undoing"
                if unless and not asked_for:
                    final = await fetch(
                        connection, "took_effect", run_keys=keys, tools=list(unless)
                    )
                    if final is not None and final["found"]:
                        return False
                may = await fetch(connection, "may_undo", run_keys=keys, asked_for=asked_for)
                # What has begun is brought to its end, even where nothing is left to undo.
                if run.state != "undoing" and (may is None or not may["found"]):
                    return False
                await execute(connection, "begin_undo", run_keys=keys, why=storable(why))
                return True

        return await self._call(work)

    async def plan(
        self, run_key: RunKey, *, passed: AbstractSet[ActionKey] = frozenset()
    ) -> Sequence[DueUndo]:
        """Return what is to be done next, in order; nothing, where undoing is through.

        Args:
            run_key: A run that is unwinding.
            passed: What could not be done in this unwinding, as `DueUndo.passes`.
        """
        run = await self._maybe("get_run", run_key=run_key)
        rows = await self._all("undo_rows", run_key=run_key)
        since = run["undo_began_at"] if run is not None else None
        return due([Action.from_row(row) for row in rows], since=since, passed=passed)

    async def plan_one(self, action: Action) -> DueUndo | None:
        """Return the undo of one action that stands, if it is due; it only reads.

        Whatever else of its run is unknown, or stands.
        """
        run = await self._maybe("get_run", run_key=action.run_key)
        rows = [
            Action.from_row(row) for row in await self._all("undo_rows", run_key=action.run_key)
        ]
        since = run["undo_began_at"] if run is not None else None
        found = due([one for one in rows if action.key in (one.key, one.undoes)], since=since)
        return next((one for one in found if one.at is not None), None)

    async def reopen(self, key: ActionKey) -> bool:
        """Have a parked action tried again; return whether it is not parked any more.

        Not while an attempt may be at work on it. Safe to repeat.
        """

        async def work(connection: Connection) -> bool:
            if await fetch(connection, "reopen", key=key) is not None:
                return True
            row = await fetch(connection, "get_action", key=key)
            return row is not None and not Action.from_row(row).parked

        return await self._call(work)

    async def finish(
        self, run_key: RunKey, *, attempt_at: datetime, passed: AbstractSet[ActionKey]
    ) -> bool:
        """Commit that undoing is through; False where something has become known meanwhile.

        Safe to repeat.
        """

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                tree = await fetch_all(connection, "lock_tree", run_key=run_key)
                keys = [row["run_key"] for row in tree]
                since = tree[0]["undo_began_at"] if tree else None
                if await _is_due(connection, run_key, since, passed):
                    return False
                await execute(connection, "park_pending", run_keys=keys)
                # Whoever records from here on finds its row parked, and waits for the run, to
                # see that its undo is through. Who was quicker is seen now.
                if await _is_due(connection, run_key, since, passed):
                    return False
                await execute(connection, "end_undo", run_keys=keys, attempt_at=attempt_at)
                return True

        return await self._call(work)

    async def report(self, run_key: RunKey) -> UndoReport:
        """Return what of a run's actions is undone, and what stands; it only reads."""
        rows = await self._all("fate_rows", run_key=run_key)
        return report([Action.from_row(row) for row in rows])


async def _is_due(
    connection: Connection,
    run_key: RunKey,
    since: datetime | None,
    passed: AbstractSet[ActionKey],
) -> bool:
    rows = await fetch_all(connection, "undo_rows", run_key=run_key)
    return bool(due([Action.from_row(row) for row in rows], since=since, passed=passed))


def _to_be_undone(run: Run, *, failed: bool, again: bool, attempt_at: datetime) -> bool:
    if again and run.state == "running":
        raise UndoRefused(f"{run.run_key} is {run.state}")
    if run.state == "ended" and run.ended_attempt_at and run.ended_attempt_at >= attempt_at:
        # A late attempt, whose unwinding is through: it must not begin another.
        raise RunNotRunning(f"{run.run_key} has ended")
    if run.parent_key is not None and not again:
        # Its parent's undo reaches it, also one that has begun: two would be at it. Unless its
        # own stop asked for it.
        return run.compensate
    return again or run.state == "undoing" or failed or run.compensate
