"""`RunLedger`: the runs: opened, stopped, ended.

Every method is one bounded ledger call (see `statements`), which opens its own transaction or is a
single statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ..canonical import storable
from ..errors import RunInputConflict, RunNotRunning
from ..identity import RunKey, parent_of
from .run_records import Run
from .statements import Connection, LedgerCalls, execute, fetch, fetch_one
from .transaction import transaction


class RunLedger(LedgerCalls):
    """Runs over an open psycopg pool (see `ledger_pool`)."""

    async def open(
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
        lost: bool = False,
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
            namespace: Where its workflow lives; the relay of another one does not look for it.
            lost: It was registered before, and the ledger has lost that.

        Raises:
            RunInputConflict: The run exists with other input.
            RunNotRunning: It is a sub-agent's, and another workflow acts for it by now.
            LedgerUnavailable: No answer within the deadline; nothing is lost by trying again.
        """
        parent = parent_of(run_key)
        run = await self._fetch_one(
            Run,
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
            lost=lost,
        )
        if not run.is_owned_by(workflow_id):
            raise RunNotRunning(f"{run_key} is carried out by {run.owner or 'no workflow'} by now")
        if input_digest and run.input_digest != input_digest:
            raise RunInputConflict(f"{run_key} was opened with other input")
        return run

    async def stop(
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
            compensate: Whether its actions are to be undone.
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

        async def work(connection: Connection) -> Run:
            async with transaction(connection):
                run = await fetch_one(connection, Run, "stop_run", **parameters)
                # A statement of its own: it sees the sub-agents' runs that were begun until the
                # one before had its lock. Each such beginning takes that lock in share.
                await execute(connection, "stop_sub_runs", run_key=run_key, reason=reason)
                return run

        return await self._call(work)

    async def end(self, run_key: RunKey, *, attempt_at: datetime, owner: str | None = None) -> Run:
        """End a run: no attempt that began before ``attempt_at`` claims anything any more.

        What it leaves dispatched is parked: its calls have ended, and none of them will record.
        A run that is being undone is left as it is: its undo ends it.
        Safe to repeat. A run that the ledger does not know raises `RunNotRunning`.

        Args:
            run_key: The run.
            attempt_at: When the caller's attempt began, by the engine's clock.
            owner: The workflow that ends it. A sub-agent's run for which another one acts by
                now is left as it is; None ends it all the same.
        """
        parameters = {"run_key": run_key, "attempt_at": attempt_at, "owner": owner}

        async def work(connection: Connection) -> Run | None:
            async with transaction(connection):
                ended = await fetch(connection, Run, "end_run", **parameters)
                if ended is None:
                    return await fetch(connection, Run, "get_run", run_key=run_key)
                await execute(connection, "park_left_over", **parameters)
                return ended

        run = await self._call(work)
        if run is None:
            raise RunNotRunning(f"{run_key} is not in the ledger", known=False)
        return run

    async def get(self, run_key: RunKey) -> Run | None:
        """Return one run, or None. Safe to repeat; it only reads."""
        return await self._fetch(Run, "get_run", run_key=run_key)

    async def known(self, runs: Sequence[tuple[str, RunKey]]) -> frozenset[str]:
        """Return the workflow ids of those runs that the ledger has; it only reads.

        Args:
            runs: Each with its workflow's id and its key. A sub-agent's is known by the id.
        """
        workflows, keys = [one for one, _ in runs], [key for _, key in runs]
        found = await self._fetch_all(Run, "known_runs", run_keys=keys, workflow_ids=workflows)
        return frozenset(run.workflow_id for run in found)

    async def timeline(self) -> str:
        """Return what changes where the ledger becomes another one, or its server starts anew."""
        row = await self._fetch_row("get_timeline")
        assert row is not None, "get_timeline returns a row"
        return str(row["timeline"])

    async def begun(self, workflow_id: str, *, namespace: str) -> Run | None:
        """Return the newest run that a caller started under a workflow id, or None; it only reads.

        Args:
            workflow_id: The id.
            namespace: Temporal's. In another one the same id is another run.
        """
        return await self._fetch(Run, "get_begun", workflow_id=workflow_id, namespace=namespace)

    async def list(self, *, workflow_id: str | None = None, limit: int = 100) -> Sequence[Run]:
        """Return the newest runs first, those of one workflow id if it is given; it only reads."""
        return await self._fetch_list(Run, "list_runs", workflow_id=workflow_id, limit=limit)
