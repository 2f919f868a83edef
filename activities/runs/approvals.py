"""The activities of a call that a person may have to approve: check it, record the decision.

`check_approval` comes before such a call, because the tool's code (its validators, its predicate)
must not run in a workflow. It reads the ledger first: of a call that was begun, nothing is decided
any more. Else it fixes the arguments and requests the approval. What is called later are those
arguments, or what the person made of them, and nothing else. `decide` writes the
decision to the row before the workflow's update returns. The workflow reads it from there.

`Approvals` is the same for every framework. What it must know of a tool is `Approvable`: an
application's `Tool`, or a foreign one (`integrations`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Protocol

from temporalio import activity
from temporalio.common import RawValue

from ...canonical import Json, digest, parse, scrub
from ...errors import ActionError, ArgumentsChanged, InvalidArguments, UnrepresentableValue
from ...identity import RunKey, action_key
from ...ledger import Action, ActionLedger, Approval, ApprovalLedger, ApprovalRequest
from ...ledger.approvals import check_same_call
from ...logs import Log
from ...metrics import APPROVALS, count
from ..app.app import App
from ..contract.approvals import (
    CHECK_APPROVAL,
    DECIDE,
    NOT_EXECUTED,
    ApprovalState,
    CheckApproval,
    Decide,
)
from ..contract.deadlines import wait_seconds
from ..contract.encoding import pack, unpack
from ..contract.sizes import MAX_STEP
from ..guard.stored_inputs import with_inputs
from ..model.model import over_limit
from ..replies import call_reply
from ..runner.clock import began_at
from .served import served_tool

log = Log()

_PREDICATE_SECONDS: Final = 10.0


class Approvable(Protocol):
    """A tool whose calls a person may have to approve. Arguments are JSON text."""

    @property
    def name(self) -> str:
        """By which the approval is listed."""
        ...

    @property
    def approval_expires(self) -> timedelta | None:
        """How long a call waits for an approval; None is for ever."""
        ...

    def needs_approval(self, effective: str) -> bool:
        """Whether a person has to approve a call with these arguments."""
        ...

    def effective(self, requested: Json) -> str:
        """Return the arguments that a call gets.

        Raises:
            InvalidArguments: It cannot be made with these.
        """
        ...

    def domain_key(self, effective: str) -> str | None:
        """Return the domain key of a call; an error of ours where it can have none."""
        ...

    def check_stored(self, stored: str) -> object:
        """Check that a call gets exactly these arguments today.

        Raises:
            ArgumentsChanged: It does not.
        """
        ...


class ApprovalActivities:
    """The activities of calls that a person may have to approve, in the runs of an app."""

    def __init__(self, app: App, actions: ActionLedger, approvals: ApprovalLedger) -> None:
        self._approvals = Approvals(lambda name: served_tool(app, name), actions, approvals)

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.check_approval, self.decide)

    @activity.defn(name=CHECK_APPROVAL)
    async def check_approval(self, raw: RawValue) -> RawValue:
        """Return the `ApprovalState` of a call; see `Approvals.check`. Safe to repeat."""
        return pack(await self._approvals.check(unpack(CheckApproval, raw)))

    @activity.defn(name=DECIDE)
    async def decide(self, raw: RawValue) -> RawValue:
        """Record a person's decision. Safe to repeat: the first decision counts."""
        return pack(await self._approvals.decide(unpack(Decide, raw)))


