"""`SubRunLedger`: the runs that calls of other runs carry out, and who may act for them.

A sub-agent's run has its parent's run key and the position of the call as its own, so it is the
same run whichever workflow carries it out. A parent that was reset starts another workflow for
it while the one before may live on. The row says which of them *owns* it: the parent's call
gives it away, in order of the engine's clock, and a claim of any other workflow is fenced.

    nobody's, or new     -> the caller's
    the caller's         -> stays
    an earlier call's    -> nobody's (so are those below); its workflow is to be ended first, and
                            then, called again, the caller's
    a later call's       -> `Fenced`: the caller is an execution from before a reset

Every method is one bounded ledger call (see `calls`), which opens its own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ..canonical import storable
from ..errors import Fenced, RunInputConflict, RunNotRunning, SubAgentClosed
from ..identity import RunKey, parent_of
from .calls import Connection, LedgerCalls, Row, execute, fetch, fetch_all
from .records import Action, Run

_ALL: Final = 1_000_000


@dataclass(frozen=True)
class Closed:
    """A sub-agent's run that gave no answer."""

    reason: str
    """The first that was given."""
    actions: Sequence[Action]
    """What it did, and those below it."""


class SubRunLedger(LedgerCalls):
    """The runs of sub-agents over an open psycopg pool."""

    async def give(
        self,
        run_key: RunKey,
        *,
        workflow_id: str,
        by: str,
        agent: str,
        input_digest: str,
        attempt_at: datetime,
        ended: str | None = None,
    ) -> str | None:
        """Give a sub-agent's run to the workflow that its parent is about to start.

        It runs only if all above it run: one that is stopped begins nothing below. Safe to
        repeat: who has it keeps it.

        Args:
            run_key: The sub-agent's run.
            workflow_id: Who is to carry it out.
            by: The parent's workflow, which may itself have been overtaken.
            agent: The sub-agent's name.
            input_digest: Of its input; the same run cannot have another.
            attempt_at: When the caller's attempt began, by the engine's clock.
            ended: The workflow that had it and has surely ended.

        Returns:
            None: it is the workflow's. Else the workflow that had it: nobody's claims succeed
            any more. End that one, and call again with ``ended``.

        Raises:
            RunNotRunning: A run above it is unknown, stopping, unwinding or ended.
            SubAgentClosed: It was stopped, or gave no answer before.
            RunInputConflict: It exists with other input.
            Fenced: The parent's call was made anew since, by a later execution.
        """
        parent = parent_of(run_key)
        assert parent is not None, "a sub-agent's run has one"
        given = {
            "run_key": run_key,
            "workflow_id": workflow_id,
            "agent": agent,
            "input_digest": input_digest,
            "attempt_at": attempt_at,
            "parent_key": parent,
        }

        async def work(connection: Connection) -> str | None:
            async with connection.transaction():
                # A call by an execution that began after the parent's end goes on with it.
                await fetch(connection, "reopen_run", run_key=parent, attempt_at=attempt_at)
                line = await fetch_all(connection, "lock_line", run_key=parent)
                _check_line(line, parent, by)
                row = await fetch(connection, "lock_sub_run", run_key=run_key)
                if row is None:
                    await fetch(connection, "insert_sub_run", **given)
                    return None
                _check_found(Run.from_row(row), workflow_id, input_digest, attempt_at)
                if row["workflow_id"] in (workflow_id, ended):
                    await fetch(connection, "give_sub_run", **given)
                    return None
                below = await fetch_all(connection, "runs_below", run_key=run_key)
                await execute(
                    connection,
                    "disown",
                    run_keys=[run_key, *(one["run_key"] for one in below)],
                    attempt_at=attempt_at,
                )
                return str(row["workflow_id"])

        return await self._call(work)

    async def close(self, run_key: RunKey, *, reason: str, attempt_at: datetime) -> Closed:
        """Close a sub-agent's run that gave no answer, and all below it, for good.

        No claim in them succeeds any more, and no later call goes on with them: what the caller
        was told stands, as an action's outcome does. What they leave dispatched is parked. Safe
        to repeat: the first reason stands, that of a stop before it too.

        Args:
            run_key: The sub-agent's run.
            reason: Why it gave none.
            attempt_at: When the caller's attempt began, by the engine's clock.

        Raises:
            RunNotRunning: The run that called it is stopping: nobody is told of this one.
        """
        parent, reason = parent_of(run_key), storable(reason)

        async def work(connection: Connection) -> Closed:
            async with connection.transaction():
                above = await fetch(connection, "get_run", run_key=parent)
                if above is not None and above["state"] == "stopping":
                    raise RunNotRunning(f"the run {parent} is stopping", stopping=True)
                below = await fetch_all(connection, "runs_below", run_key=run_key)
                keys = [run_key, *(one["run_key"] for one in below)]
                await execute(connection, "give_up_runs", run_keys=keys, reason=reason)
                for key in keys:
                    await execute(connection, "park_left_over", run_key=key, attempt_at=attempt_at)
                row = await fetch(connection, "get_run", run_key=run_key)
                actions = await fetch_all(
                    connection,
                    "list_actions_of_tree",
                    run_key=run_key,
                    only_parked=False,
                    limit=_ALL,
                )
                told = reason if row is None else str(row["stop_reason"])
                return Closed(told, [Action.from_row(one) for one in actions])

        return await self._call(work)

    async def below(self, run_key: RunKey) -> Sequence[Run]:
        """Return the runs of a run's sub-agents, and theirs, upper ones first; it only reads."""
        return [Run.from_row(row) for row in await self._all("runs_below", run_key=run_key)]

    async def actions(
        self, run_key: RunKey, *, only_parked: bool = False, limit: int = 1000
    ) -> Sequence[Action]:
        """Return the actions of a run and of those below it, oldest first; it only reads."""
        rows = await self._all(
            "list_actions_of_tree", run_key=run_key, only_parked=only_parked, limit=limit
        )
        return [Action.from_row(row) for row in rows]


def _check_line(line: Sequence[Row], parent: RunKey, by: str) -> None:
    """Raise where a run may begin nothing below it, or its workflow not for it."""
    if not line:
        raise RunNotRunning(f"the run {parent} is not in the ledger", known=False)
    for row in line:
        if row["state"] != "running" or row["stopped_at"] is not None:
            stopping = row["state"] == "stopping"
            raise RunNotRunning(f"the run {row['run_key']} is {row['state']}", stopping=stopping)
    found = Run.from_row(line[-1])
    if not found.is_of(by):
        raise Fenced(f"{parent} is carried out by {found.owner or 'no workflow'} by now")


def _check_found(found: Run, workflow_id: str, input_digest: str, attempt_at: datetime) -> None:
    if found.input_digest and found.input_digest != input_digest:
        raise RunInputConflict(f"{found.run_key} was begun with other input")
    if found.stopped_at is not None:
        raise SubAgentClosed(found.stop_reason or "")
    if found.workflow_id != workflow_id and found.opened_attempt_at > attempt_at:
        raise Fenced(f"{found.run_key} was given to {found.workflow_id} since")
