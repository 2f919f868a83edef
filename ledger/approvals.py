"""`ApprovalLedger`: the calls that a person has to approve, and the one decision about each.

The row names the call (its action key), what it would do (effective arguments, which never
change) and until when. A decision is a compare-and-set on the row: the first one counts, and
it outlives a reset, a workflow retry and a continue-as-new of the run that requested it.

Where a deploy has changed the tool, so that what was approved cannot be carried out to the letter,
there is another row: the approval's next generation. No decision on one counts for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from ..canonical import storable
from ..errors import ApprovalRefused, PlanDivergence, RunNotRunning
from ..idempotency_key import with_generation
from ..identity import ActionKey, Position, RunKey, action_key, epoch_of, step_of
from .action_records import Action
from .run_records import Run
from .run_rules import not_running
from .statements import Connection, LedgerCalls, execute, fetch

_NOT_MADE: Final = "the call is not made any more"

Decision = Literal["approved", "rejected", "expired"]


@dataclass(frozen=True)
class Approval:
    """A row of ``agent_approvals``; times are by the database's clock."""

    key: ActionKey
    """The action key of the call."""
    run_key: RunKey
    """The run that makes the call."""
    position: Position
    """Where in the run the call stands."""
    thread_id: str
    """The conversation."""
    tool: str
    """The name of the tool."""
    args: str
    """JSON text: what the person decides about."""
    requested_digest: str
    """Of the arguments as the plan had them."""
    requested_at: datetime
    """When the approval was requested."""
    expires_at: datetime | None
    """Until when it may be decided; None is for ever."""
    decision: Decision | None
    """None while it waits."""
    decided_by: str | None
    """The person; ``nobody`` where it has expired."""
    decided_at: datetime | None
    """When they decided."""
    reason: str | None
    """Why, in the person's words."""
    edited_args: str | None
    """JSON text: the arguments as the person changed them."""
    workflow_id: str
    """Of its run."""
    now: datetime
    """The database's clock when the row was read."""
    withdrawn_at: datetime | None = None
    """When its run was forked to before the call, which it does not make any more."""
    run_over: bool = False
    """Whether its run acts no more; `ApprovalLedger.list` says so."""
    generation: int = 1
    """Which approval of the call it is: the next one is requested where the tool has changed since
    the decision. A decision is about one generation."""
    waiting_workflow: str | None = None
    """The id of the workflow that waits for the decision: the run's, or a child workflow of another
    framework, whose calls belong to its parent's run. None where nobody has said."""

    @property
    def at(self) -> str:
        """What names it within its run: its position, from the second on with its generation."""
        return with_generation(self.position, self.generation)

    @property
    def state(self) -> Literal["waiting", "approved", "rejected", "expired", "withdrawn"]:
        """In one word; nobody has to decide about one that is ``withdrawn``."""
        if self.decision is not None:
            return self.decision
        if self.withdrawn_at is not None or self.run_over:
            return "withdrawn"
        over = self.expires_at is not None and self.expires_at <= self.now
        return "expired" if over else "waiting"

    @property
    def approved_args(self) -> str:
        """What is to be carried out (JSON text)."""
        return self.args if self.edited_args is None else self.edited_args


@dataclass(frozen=True)
class ApprovalRequest:
    """A call for which an approval is requested."""

    run_key: RunKey
    """The run that makes the call."""
    position: Position
    """Where in the run the call stands."""
    thread_id: str
    """The conversation."""
    tool: str
    """The name of the tool."""
    args: str
    """JSON text of the effective arguments."""
    requested_digest: str
    """Of the arguments as the plan had them."""
    expires_after: timedelta | None
    """None: it waits for ever."""
    generation: int = 1
    """Over one only where the one before was approved, and cannot be carried out any more."""
    waiting_workflow: str | None = None
    """The id of the workflow that waits for the decision."""

    @property
    def key(self) -> ActionKey:
        """The action key of the call."""
        return action_key(self.run_key, self.position)


