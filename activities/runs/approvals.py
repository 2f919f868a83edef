"""Whether a call may be carried out: the question to a person, and the decision.

A gated call begins with `admit`: user code (validation, the predicate) has no place in a
workflow. It fixes the arguments and asks; what is carried out later are those arguments, or
what the person made of them, and nothing else. The decision is on the row before its update
answers, and the run reads it from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ...canonical import parse, scrub
from ...errors import (
    ActionError,
    ApprovalRefused,
    ConfigurationError,
    InvalidArguments,
    LedgerError,
    UnrepresentableValue,
)
from ...identity import RunKey, action_key
from ...ledger import Approval, ApprovalLedger, ApprovalRequest
from ...ledger.approvals import check_same
from ..app.app import App
from ..app.tool import Tool
from ..contract.activity_failure import as_failure
from ..contract.approvals import ADMIT, DECIDE, Admission, Admit, Decide
from ..contract.deadlines import wait_seconds
from ..contract.wire import pack, unpack
from ..model.model import over_limit
from ..replies import call_reply
from .served import served_tool

log = structlog.get_logger("commitline")

_PREDICATE_SECONDS: Final = 10.0


class ApprovalActivities:
    """The activities of calls that a person may have to approve."""

    def __init__(self, app: App, approvals: ApprovalLedger) -> None:
        self._app = app
        self._approvals = approvals

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.admit, self.decide)

    @activity.defn(name=ADMIT)
    async def admit(self, raw: RawValue) -> RawValue:
        """Say whether a call may be carried out; ask, if a person has to say so.

        Safe to repeat: what was asked first stands, and so does what was decided.
        """
        request = unpack(Admit, raw)
        key = action_key(request.run_key, request.position)
        try:
            await self._go_on(request.run_key)
            found = await self._approvals.get(key)
            if found is None:
                return pack(await self._ask(request))
            check_same(found, request.tool, request.requested_digest)
        except (ConfigurationError, LedgerError) as err:
            raise as_failure(err) from err
        return pack(_admission(found))

    @activity.defn(name=DECIDE)
    async def decide(self, raw: RawValue) -> RawValue:
        """Take a person's decision down. Safe to repeat: the first one counts."""
        said = unpack(Decide, raw)
        key = action_key(said.run_key, said.position)
        try:
            await self._go_on(said.run_key)
            edited = None
            if said.arguments is not None and said.approve:
                found = await self._approvals.get(key)
                if found is not None:
                    edited = _edited(served_tool(self._app, found.tool), said.arguments)
            decided = await self._approvals.decide(
                key,
                approve=said.approve,
                by=said.by,
                reason=said.reason or None,
                edited_args=edited,
            )
        except (ActionError, LedgerError) as err:
            raise _refusal(err) from err
        log.info(
            "approval.decided", action_key=key, decision=decided.decision, by=decided.decided_by
        )
        return pack(decided.decision)

    async def _go_on(self, run_key: RunKey) -> None:
        """Open the run again, if it was taken for gone and reset: no claim has come yet."""
        await self._approvals.go_on(run_key, attempt_at=activity.info().started_time)

    async def _ask(self, request: Admit) -> Admission:
        tool = served_tool(self._app, request.tool)
        try:
            effective = _effective(tool, request.arguments)
        except ActionError as err:
            return Admission(reply=call_reply.refused(err))
        if not await _needs_approval(tool, effective):
            return Admission(arguments=request.arguments)
        asked = await self._approvals.ask(
            ApprovalRequest(
                request.run_key,
                request.position,
                request.thread_id,
                request.tool,
                effective,
                request.requested_digest,
                tool.approval_expires,
            ),
            attempt_at=activity.info().started_time,
        )
        log.info("approval.asked", action_key=asked.key, tool=tool.name, expires=asked.expires_at)
        return _admission(asked)


def _refusal(error: ActionError | LedgerError) -> ApplicationError:
    """Return the failure that the person gets; of a refusal the SDK need not log a traceback."""
    refused = isinstance(error, ApprovalRefused | ActionError)
    return as_failure(error, benign=True if refused else None)


def _edited(tool: Tool, arguments: str) -> str:
    """Return the effective arguments that a person gives instead, as large as a model's may be."""
    if problem := over_limit(tool.name, len(arguments)):
        raise InvalidArguments(problem)
    return _effective(tool, arguments)


def _effective(tool: Tool, arguments: str) -> str:
    """Return the effective arguments of a call that can be carried out with them.

    Raises:
        ActionError: It cannot be carried out with these.
    """
    try:
        given = parse(arguments)
    except UnrepresentableValue as err:
        raise InvalidArguments(f"{tool.name}: {err.message}") from err
    effective = tool.effective(given)
    tool.domain_key(effective)
    return effective


async def _needs_approval(tool: Tool, effective: str) -> bool:
    """Ask the tool's predicate, off the worker's loop; one that hangs means yes."""
    try:
        async with asyncio.timeout(_PREDICATE_SECONDS):
            return await asyncio.to_thread(tool.needs_approval, effective)
    except TimeoutError:
        return True


def _admission(found: Approval) -> Admission:
    match found.state:
        case "approved":
            return Admission(arguments=found.approved_args)
        case "rejected":
            why = f": {scrub(found.reason, limit=1_000)}" if found.reason else ""
            told = f"not executed: rejected by {found.decided_by}{why}"
            return Admission(reply=call_reply.not_run("Rejected", told))
        case "expired":
            told = f"not executed: nobody approved it until {found.expires_at}"
            return Admission(reply=call_reply.not_run("ApprovalExpired", told))
    left = None if found.expires_at is None else (found.expires_at - found.now).total_seconds()
    return Admission(wait_seconds=wait_seconds(left))
