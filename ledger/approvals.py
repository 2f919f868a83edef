"""`ApprovalLedger`: what a person has to approve, and the one decision about it.

The row names the call (its action key), what it would do (effective arguments, which never
change) and until when. A decision is a compare-and-set on the row: the first one counts, and
it outlives a reset, a workflow retry and a continue-as-new of the run that asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Literal

from ..canonical import storable
from ..errors import ApprovalRefused, PlanDivergence, RunNotRunning
from ..identity import ActionKey, Position, RunKey, action_key, epoch_of, step_of
from .calls import Connection, LedgerCalls, Row, execute, fetch

Decision = Literal["approved", "rejected", "expired"]


@dataclass(frozen=True)
class Approval:
    """A row of ``agent_approvals``; times are by the database's clock."""

    key: ActionKey
    """The action key of the call."""
    run_key: RunKey
    position: Position
    thread_id: str
    tool: str
    args: str
    """JSON text: what the person decides about."""
    requested_digest: str
    asked_at: datetime
    expires_at: datetime | None
    decision: Decision | None
    decided_by: str | None
    decided_at: datetime | None
    reason: str | None
    edited_args: str | None
    """JSON text: what the person made of them."""
    workflow_id: str
    """Of its run: where a decision goes."""
    now: datetime
    """The database's clock when the row was read."""

    @classmethod
    def from_row(cls, row: Row) -> Approval:
        """Read a row as psycopg gives it, which may have columns of a later release."""
        return cls(**{name: row[name] for name in _COLUMNS})

    @property
    def state(self) -> Literal["waiting", "approved", "rejected", "expired"]:
        """In one word."""
        if self.decision is not None:
            return self.decision
        over = self.expires_at is not None and self.expires_at <= self.now
        return "expired" if over else "waiting"

    @property
    def approved_args(self) -> str:
        """What is to be carried out (JSON text)."""
        return self.args if self.edited_args is None else self.edited_args


_COLUMNS = tuple(found.name for found in fields(Approval))


@dataclass(frozen=True)
class ApprovalRequest:
    """What is asked."""

    run_key: RunKey
    position: Position
    thread_id: str
    tool: str
    args: str
    """JSON text of the effective arguments."""
    requested_digest: str
    expires_after: timedelta | None
    """None: it waits for ever."""

    @property
    def key(self) -> ActionKey:
        """The action key of the call."""
        return action_key(self.run_key, self.position)


class ApprovalLedger(LedgerCalls):
    """Approvals over an open psycopg pool (see `ledger_pool`)."""

    async def ask(
        self, request: ApprovalRequest, *, attempt_at: datetime | None = None
    ) -> Approval:
        """Ask, or return what was asked and decided. Safe to repeat: the first question stands.

        Args:
            request: What is asked.
            attempt_at: When the caller's attempt began, by the engine's clock. A run that had
                ended before goes on with it, as with a claim: a request may have come while its
                conversation's run was closed.

        Raises:
            PlanDivergence: Another call was asked about at this position; final.
            RunNotRunning: The run may start nothing any more.
            LedgerUnavailable: No answer within the deadline.
        """
        parameters = {
            **vars(request),
            "key": request.key,
            "epoch": epoch_of(request.position),
            "step": step_of(request.position) or 0,
        }

        async def work(connection: Connection) -> Approval:
            await execute(connection, "ask_approval", **parameters)
            row = await fetch(connection, "get_approval", key=request.key)
            if row is None and attempt_at is not None:
                at = {"run_key": request.run_key, "attempt_at": attempt_at}
                await fetch(connection, "reopen_run", **at)
                await execute(connection, "ask_approval", **parameters)
                row = await fetch(connection, "get_approval", key=request.key)
            if row is None:
                raise await _not_running(connection, request)
            return Approval.from_row(row)

        found = await self._call(work)
        check_same(found, request.tool, request.requested_digest)
        return found

    async def go_on(self, run_key: RunKey, *, attempt_at: datetime) -> None:
        """Open a run again that has ended, for an execution that began after its end.

        As a claim does: a gated call comes before any. Safe to repeat.
        """
        await self._maybe("reopen_run", run_key=run_key, attempt_at=attempt_at)

    async def get(self, key: ActionKey) -> Approval | None:
        """Return one approval, expired if it is; safe to repeat."""

        async def work(connection: Connection) -> Row | None:
            await execute(connection, "expire", key=key)
            return await fetch(connection, "get_approval", key=key)

        row = await self._call(work)
        return None if row is None else Approval.from_row(row)

    async def decide(
        self,
        key: ActionKey,
        *,
        approve: bool,
        by: str,
        reason: str | None = None,
        edited_args: str | None = None,
    ) -> Approval:
        """Decide, once. Safe to repeat: the same decision by the same person changes nothing.

        Args:
            key: The action key of the call.
            approve: Whether it is carried out.
            by: Who says so; kept on the row, as `storable` has it.
            reason: Why, kept the same way; told to the model where it is rejected.
            edited_args: JSON text: other arguments than were asked about, valid for the tool.

        Raises:
            ApprovalRefused: It was decided otherwise, has expired, was never asked about, or
                its run acts no more.
            LedgerUnavailable: No answer within the deadline; decide again.
        """
        decision, by = "approved" if approve else "rejected", storable(by)
        parameters = {
            "key": key,
            "decision": decision,
            "by": by,
            "reason": None if reason is None else storable(reason),
            "edited_args": edited_args,
        }

        async def work(connection: Connection) -> Approval:
            row = await fetch(connection, "decide", **parameters)
            if row is not None:
                return Approval.from_row(row)
            await execute(connection, "expire", key=key)
            row = await fetch(connection, "get_approval", key=key)
            if row is None:
                raise ApprovalRefused(f"nothing was asked about {key}")
            found = Approval.from_row(row)
            said = (found.decision, found.decided_by, found.edited_args)
            if said == (decision, by, edited_args):
                return found
            raise ApprovalRefused(_why_not(found))

        return await self._call(work)

    async def list(
        self, run_key: RunKey | None = None, *, only_waiting: bool = True, limit: int = 1000
    ) -> Sequence[Approval]:
        """Return what waits for a person, longest first, or all that was asked; it only reads."""
        rows = await self._all(
            "list_approvals", run_key=run_key, only_waiting=only_waiting, limit=limit
        )
        return [Approval.from_row(row) for row in rows]


def check_same(found: Approval, tool: str, requested_digest: str) -> None:
    """Refuse to take an approval for another call.

    Raises:
        PlanDivergence: The plan has another call at this position than was asked about.
    """
    if found.tool != tool or found.requested_digest != requested_digest:
        raise PlanDivergence(
            f"{found.key} was asked about as {found.tool} with {found.args}; "
            f"the plan has {tool} with other arguments there"
        )


async def _not_running(connection: Connection, request: ApprovalRequest) -> RunNotRunning:
    run = await fetch(connection, "get_run", run_key=request.run_key)
    # Stopping, it is to be cancelled, and perhaps undone; it has not failed.
    stopping = run is not None and run["state"] == "stopping"
    return RunNotRunning(f"the run of {request.key} may start nothing any more", stopping=stopping)


def _why_not(found: Approval) -> str:
    if found.decision == "expired":
        return f"{found.key} has expired at {found.expires_at}; nothing was carried out"
    if found.decision is not None:
        return f"{found.key} was {found.decision} by {found.decided_by} at {found.decided_at}"
    return f"the run of {found.key} acts no more"
