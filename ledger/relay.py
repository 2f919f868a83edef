"""`RelayLedger`: the queue of actions that no run carries out any more, and the runs that are lost.

The queue is a table: a row names an action and what the relay does about it. The row is deleted
when its action has an end; it is kept, never due, while the action waits for a person. All times
are the database's, so a relay whose clock is wrong takes nothing that is not due.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, cast

from ..canonical import scrub, storable
from ..errors import ReopenRefused
from ..identity import ActionKey, RunKey
from .action_records import Action, Effect, Outcome
from .outcome import call_off, give_up, lock_with_domain_key
from .relay_rules import LostRun, QueuedAction, RelayEntry, check_reopens
from .row_factory import read
from .run_records import Run
from .statements import Connection, LedgerCalls, execute, fetch, fetch_one, fetch_row
from .sweeps import SweepLedger
from .transaction import transaction

_TAKEN_FOR: Final = timedelta(seconds=15)
"""How long a relay has to begin with what it has taken. If it dies, the delay is so long."""
_FIRST: Final = timedelta(seconds=60)
"""How long an entry with which a relay has begun may be silent before another try begins."""
_MOST: Final = timedelta(hours=1)
"""The longest of these times, which double with each try."""


class RelayLedger(LedgerCalls):
    """The relay's queue over an open psycopg pool (see `ledger_pool`)."""

    @property
    def sweeps(self) -> SweepLedger:
        """When it looked for runs that are lost, over the same pool."""
        return SweepLedger(self._pool, statement_seconds=self._seconds)

    async def take_due(
        self, tools: Sequence[str], *, limit: int, namespace: str = ""
    ) -> Sequence[RelayEntry]:
        """Take due entries whose tools the caller serves; of many relays one gets each.

        Safe to repeat: what was taken and not begun is due again a little later.

        Args:
            tools: The tools that the caller serves.
            limit: How many at most.
            namespace: Of the runs' workflows; a run that names none belongs to every namespace.
        """
        given = {"tools": list(tools), "namespace": namespace, "taken_for": _TAKEN_FOR}
        taken: list[RelayEntry] = []
        while len(taken) < limit:
            left = limit - len(taken)
            # What waits for another of its order comes back once, and is not found again.
            found = await self._fetch_rows("take_due", **given, limit=limit, left=left)
            taken += [read(RelayEntry, row) for row in found if row["taken"]]
            if len(found) < limit:
                break
        return taken

    async def count_start(self, taken: RelayEntry) -> None:
        """Count that the relay has begun with an entry. Safe to repeat: it counts once."""
        given = {"key": taken.key, "taken_until": taken.due_at}
        await self._execute("count_start", **given, first=_FIRST, most=_MOST)

    async def entry(self, key: ActionKey) -> tuple[RelayEntry, bool] | None:
        """Return an action's entry, and whether it is the first of its order; it only reads."""
        row = await self._fetch_row("get_relay_entry", key=key)
        return None if row is None else (read(RelayEntry, row), bool(row["first_in_order"]))

    async def dequeue_if_settled(self, key: ActionKey, *, shown: bool = False) -> bool:
        """Take an action that has an end out of the queue; return whether it waits for a person.

        Then it is kept in the queue, and not due. Safe to repeat.

        Args:
            key: The action.
            shown: Whether a workflow goes on to show that it waits. When the action has an end, its
                entry is due once more, so that a relay has that workflow look again.
        """

        async def work(connection: Connection) -> bool:
            async with transaction(connection):
                await execute(connection, "lock_action", key=key)
                row = await fetch_row(connection, "dequeue_if_settled", key=key, shown=shown)
                return row is not None and bool(row["parked"])

        return await self._call(work)

    async def show_no_more(self, key: ActionKey) -> None:
        """Note that the workflow of an action is at work again. Safe to repeat."""
        await self._execute("show_no_more", key=key)

    async def queue_parked(
        self, tools: Sequence[str], *, most: int, namespace: str = ""
    ) -> Sequence[ActionKey]:
        """Queue what waits for a person though its run has ended, so that a workflow shows it.

        Returns what was queued. Safe to repeat.

        Args:
            tools: The tools that the caller serves.
            most: How many such workflows there are at a time.
            namespace: Of the runs' workflows; a run that names none belongs to every namespace.
        """
        given = {"tools": list(tools), "most": most, "namespace": namespace}
        rows = await self._fetch_rows("queue_parked", **given)
        return [ActionKey(row["key"]) for row in rows]

    async def drop_settled(self, *, namespace: str = "") -> Sequence[ActionKey]:
        """Drop what has an end, and what no worker takes to tell its workflow so; return it.

        Whatever waits behind it in its order goes on. Safe to repeat.

        Args:
            namespace: As for `queue_parked`.
        """
        rows = await self._fetch_rows("drop_settled", namespace=namespace)
        return [ActionKey(row["key"]) for row in rows]

    async def define(
        self, key: ActionKey, *, effect: Effect, key_ttl: timedelta | None, compensator: str | None
    ) -> Action | None:
        """Write what the tool's definition says of an intent of the outbox; return the row.

        None: something was sent for it, or it has an end. Safe to repeat.

        Args:
            key: Of the intent.
            effect: What repeating it would do.
            key_ttl: How long the downstream system remembers a key.
            compensator: The tool that undoes it.
        """
        given = {"effect": effect, "key_ttl": key_ttl, "compensator": compensator}
        row = await self._fetch_row("define", key=key, **given)
        return None if row is None else read(Action, row)

    async def call_off(self, key: ActionKey, why: str, *, kind: str) -> bool:
        """End an intent that must not be sent; return whether it was one.

        Safe to repeat. Its domain key is free again.

        Args:
            key: Of the intent.
            why: In words.
            kind: Of the error that is recorded.
        """
        never = Outcome.error(kind=kind, message=scrub(why, limit=1_000), effect_possible=False)

        return await self._call(lambda connection: call_off(connection, key, never))

    async def give_up(self, key: ActionKey, why: str) -> Action:
        """End an intent that its run does not send any more; return its row.

        If somebody else relies on it, the relay adopts it instead. Safe to repeat.
        """
        never = Outcome.error(
            kind="NeverSent", message=scrub(why, limit=1_000), effect_possible=False
        )

        async def work(connection: Connection) -> Action:
            async with transaction(connection):
                await lock_with_domain_key(connection, key)
                await give_up(connection, key, never)
                return await fetch_one(connection, Action, "get_action", key=key)

        return await self._call(work)

    async def leave_to_person(self, key: ActionKey, reason: str) -> None:
        """Leave an action to a person that the relay could not settle, time after time.

        Safe to repeat. Not while an attempt may be at work on it.
        """

        async def work(connection: Connection) -> None:
            async with transaction(connection):
                await execute(connection, "park_unsettled", key=key, reason=storable(reason))
                await execute(connection, "leave_undo_to_person", key=key)
                await execute(connection, "dequeue_if_settled", key=key, shown=False)

        await self._call(work)

    async def now(self) -> datetime:
        """Return the database's clock."""
        row = await self._fetch_row("get_now")
        assert row is not None, "get_now returns a row"
        return cast("datetime", row["now"])

    async def take_runs(
        self, *, limit: int, before: datetime, namespace: str = ""
    ) -> Sequence[Run]:
        """Take open runs, to find out whether their workflows are alive; the longest unseen first.

        Safe to repeat: each is taken again later.

        Args:
            limit: How many at most.
            before: Only runs at which no relay has looked since, by the database's clock.
            namespace: Of their workflows; a run that names none belongs to every namespace.
        """
        given = {"limit": limit, "before": before, "namespace": namespace}
        return await self._fetch_all(Run, "take_runs", **given)

    async def end_lost(
        self, run: Run, *, workflow_status: str, ended_at: datetime, can_look_up: bool = True
    ) -> bool:
        """End a run whose workflow ended without recording it; return whether it was open.

        What it left dispatched is queued. A reset opens it again, as it does any run that has
        ended, and so does an attempt that began after its end. Safe to repeat.

        Args:
            run: As it was when its workflow was looked at.
            workflow_status: How its workflow ended.
            ended_at: When, by the engine's clock: no attempt from before claims any more.
            can_look_up: Whether a relay could look up what it left dispatched; if not, that is
                left to a person at once.
        """
        ended = f"its workflow has ended ({workflow_status})"
        reason = f"{ended}, and no worker can look up what became of this"

        async def work(connection: Connection) -> bool:
            async with transaction(connection):
                seen = {
                    "run_key": run.run_key,
                    "state": run.state,
                    "workflow_id": run.workflow_id,
                }
                end = {"workflow_status": workflow_status, "ended_at": ended_at}
                if not await execute(connection, "end_lost", **seen, **end):
                    return False
                if can_look_up:
                    await execute(connection, "queue_lookups", run_key=run.run_key)
                else:
                    await execute(connection, "park_lost", run_key=run.run_key, reason=reason)
                return True

        return await self._call(work)

    async def reopen(self, key: ActionKey) -> Action:
        """Have an action tried again that was left to a person. Safe to repeat.

        Under the key that it was sent with before, if it was; then it is looked up first, where
        its tool has a lookup. Returns the row.

        Raises:
            ReopenRefused: It is not left to a person, it must not be sent twice, its run was
                stopped, or an attempt may still be at work on it.
            LedgerUnavailable: No answer within the deadline.
        """

        async def work(connection: Connection) -> Action:
            async with transaction(connection):
                found = await fetch(connection, Action, "get_action", key=key)
                run = None
                if found is not None:
                    run = await fetch(connection, Run, "lock_run_to_fork", run_key=found.run_key)
                action = check_reopens(key, found, run)
                if action.parked:
                    reopened = await fetch(connection, Action, "reopen", key=key)
                    if reopened is None:
                        raise ReopenRefused(f"an attempt may still be at work on {key}")
                    action = reopened
                await execute(connection, "unclear_run", run_key=action.run_key)
                await execute(connection, "queue_again", key=key)
                await execute(connection, "notify_relay", key=key)
                return action

        return await self._call(work)

    async def clear_runs(self, *, limit: int, before: datetime) -> tuple[int, Sequence[RunKey]]:
        """Look at ended runs: clear those that leave nothing open.

        A run that is cleared is not looked at again. Safe to repeat.

        Args:
            limit: How many at most.
            before: Only runs at which no relay has looked since, by the database's clock.

        Returns:
            How many were looked at, and those that have an action without an exit.
        """
        rows = await self._fetch_rows("clear_runs", limit=limit, before=before)
        return len(rows), [RunKey(row["run_key"]) for row in rows if row["left_over"]]

    async def give_exits(self, run: Run, *, can_look_up: bool) -> bool:
        """Give each action of an ended run an exit that has none; False if the run is open again.

        What the relay has to send or to undo is queued; what may have happened is looked up or
        parked. Safe to repeat.

        Args:
            run: The run; its workflow has ended.
            can_look_up: Whether a relay could look up what it left dispatched.
        """
        reason = "its run has ended, and no worker can look up what became of this"
        at = {"run_key": run.run_key}

        async def work(connection: Connection) -> bool:
            async with transaction(connection):
                found = await fetch(connection, Run, "lock_run_to_fork", **at)
                if found is None or found.state != run.state:
                    return False
                await execute(connection, "queue_left_over", **at)
                await execute(connection, "queue_lost_undos", **at)
                await execute(connection, "park_lost_undos", **at)
                if can_look_up:
                    await execute(connection, "queue_lookups", **at)
                else:
                    await execute(connection, "park_lost", **at, reason=reason)
                return True

        return await self._call(work)

    async def adopt(self) -> Sequence[ActionKey]:
        """Adopt the intents of ended runs that others rely on; return them. Safe to repeat."""
        await self._execute("end_reliance")
        return [ActionKey(row["key"]) for row in await self._fetch_rows("adopt_relied_on")]

    async def settle_repeats(self) -> bool:
        """Settle what repeats an action that has ended; return whether there was any.

        It ends together with that action, so there is nothing to do. Safe to repeat.
        """
        return await self._execute("settle_left_repeats")

    async def without_exit(self, *, limit: int = 1000) -> Sequence[Action]:
        """Return the actions that nobody brings to an end: no run, no relay, no person.

        The next sweep gives them an exit. ``commitline_exit`` in the migration says who brings an
        action to its end. It only reads.
        """
        return await self._fetch_all(Action, "without_exit", limit=limit)

    async def list(self, *, limit: int = 1000) -> Sequence[QueuedAction]:
        """Return the queue, the next one first; it only reads."""
        return await self._fetch_all(QueuedAction, "list_relay", limit=limit)

    async def list_lost(self, *, limit: int = 1000) -> Sequence[LostRun]:
        """Return the runs whose workflows ended without recording it, and that left something.

        The newest first; it only reads.
        """
        return await self._fetch_all(LostRun, "list_lost", limit=limit)
