"""`RelayLedger`: the queue of actions that need somebody, and the runs that are gone.

The queue is a table: a row names an action and why nobody else sees to it. A row goes when its
action has an end; it is kept, never due, where the end is a person's. All times are the
database's, so a relay whose clock is wrong takes nothing that is not due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Self, cast

from ..canonical import storable
from ..errors import ReopenRefused
from ..identity import ActionKey, RunKey
from .calls import Connection, LedgerCalls, execute, fetch
from .claim_rules import key_forgotten
from .records import Action, Effect, Outcome, Run

Why = Literal["send", "ask", "undo"]

_TAKEN_FOR: Final = timedelta(seconds=15)
"""How long what a relay has taken is its to start. One that dies meanwhile delays it so much."""
_FIRST: Final = timedelta(seconds=60)
_OVERDUE: Final = timedelta(minutes=2)
_MOST: Final = timedelta(hours=1)
"""How long a settling that has begun may be silent before another one is started."""


@dataclass(frozen=True)
class Queued:
    """A row of ``agent_relay``."""

    key: ActionKey
    seq: int
    why: Why
    """``send``: nobody else sends it. ``ask``: its run is gone. ``undo``: it happened after its
    run had been undone."""
    tool: str
    order_key: str | None
    due_at: datetime | None
    """None where it waits for a person."""
    starts: int
    created_at: datetime

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row as psycopg gives it."""
        return cls(**{name: row[name] for name in _COLUMNS})


_COLUMNS = tuple(field.name for field in fields(Queued))


@dataclass(frozen=True)
class Waiting:
    """A queued action, for people."""

    queued: Queued
    run_key: RunKey
    position: str
    parked_reason: str | None
    now: datetime

    @property
    def overdue(self) -> bool:
        """Whether nobody has taken it, long after it was due: no worker at work serves its tool."""
        due = self.queued.due_at
        return due is not None and self.now - due > _OVERDUE


@dataclass(frozen=True)
class GoneRun:
    """A run whose workflow ended and could not say so: terminated, timed out, its history gone."""

    run_key: RunKey
    workflow_id: str
    agent: str
    gone_as: str
    ended_at: datetime
    stands: int
    """Actions that took effect and are not undone."""
    unknown: int
    """Actions that may have."""


