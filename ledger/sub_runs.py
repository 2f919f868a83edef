"""`SubRunLedger`: the runs that calls of other runs carry out, and who may act for them.

A sub-agent's run has its parent's run key and the position of the call as its own, so it is the
same run whichever workflow carries it out. A parent that was reset starts another workflow for
it while the one before may be alive. The row names the workflow that *owns* it: the parent's call
assigns it, in the order of the engine's clock, and a claim of any other workflow is fenced.

    the run is owned by                 after the call of `assign`
    -------------------                 --------------------------
    no workflow, or the run is new      the caller's workflow owns it
    the caller's workflow               as before
    an earlier call's workflow          no workflow owns it, nor the runs below it. The caller ends
                                        that workflow, and calls again
    a later call's workflow             `Fenced`: the caller is an execution from before a reset

Every method is one bounded ledger call (see `statements`), which opens its own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ..canonical import storable
from ..errors import RunNotRunning
from ..identity import RunKey, parent_of
from .action_records import Action
from .run_records import Run
from .run_rules import check_ancestors, check_sub_run
from .statements import Connection, LedgerCalls, execute, fetch, fetch_all
from .transaction import transaction

_ALL: Final = 1_000_000


@dataclass(frozen=True)
class Closed:
    """A sub-agent's run that gave no answer."""

    reason: str
    """The first that was given."""
    actions: Sequence[Action]
    """Its actions, and those of the runs below it."""


class SubRunLedger(LedgerCalls):
    """The runs of sub-agents over an open psycopg pool."""

    async def assign(
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
        """Assign a sub-agent's run to the workflow that its parent is about to start.

        All runs above it must be running: a stopped one begins nothing below. Safe to repeat:
        the workflow that owns it keeps it.

        Args:
            run_key: The sub-agent's run.
            workflow_id: The workflow that will carry it out.
            by: The parent's workflow; another one may own the parent by now.
            agent: The sub-agent's name.
            input_digest: Of its input; the same run cannot have another.
            attempt_at: When the caller's attempt began, by the engine's clock.
            ended: The workflow that owned it and has surely ended.

        Returns:
            None: the workflow owns it. Else the workflow that owned it: no claim of the run
            succeeds any more. End that one, and call again with ``ended``.

        Raises:
            RunNotRunning: A run above it is unknown, stopping, undoing or ended.
            SubAgentClosed: It was stopped, or closed without an answer.
            RunInputConflict: It exists with other input.
            Fenced: A later execution of the parent has called it since.
        """
        parent = parent_of(run_key)
        assert parent is not None, "a sub-agent's run has one"
        new = {
            "run_key": run_key,
            "workflow_id": workflow_id,
            "agent": agent,
            "input_digest": input_digest,
            "attempt_at": attempt_at,
            "parent_key": parent,
        }

        async def work(connection: Connection) -> str | None:
            async with transaction(connection):
                # A call by an execution that began after the parent's end goes on with it.
                await execute(connection, "reopen_run", run_key=parent, attempt_at=attempt_at)
                line = await fetch_all(connection, Run, "lock_ancestors", run_key=parent)
                check_ancestors(line, parent, by)
                run = await fetch(connection, Run, "lock_sub_run", run_key=run_key)
                if run is None:
                    await execute(connection, "insert_sub_run", **new)
                    return None
                check_sub_run(run, workflow_id, input_digest, attempt_at)
                if run.workflow_id in (workflow_id, ended):
                    await execute(connection, "assign_sub_run", **new)
                    return None
                await _unassign(connection, run_key, attempt_at)
                return run.workflow_id

        return await self._call(work)

    async def close(self, run_key: RunKey, *, reason: str, attempt_at: datetime) -> Closed:
        """Close a sub-agent's run that gave no answer, and all below it, for good.

        No claim in them succeeds any more, and no later call goes on with them: what the model
        read of the call stands, as an action's outcome does. What they leave dispatched is parked.
        Safe to repeat: the first reason stands, also that of a stop before.

        Args:
            run_key: The sub-agent's run.
            reason: Why it gave none.
            attempt_at: When the caller's attempt began, by the engine's clock.

        Raises:
            RunNotRunning: The run that called it is stopping: no model reads of this one.
        """
        parent, reason = parent_of(run_key), storable(reason)

        async def work(connection: Connection) -> Closed:
            async with transaction(connection):
                above = await fetch(connection, Run, "get_run", run_key=parent)
                if above is not None and above.state == "stopping":
                    raise RunNotRunning(f"the run {parent} is stopping", stopping=True)
                below = await fetch_all(connection, Run, "runs_below", run_key=run_key)
                keys = [run_key, *(one.run_key for one in below)]
                await execute(connection, "close_runs", run_keys=keys, reason=reason)
                for key in keys:
                    await execute(connection, "park_left_over", run_key=key, attempt_at=attempt_at)
                run = await fetch(connection, Run, "get_run", run_key=run_key)
                tree = {"run_key": run_key, "only_parked": False, "limit": _ALL}
                actions = await fetch_all(connection, Action, "list_actions_of_tree", **tree)
                stands = None if run is None else run.stop_reason
                return Closed(stands or reason, actions)

        return await self._call(work)

    async def below(self, run_key: RunKey) -> Sequence[Run]:
        """Return the runs of a run's sub-agents, and theirs, upper ones first; it only reads."""
        return await self._fetch_all(Run, "runs_below", run_key=run_key)

    async def actions(
        self, run_key: RunKey, *, only_parked: bool = False, limit: int = 1000
    ) -> Sequence[Action]:
        """Return the actions of a run and of those below it, oldest first; it only reads."""
        return await self._fetch_all(
            Action, "list_actions_of_tree", run_key=run_key, only_parked=only_parked, limit=limit
        )


async def _unassign(connection: Connection, run_key: RunKey, attempt_at: datetime) -> None:
    """Take a run, and the runs below it, from the workflows that own them."""
    below = await fetch_all(connection, Run, "runs_below", run_key=run_key)
    keys = [run_key, *(one.run_key for one in below)]
    await execute(connection, "unassign_sub_runs", run_keys=keys, attempt_at=attempt_at)