class Approvals:
    """Approvals of calls.

    Args:
        served: Returns a tool by its name, or raises what Temporal tries again.
        actions: Over an open pool.
        approvals: The same.
    """

    def __init__(
        self,
        served: Callable[[str], Approvable],
        actions: ActionLedger,
        approvals: ApprovalLedger,
    ) -> None:
        self._served = served
        self._actions = actions
        self._approvals = approvals

    async def check(self, request: CheckApproval) -> ApprovalState:
        """Return the state of a call; request the approval if a person must give it.

        Safe to repeat: the first request stands, and so does the decision. A call that was begun
        without an approval, by older code or an earlier execution, goes on to its row: "not
        executed" would be false, whatever newer code requires and a person says.

        What was approved is carried out to the letter. Where the tool cannot be called with that
        any more, a person is asked again: the next generation of the approval.
        """
        await self._reopen(request.run_key)
        found, row = await self._approvals.look(
            action_key(request.run_key, request.position),
            waiting_workflow=activity.info().workflow_id,
        )
        if found is not None:
            check_same_call(found, request.tool, request.requested_digest)
        if row is not None and (not row.only_intended or (found and found.state == "approved")):
            generation = 0 if found is None else found.generation
            return replace(_begun_with(row), generation=generation)
        if found is None:
            return await self._new_state(request)
        if found.state == "approved":
            tool = self._served(found.tool)
            try:
                tool.check_stored(found.approved_args)
            except ArgumentsChanged as changed:
                return await self._ask_again(tool, request, found, changed)
        if found.state == "expired":
            count(APPROVALS, "expired")
        return _state_of(found)

    async def decide(self, said: Decide) -> str | None:
        """Record a person's decision; return the one that stands. Safe to repeat."""
        key = action_key(said.run_key, said.position)
        await self._reopen(said.run_key)
        edited = None
        if said.arguments is not None and said.approve:
            found = await self._approvals.get(key)
            if found is not None and found.generation == said.generation:
                edited = _edited(self._served(found.tool), said.arguments)
                if said.as_they_are:
                    _check_as_they_are(found, said.arguments, edited)
        decided = await self._approvals.decide(
            key,
            generation=said.generation,
            approve=said.approve,
            by=said.by,
            reason=said.reason or None,
            edited_args=edited,
        )
        if decided.decision is not None:
            count(APPROVALS, decided.decision)
        log.info(
            "approval.decided", action_key=key, decision=decided.decision, by=decided.decided_by
        )
        return decided.decision

    async def _reopen(self, run_key: RunKey) -> None:
        """Open the run again if the relay closed it as gone before a reset: no claim does it."""
        await self._approvals.reopen_run(run_key, attempt_at=began_at())

    async def _whole(self, request: CheckApproval) -> str:
        """Return the arguments, with the results that the ledger keeps for them."""
        return await with_inputs(self._actions, request.arguments, request.inputs)

    async def _new_state(self, request: CheckApproval) -> ApprovalState:
        tool = self._served(request.tool)
        try:
            effective = _effective(tool, await self._whole(request))
        except ActionError as err:
            return ApprovalState(reply=call_reply.refused(err))
        if not await _needs_approval(tool, effective):
            return ApprovalState(as_requested=True, judged=digest(parse(effective)))
        return await self._request(tool, request, effective)

    async def _ask_again(
        self, tool: Approvable, request: CheckApproval, found: Approval, changed: ArgumentsChanged
    ) -> ApprovalState:
        """Ask about what the tool makes today of the arguments, as a person may have edited them.

        Always, also where its predicate would let these pass: a person has judged other ones.
        """
        try:
            effective = _effective(tool, found.edited_args or await self._whole(request))
        except ActionError as err:
            text = f"not executed: {changed.message}; nor with those of the request: {err.message}"
            return ApprovalState(reply=call_reply.not_run(ArgumentsChanged.__name__, text))
        log.info("approval.changed", action_key=found.key, tool=tool.name, reason=changed.message)
        return await self._request(tool, request, effective, generation=found.generation + 1)

    async def _request(
        self, tool: Approvable, request: CheckApproval, effective: str, *, generation: int = 1
    ) -> ApprovalState:
        approval = await self._approvals.request(
            ApprovalRequest(
                request.run_key,
                request.position,
                request.thread_id,
                request.tool,
                effective,
                request.requested_digest,
                tool.approval_expires,
                generation,
                activity.info().workflow_id,
            ),
            attempt_at=began_at(),
        )
        count(APPROVALS, "requested")
        log.info(
            "approval.requested",
            action_key=approval.key,
            generation=approval.generation,
            tool=tool.name,
            expires=approval.expires_at,
        )
        return _state_of(approval)


def _begun_with(row: Action) -> ApprovalState:
    """Return with which arguments a call was scheduled that has a row.

    Those that were approved are stored as they were scheduled; else it was the plan's.
    """
    if digest([parse(row.args)]) != row.requested_digest:
        return ApprovalState(as_requested=True)
    return _made_with(row.args)


def _made_with(args: str) -> ApprovalState:
    """Return that a call is made with these arguments; large ones stay in the ledger."""
    if len(args) <= MAX_STEP:
        return ApprovalState(arguments=args)
    return ApprovalState(stored=digest([parse(args)]))


def _edited(tool: Approvable, arguments: str) -> str:
    """Return the effective arguments that a person gives instead, as large as a model's may be."""
    if problem := over_limit(tool.name, len(arguments)):
        raise InvalidArguments(problem)
    return _effective(tool, arguments)


def _check_as_they_are(approval: Approval, given: str, edited: str) -> None:
    """Refuse arguments of which the tool makes others, where the given ones were authorized.

    A default that is filled in, and a text that is read as a number, would pass by whoever said
    that the person may give these.
    """
    if digest(parse(given)) != digest(parse(edited)):
        raise InvalidArguments(
            f"{approval.tool} would be carried out with {edited}, and not with what was "
            "authorized: give all of its arguments, as it takes them"
        )


def _effective(tool: Approvable, arguments: str) -> str:
    """Return the effective arguments of a call that can be made with them.

    Raises:
        ActionError: The call cannot be made with these.
    """
    try:
        given = parse(arguments)
    except UnrepresentableValue as err:
        raise InvalidArguments(f"{tool.name}: {err.message}") from err
    effective = tool.effective(given)
    tool.domain_key(effective)
    return effective


async def _needs_approval(tool: Approvable, effective: str) -> bool:
    """Call the tool's predicate, off the worker's event loop; one that hangs means yes."""
    try:
        async with asyncio.timeout(_PREDICATE_SECONDS):
            return await asyncio.to_thread(tool.needs_approval, effective)
    except TimeoutError:
        return True


def _state_of(found: Approval) -> ApprovalState:
    match found.state:
        case "approved":
            made = _made_with(found.approved_args)
            judged = digest(parse(found.approved_args))
            return replace(made, judged=judged, generation=found.generation)
        case "rejected":
            why = f": {scrub(found.reason, limit=1_000)}" if found.reason else ""
            text = f"{NOT_EXECUTED}rejected by {found.decided_by}{why}"
            reply = call_reply.not_run("Rejected", text)
            return ApprovalState(reply=reply, generation=found.generation)
        case "expired":
            text = f"{NOT_EXECUTED}nobody approved it until {found.expires_at}"
            reply = call_reply.not_run("ApprovalExpired", text)
            return ApprovalState(reply=reply, generation=found.generation)
    left = None if found.expires_at is None else (found.expires_at - found.now).total_seconds()
    return ApprovalState(wait_seconds=wait_seconds(left), generation=found.generation)