class RelayLedger(LedgerCalls):
    """What the relay works on, over an open psycopg pool (see `ledger_pool`)."""

    async def take_due(
        self, tools: Sequence[str], *, limit: int, namespace: str = ""
    ) -> Sequence[Queued]:
        """Take what is due and can be served; of many relays one gets each.

        Safe to repeat: what was taken and not begun is due again a little later.

        Args:
            tools: What the caller serves.
            limit: How many at most.
            namespace: Whose runs; those that name none are anybody's.
        """
        given = {"tools": list(tools), "limit": limit, "namespace": namespace}
        rows = await self._all("take_due", **given, taken_for=_TAKEN_FOR)
        return [Queued.from_row(row) for row in rows]

    async def count_start(self, taken: Queued) -> None:
        """Count that a settling has begun of what was taken. Safe to repeat: it counts once."""

        async def work(connection: Connection) -> None:
            given = {"key": taken.key, "taken_until": taken.due_at}
            await execute(connection, "count_start", **given, first=_FIRST, most=_MOST)

        await self._call(work)

    async def queued(self, key: ActionKey) -> tuple[Queued, bool] | None:
        """Return what is to be done about an action, and whether it is its turn; it only reads."""
        row = await self._maybe("get_queued", key=key)
        return None if row is None else (Queued.from_row(row), bool(row["first_in_order"]))

    async def leave_if_settled(self, key: ActionKey) -> None:
        """Take an action that has an end out of the queue, or keep it for a person.

        Safe to repeat.
        """

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                await fetch(connection, "lock_action", key=key)
                await fetch(connection, "leave_if_settled", key=key)

        await self._call(work)

    async def call_off(self, key: ActionKey, why: str) -> bool:
        """Settle an intent that nothing will be sent of; return whether it was one.

        Safe to repeat. Its domain key is free again.
        """
        never = Outcome.error(kind="NeverSent", message=why, effect_possible=False)

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                seen = await fetch(connection, "get_action", key=key)
                if seen is not None and seen["domain_key"] is not None:
                    # The domain key first: that is the lock order.
                    await fetch(connection, "lock_domain_key", domain_key=seen["domain_key"])
                row = await fetch(connection, "call_off", key=key, result=never.result)
                if row is None:
                    return False
                await execute(
                    connection, "release_domain_key", domain_key=row["domain_key"], key=key
                )
                await execute(connection, "leave_relay", keys=[key])
                return True

        return await self._call(work)

    async def give_up(self, key: ActionKey, reason: str) -> None:
        """Leave an action that cannot be settled, time after time, to a person.

        Safe to repeat. Not while an attempt may be at work on it.
        """

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                await execute(connection, "park_given_up", key=key, reason=storable(reason))
                await execute(connection, "leave_undo", key=key)
                await fetch(connection, "leave_if_settled", key=key)

        await self._call(work)

    async def now(self) -> datetime:
        """Return the database's clock."""
        return cast("datetime", (await self._one("get_now"))["now"])

    async def take_runs(
        self, *, limit: int, before: datetime, namespace: str = ""
    ) -> Sequence[Run]:
        """Return open runs whose workflows are to be looked at, the longest unseen first.

        Safe to repeat: each is seen again later.

        Args:
            limit: How many at most.
            before: Not those that somebody has looked at since, by the database's clock.
            namespace: Whose; those that name none are anybody's.
        """
        given = {"limit": limit, "before": before, "namespace": namespace}
        return [Run.from_row(row) for row in await self._all("take_runs", **given)]

    async def end_gone(
        self, run: Run, *, gone_as: str, ended_at: datetime, asks: bool = True
    ) -> bool:
        """Commit that a run is over whose workflow could not say so; return whether it was open.

        What it left dispatched is queued. A reset opens it again, as it does any run that has
        ended, and so does an attempt that began after its end. Safe to repeat.

        Args:
            run: As it was when its workflow was looked at.
            gone_as: How its workflow ended.
            ended_at: When, by the engine's clock: no attempt from before claims any more.
            asks: Whether anybody could find out what became of what it left; if not, it is a
                person's at once.
        """
        reason = f"its workflow has ended ({gone_as}), and nobody can ask what became of this"

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                given = {"gone_as": gone_as, "ended_at": ended_at, "state": run.state}
                if await fetch(connection, "end_gone", run_key=run.run_key, **given) is None:
                    return False
                if asks:
                    await execute(connection, "queue_lost", run_key=run.run_key)
                else:
                    await execute(connection, "park_lost", run_key=run.run_key, reason=reason)
                return True

        return await self._call(work)

    async def reopen(self, key: ActionKey) -> Action:
        """Have an action tried again that was left to a person. Safe to repeat.

        Under the key that it was sent with before, if it was; then what became of it is asked
        first, where its tool can. Returns the row.

        Raises:
            ReopenRefused: It is not left to a person, it must not be sent twice, its run was
                stopped, or an attempt may still be at work on it.
            LedgerUnavailable: No answer within the deadline.
        """

        async def work(connection: Connection) -> Action:
            async with connection.transaction():
                row = await fetch(connection, "get_action", key=key)
                found = None if row is None else Action.from_row(row)
                run = None
                if found is not None:
                    run = await fetch(connection, "lock_run", run_key=found.run_key)
                reopened = _reopenable(key, found, run)
                if reopened.parked:
                    row = await fetch(connection, "reopen", key=key)
                    if row is None:
                        raise ReopenRefused(f"an attempt may still be at work on {key}")
                    reopened = Action.from_row(row)
                await execute(connection, "queue_again", key=key)
                await fetch(connection, "notify_relay", key=key)
                return reopened

        return await self._call(work)

    async def list(self, *, limit: int = 1000) -> Sequence[Waiting]:
        """Return what the relay has to do, the next first; it only reads."""
        return [
            Waiting(
                Queued.from_row(row),
                row["run_key"],
                row["position"],
                row["parked_reason"],
                row["now"],
            )
            for row in await self._all("list_relay", limit=limit)
        ]

    async def list_gone(self, *, limit: int = 1000) -> Sequence[GoneRun]:
        """Return the runs whose workflows ended without a word, and left something; newest first.

        It only reads.
        """
        return [
            GoneRun(
                row["run_key"],
                row["workflow_id"],
                row["agent"],
                row["gone_as"],
                row["ended_attempt_at"],
                row["stands"],
                row["unknown"],
            )
            for row in await self._all("list_gone", limit=limit)
        ]


def _reopenable(key: ActionKey, found: Action | None, run: Mapping[str, Any] | None) -> Action:
    if found is None:
        raise ReopenRefused(f"there is no action {key}")
    if found.status == "done":
        raise ReopenRefused(f"{key} is settled: {found.state}")
    if found.duplicate_of is not None:
        raise ReopenRefused(f"{key} repeats {found.duplicate_of}: reopen that one")
    if not found.parked and found.reopened_at is None:
        raise ReopenRefused(f"{key} is not left to a person")
    if run is None or run["stopped_at"] is not None:
        raise ReopenRefused(f"the run of {key} was stopped: nothing of it is sent any more")
    if run["spec"] is None and run["parent_key"] is None and not found.relayed:
        raise ReopenRefused(f"{key} is of a workflow whose tools the relay does not have")
    if found.dispatched_at is not None and found.effect is Effect.AT_MOST_ONCE:
        raise ReopenRefused(f"{key} may have happened, and {found.tool} must not be sent twice")
    if found.effect is Effect.IDEMPOTENT and key_forgotten(found):
        raise ReopenRefused(f"the downstream system has forgotten the key of {key} by now")
    return found