class ApprovalLedger(LedgerCalls):
    """Approvals over an open psycopg pool (see `ledger_pool`)."""

    async def request(
        self, request: ApprovalRequest, *, attempt_at: datetime | None = None
    ) -> Approval:
        """Request an approval, or return the one that was requested, with its decision.

        Safe to repeat: the first request stands.

        Args:
            request: The call.
            attempt_at: When the caller's attempt began, by the engine's clock. A run that had
                ended before goes on with it, as with a claim: a request may have come while its
                conversation's run was closed.

        Raises:
            PlanDivergence: The approval of another call was requested at this position; final.
            RunNotRunning: The run may start nothing any more.
            LedgerUnavailable: No answer within the deadline.
        """
        parameters = {
            **vars(request),
            "key": request.key,
            "epoch": epoch_of(request.position),
            "step": step_of(request.position) or 0,
        }

        async def request_it(connection: Connection) -> Approval | None:
            await execute(connection, "request_approval", **parameters)
            return await fetch(connection, Approval, "get_approval", key=request.key)

        async def work(connection: Connection) -> Approval:
            found = await request_it(connection)
            if found is None and attempt_at is not None:
                at = {"run_key": request.run_key, "attempt_at": attempt_at}
                await execute(connection, "reopen_run", **at)
                found = await request_it(connection)
            if found is None:
                raise await _not_running(connection, request)
            return found

        found = await self._call(work)
        check_same_call(found, request.tool, request.requested_digest)
        return found

    async def reopen_run(self, run_key: RunKey, *, attempt_at: datetime) -> None:
        """Open a run again that has ended, for an execution that began after its end.

        As a claim does: a call that is approved first comes before any claim. Safe to repeat.
        """
        await self._execute("reopen_run", run_key=run_key, attempt_at=attempt_at)

    async def get(self, key: ActionKey) -> Approval | None:
        """Return the newest approval of a call, expired if it is; safe to repeat."""

        async def work(connection: Connection) -> Approval | None:
            await execute(connection, "expire_approval", key=key)
            return await fetch(connection, Approval, "get_approval", key=key)

        return await self._call(work)

    async def look(
        self, key: ActionKey, *, waiting_workflow: str | None = None
    ) -> tuple[Approval | None, Action | None]:
        """Return the newest approval of a call, expired if it is, and the row of the call itself.

        A call that has a row was decided about before, whatever newer code would ask today. Safe
        to repeat.

        Args:
            key: The action key of the call.
            waiting_workflow: The id of the workflow that waits from now on: whoever decides after
                this look tells it.
        """

        async def work(connection: Connection) -> tuple[Approval | None, Action | None]:
            if waiting_workflow is not None:
                waits = {"key": key, "waiting_workflow": waiting_workflow}
                await execute(connection, "wait_for_approval", **waits)
            await execute(connection, "expire_approval", key=key)
            approval = await fetch(connection, Approval, "get_approval", key=key)
            return approval, await fetch(connection, Action, "get_action", key=key)

        return await self._call(work)

    async def decide(
        self,
        key: ActionKey,
        *,
        approve: bool,
        by: str,
        generation: int = 1,
        reason: str | None = None,
        edited_args: str | None = None,
    ) -> Approval:
        """Decide, once. Safe to repeat: the same decision by the same person changes nothing.

        Args:
            key: The action key of the call.
            approve: Whether it is carried out.
            by: The person; kept on the row, as `storable` has it.
            generation: Which approval of the call the person has read.
            reason: Why, kept the same way; the model reads it where the call is rejected.
            edited_args: JSON text: other arguments than the requested ones, valid for the tool.

        Raises:
            ApprovalRefused: It was decided otherwise, has expired, was never requested, was
                requested anew since, or its run acts no more.
            LedgerUnavailable: No answer within the deadline; decide again.
        """
        decision, by = "approved" if approve else "rejected", storable(by)
        parameters = {
            "key": key,
            "generation": generation,
            "decision": decision,
            "by": by,
            "reason": None if reason is None else storable(reason),
            "edited_args": edited_args,
        }

        async def work(connection: Connection) -> Approval:
            decided = await fetch(connection, Approval, "decide", **parameters)
            if decided is not None:
                return decided
            await execute(connection, "expire_approval", key=key)
            found = await fetch(connection, Approval, "get_approval", key=key)
            if found is None:
                raise ApprovalRefused(f"no approval of {key} was requested")
            check_generation(found, generation)
            earlier = (found.decision, found.decided_by, found.edited_args)
            if earlier == (decision, by, edited_args):
                return found
            raise refusal_of(found)

        return await self._call(work)

    async def list(
        self, run_key: RunKey | None = None, *, only_waiting: bool = True, limit: int = 1000
    ) -> Sequence[Approval]:
        """Return those that wait for a person, longest first, or all of them; it only reads."""
        return await self._fetch_list(
            Approval, "list_approvals", run_key=run_key, only_waiting=only_waiting, limit=limit
        )


def check_same_call(found: Approval, tool: str, requested_digest: str) -> None:
    """Refuse to take an approval for another call.

    Raises:
        PlanDivergence: The plan has another call at this position than the requested one.
    """
    if found.tool != tool or found.requested_digest != requested_digest:
        raise PlanDivergence(
            f"the approval of {found.key} was requested for {found.tool} with {found.args}; "
            f"the plan has {tool} with other arguments there"
        )


def check_generation(newest: Approval, generation: int) -> None:
    """Refuse a decision about another approval of the call than the newest.

    Raises:
        ApprovalRefused: It is about arguments that are not carried out, or never waited.
    """
    if generation < newest.generation:
        raise ApprovalRefused(
            f"{newest.key} was asked about again, as {newest.at}: its tool has changed, and cannot "
            "be called with what was approved before. Look at its arguments, and decide about those"
        )
    if generation > newest.generation:
        raise ApprovalRefused(f"no approval {generation} of {newest.key} was requested")


async def _not_running(connection: Connection, request: ApprovalRequest) -> RunNotRunning:
    run = await fetch(connection, Run, "get_run", run_key=request.run_key)
    # A stopping run is cancelled, and perhaps undone; it has not failed.
    return not_running(run, f"the run of {request.key} may start nothing any more")


def refusal_of(found: Approval) -> ApprovalRefused:
    """Return why another decision about a call does not count."""
    return ApprovalRefused(_why_not(found))


def _why_not(found: Approval) -> str:
    if found.decision == "expired":
        return f"{found.key} has expired at {found.expires_at}; nothing was carried out"
    if found.decision is not None:
        return f"{found.key} was {found.decision} by {found.decided_by} at {found.decided_at}"
    if found.withdrawn_at is not None:
        return f"the run of {found.key} went another way at {found.withdrawn_at}: {_NOT_MADE}"
    return f"the run of {found.key} acts no more"
