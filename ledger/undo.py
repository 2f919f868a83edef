"""`UndoLedger`: the undo of a run: what stands, in which order it is undone, and what is left.

An undo is an action of its own, at the position ``undo-<position>`` of the same run, with a row,
a key and an outcome as any. The transaction that records its success marks the action that it
undid, and frees that one's domain key.

    begin    the run, and the runs of its sub-agents, go forward no more
    plan     first the unknown actions: each is settled, without sending it where that is possible.
             Then the actions that stand, the last that was dispatched first
    finish   the run has ended. A person settles what is still unknown, and the relay undoes what
             turns out later to have happened
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any

from ..canonical import storable
from ..errors import RunNotRunning
from ..identity import ActionKey, RunKey
from .action_records import Action
from .run_records import Run
from .statements import Connection, LedgerCalls, execute, fetch, fetch_all, fetch_row
from .transaction import transaction
from .undo_rules import DueUndo, UndoReport, due, must_undo, report, tools_of


class UndoLedger(LedgerCalls):
    """Undoing, over an open psycopg pool (see `ledger_pool`)."""

    async def begin(
        self,
        run_key: RunKey,
        *,
        why: str,
        failed: bool,
        attempt_at: datetime,
        by: str | None = None,
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
            by: The workflow that carries it out. One that has begun goes on only by the workflow
                that began it, or by one that a person starts.
            again: A person requests it, of a run that has ended, or was stopped and whose
                workflow is lost.
            unless: Names of tools. If a call of one of them took effect, or may have, the run is
                not undone. A person who requests it, by a stop or later, gets it all the same.

        Raises:
            UndoRefused: ``again``, and the run has not ended.
            RunNotRunning: The ledger does not know the run, or it ended after this attempt
                began.
            LedgerUnavailable: No answer within the deadline.
        """

        async def work(connection: Connection) -> bool:
            async with transaction(connection):
                tree = await fetch_all(connection, Run, "lock_tree", run_key=run_key)
                if not tree:
                    raise RunNotRunning(f"{run_key} is not in the ledger", known=False)
                run, keys = tree[0], [one.run_key for one in tree]
                if not must_undo(run, failed=failed, again=again, attempt_at=attempt_at, by=by):
                    return False
                requested = again or run.compensate or run.undo_under_way
                if unless and not requested:
                    given = {"run_keys": keys, "tools": list(unless)}
                    if await _is_so(connection, "took_effect", **given):
                        return False
                may = await _is_so(connection, "may_undo", run_keys=keys, requested=requested)
                # An undo that has begun is brought to its end, even if nothing is left to undo.
                if not run.undo_under_way and not may:
                    return False
                given = {"run_keys": keys, "why": storable(why), "by": by}
                await execute(connection, "begin_undo", **given)
                return True

        return await self._call(work)

    async def take_over(self, run_key: RunKey, *, by: str, after: str) -> None:
        """Have another workflow carry an undo out that has begun. Safe to repeat.

        Nothing, where a third one does by now: a person started it.
        """

        async def work(connection: Connection) -> None:
            async with transaction(connection):
                tree = await fetch_all(connection, Run, "lock_tree", run_key=run_key)
                given = {"run_keys": [one.run_key for one in tree], "by": by, "after": after}
                await execute(connection, "take_over_undo", **given)

        await self._call(work)

    async def plan(
        self,
        run_key: RunKey,
        *,
        by: str | None = None,
        passed: AbstractSet[ActionKey] = frozenset(),
    ) -> Sequence[DueUndo]:
        """Return what is to be done next, in order.

        Nothing, where the undo is over, or another workflow carries it out by now.

        Args:
            run_key: A run that is being undone.
            by: The workflow that carries it out.
            passed: What this undo could not do, as `DueUndo.passes`.
        """
        run = await self._fetch(Run, "get_run", run_key=run_key)
        if run is not None and run.undo_owner != by:
            return []
        rows = await self._fetch_all(Action, "undo_rows", run_key=run_key)
        return due(rows, since=None if run is None else run.undo_began_at, passed=passed)

    async def plan_one(self, action: Action) -> DueUndo | None:
        """Return the undo of one action that stands, if it is due; it only reads.

        Whatever else of its run is unknown, or stands.
        """
        run = await self._fetch(Run, "get_run", run_key=action.run_key)
        rows = await self._fetch_all(Action, "undo_rows", run_key=action.run_key)
        of_action = [one for one in rows if action.key in (one.key, one.undoes)]
        found = due(of_action, since=None if run is None else run.undo_began_at)
        return next((one for one in found if one.at is not None), None)

    async def tools(self, run_key: RunKey) -> frozenset[str]:
        """Return the tools that an undo of a run may call; it only reads."""
        return tools_of(await self._fetch_all(Action, "undo_rows", run_key=run_key))

    async def reopen(self, key: ActionKey) -> bool:
        """Have a parked action tried again; return whether it is not parked any more.

        Not while an attempt may be at work on it. Safe to repeat.
        """

        async def work(connection: Connection) -> bool:
            if await execute(connection, "reopen", key=key):
                return True
            found = await fetch(connection, Action, "get_action", key=key)
            return found is not None and not found.parked

        return await self._call(work)

    async def finish(
        self,
        run_key: RunKey,
        *,
        attempt_at: datetime,
        by: str | None = None,
        passed: AbstractSet[ActionKey],
    ) -> bool:
        """Commit that the undo is over; False where something has become known meanwhile.

        Where another workflow carries it out by now, that one commits its end. Safe to repeat.
        """

        async def work(connection: Connection) -> bool:
            async with transaction(connection):
                tree = await fetch_all(connection, Run, "lock_tree", run_key=run_key)
                keys = [run.run_key for run in tree]
                if tree and tree[0].undo_owner != by:
                    return True
                since = tree[0].undo_began_at if tree else None
                if await _is_due(connection, run_key, since, passed):
                    return False
                await execute(connection, "park_pending", run_keys=keys)
                # An attempt that records from here on finds its row parked, and waits for the
                # run's lock: then it sees that the undo is over. One that was quicker is seen now.
                if await _is_due(connection, run_key, since, passed):
                    return False
                await execute(connection, "end_undo", run_keys=keys, attempt_at=attempt_at)
                return True

        return await self._call(work)

    async def report(self, run_key: RunKey) -> UndoReport:
        """Return what of a run's actions is undone, and what stands; it only reads."""
        return report(await self._fetch_all(Action, "fate_rows", run_key=run_key))


async def _is_so(connection: Connection, query: str, **parameters: Any) -> bool:
    """Return what a query says in its column ``found``."""
    row = await fetch_row(connection, query, **parameters)
    return row is not None and bool(row["found"])


async def _is_due(
    connection: Connection,
    run_key: RunKey,
    since: datetime | None,
    passed: AbstractSet[ActionKey],
) -> bool:
    rows = await fetch_all(connection, Action, "undo_rows", run_key=run_key)
    return bool(due(rows, since=since, passed=passed))
