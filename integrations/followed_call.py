"""One guarded call, as its workflow makes it: until the agent can be told what became of it.

a person may have to approve it -> wait, without a worker; then call, or tell that it was rejected
the server gives its activity up -> have the ledger say what became of it

Each of the two adds commands to the history, so each stands behind a patch of its own: a history
without it goes on as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, RetryState
from temporalio.exceptions import TimeoutError as TimedOutError
from temporalio.worker import StartActivityInput

from ..activities.contract.action_header import HEADER, ActionHeader
from ..activities.contract.approvals import ApprovalState, CheckApproval, Decide
from ..activities.contract.encoding import pack, unpack
from ..activities.contract.reply import Reply
from ..activities.replies import call_reply
from ..canonical import dumps
from ..errors import ArgumentsChanged
from ..identity import action_key
from ..shown import markdown_line
from ..workflows.activity_calls import as_of_activity
from ..workflows.approval_wait import wait_for_approval
from .call_messages import (
    CHECK_CALL,
    DECIDE_CALL,
    SETTLE_CALL,
    CheckCall,
    SettleCall,
    SettledCall,
)
from .effect_rule import EffectRule
from .family import ToolCall
from .gates import Gates
from .telling import Telling, ToldReplies, told_by

PATCHED: Final = "commitline"
"""The patch of each workflow that has one of the next: by it they are found in Temporal."""
GATED: Final = "commitline-approval"
"""The patch of a call that waits for an approval; the call's position follows."""
SETTLED: Final = "commitline-settled"
"""The patch of a call that the server has given up; the same."""
SETTLED_HERE: Final = "commitline-settled-here"
"""The patch of such a call of which the workflow's own queue was asked, too; the same."""
_ATTEMPT: Final = timedelta(seconds=15)
_NO_WORKER: Final = timedelta(seconds=30)
"""After which no worker of a queue is taken to be there. For the tool's queue, that may be why its
call was given up."""
_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10)
)
_LONGEST_PAUSE: Final = 30
"""Seconds at most before a call is judged again whose tool has changed; at first it is one."""

T = TypeVar("T")
Handle: TypeAlias = workflow.ActivityHandle[Any]


@dataclass(frozen=True)
class FollowedCall:
    """One call."""

    start: Callable[[StartActivityInput], Handle]
    """Starts an activity."""
    input: StartActivityInput
    call: ToolCall
    header: ActionHeader
    style: Telling
    """How the workflow is told of what is no result."""
    replies: ToldReplies
    """The same, as the family has it."""

    def begin(self, rule: EffectRule, gates: Gates, *, first: bool) -> Handle:
        """Make the call, or have it wait; return its handle.

        Args:
            rule: Of the tool.
            gates: Of the workflow.
            first: The run has made no guarded call before.
        """
        # What has begun to wait goes on, also where the rule says otherwise by now.
        if (rule.gated or workflow.unsafe.is_replaying()) and self._is_patched(GATED):
            return _task(self._gated(rule, gates, first=first))
        handle = self._start(self.header)
        if self.style == "failure" and not self._may_be_given_up:
            return handle
        return _task(self._end(handle))

    @property
    def _may_be_given_up(self) -> bool:
        """Whether the server can give the call up: attempts are not limited, and time may be."""
        given = self.input
        return bool(given.schedule_to_close_timeout or given.schedule_to_start_timeout)

    def _is_patched(self, patch: str) -> bool:
        """Whether commands may be added for this call.

        The SDK keeps the answer of a patch for the whole execution, and calls of it from before
        the patch have none. So each call asks for itself.
        """
        patched = workflow.patched(f"{patch}-{self.header.position}")
        return patched and workflow.patched(PATCHED)

    def _start(self, header: ActionHeader) -> Handle:
        headers = {**self.input.headers, HEADER: header.to_payload()}
        return self.start(replace(self.input, headers=headers))

    # --- the approval ---------------------------------------------------------------------------

    async def _gated(self, rule: EffectRule, gates: Gates, *, first: bool) -> Any:
        """Make the call after a person has approved it, if one must, and with what was approved."""
        at, tool, pause = self.header.position, self.call.tool, 1
        expires = rule.approval_expires
        asked = CheckApproval(
            self.header.run_key,
            at,
            self.header.run_key,
            tool,
            dumps(self.call.arguments),
            self.header.requested_digest,
        )
        request = CheckCall(
            asked,
            always=rule.approve is True,
            expires_seconds=None if expires is None else expires.total_seconds(),
            first=first,
        )
        gates.waits(at, self._record)
        while True:
            state = await wait_for_approval(
                lambda: self._ask(ApprovalState, CHECK_CALL, request, f"May {tool} be called?"),
                at=at,
                tool=tool,
                decided=gates.decided,
            )
            if state.reply is not None:
                return self._tell(state.reply)
            approved = not state.as_requested
            header = replace(self.header, judged=state.judged, approved=approved)
            try:
                return await self._end(self._start(header), changes_count=True)
            except _Changed:
                # During a deploy the workers that judge and those that call may differ for a while.
                await workflow.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _record(self, said: Decide) -> RawValue:
        what = f"{said.by} decides about {said.position}"
        return cast("RawValue", await self._start_ours(DECIDE_CALL, said, what))

    # --- the end --------------------------------------------------------------------------------

    async def _end(self, handle: Handle, *, changes_count: bool = False) -> Any:
        """Return what the agent is told of a call that was started."""
        try:
            return await handle
        except ActivityError as err:
            if changes_count and _is_changed(err):
                raise _Changed from err
            if _is_given_up(err) and self._is_patched(SETTLED):
                return await self._settle(err)
            return _told_of(err, self.style)

    async def _settle(self, given_up: ActivityError) -> Any:
        """Return what the ledger says of a call whose activity the server gave up."""
        assert self.call.rule is not None, "only such a call is followed"
        request = SettleCall(
            self.header.run_key,
            self.header.position,
            self.call.tool,
            dumps(self.call.arguments),
            self.header.requested_digest,
            self.call.rule.effect,
            _why(given_up),
        )
        what = f"What became of {self.call.tool}?"
        try:
            settled = await self._ask_either(request, what)
        except ActivityError as err:
            if not isinstance(err.cause, TimedOutError):
                raise
            why = f"{request.why}, and no worker is there to read the ledger"
            key = action_key(request.run_key, request.position)
            return self._tell(call_reply.unknown_at(key, why))
        if settled.reply is not None:
            return self._tell(settled.reply)
        outcome = settled.outcome
        assert outcome is not None, "one of the two is there"
        duplicate_of = settled.duplicate_of
        return self._told(lambda: self.replies.done(settled.key, outcome, duplicate_of, None))

    async def _ask_either(self, request: SettleCall, what: str) -> SettledCall:
        """Ask on the queue of the tool; if it has no worker any more, on the workflow's own.

        A queue may have one worker only, which is gone for good.

        Raises:
            ActivityError: Neither has a worker with activities.
        """
        own = workflow.info().task_queue
        try:
            return await self._ask(SettledCall, SETTLE_CALL, request, what, waits=_NO_WORKER)
        except ActivityError as err:
            elsewhere = self.input.task_queue not in (None, own)
            gone = elsewhere and isinstance(err.cause, TimedOutError)
            if not gone or not self._is_patched(SETTLED_HERE):
                raise
        return await self._ask(SettledCall, SETTLE_CALL, request, what, waits=_NO_WORKER, on=own)

    def _tell(self, reply: Reply) -> Any:
        return self._told(lambda: self.replies.tell(reply))

    def _told(self, say: Callable[[], Any]) -> Any:
        """Return, or raise, what the workflow would get of its activity."""
        try:
            raw = say()
        except ApplicationError as err:
            failed = as_of_activity(
                err, self.input.activity, retry_state=RetryState.NON_RETRYABLE_FAILURE
            )
            return _told_of(failed, self.style)
        kind = self.input.ret_type
        types = None if kind is None else [kind]
        return workflow.payload_converter().from_payloads([raw.payload], types)[0]

    # --- activities of our own, on the queue of the tool or another -------------------------------

    async def _ask(
        self,
        kind: type[T],
        activity: str,
        request: Any,
        what: str,
        *,
        waits: timedelta | None = None,
        on: str | None = None,
    ) -> T:
        return unpack(kind, await self._start_ours(activity, request, what, waits=waits, on=on))

    def _start_ours(
        self,
        activity: str,
        request: Any,
        what: str,
        *,
        waits: timedelta | None = None,
        on: str | None = None,
    ) -> Handle:
        return self.start(
            replace(
                self.input,
                activity=activity,
                args=[pack(request)],
                activity_id=None,
                task_queue=on or self.input.task_queue,
                schedule_to_close_timeout=None,
                schedule_to_start_timeout=waits,
                start_to_close_timeout=_ATTEMPT,
                heartbeat_timeout=None,
                retry_policy=_RETRY,
                cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
                headers={},
                summary=markdown_line(what),
                arg_types=None,
                ret_type=RawValue,
            )
        )


def told_as(style: Telling, handle: Handle) -> Handle:
    """Return the handle of a call whose failure by the guard is told as its result.

    In the history it stays a failure. Frameworks take a tool's exception for a failed run, or
    tell the model to try again.
    """

    async def result() -> Any:
        try:
            return await handle
        except ActivityError as err:
            return _told_of(err, style)

    return _task(result())


def _told_of(error: ActivityError, style: Telling) -> Any:
    """Return what is told of a call that failed by the guard; raise where it is a failure."""
    told = told_by(error)
    if told is None or style == "failure":
        raise error
    return dumps(told) if style == "text" else told


class _Changed(Exception):
    """The tool would get other arguments than were approved, and was not called."""


def _is_changed(error: ActivityError) -> bool:
    cause = error.cause
    return isinstance(cause, ApplicationError) and cause.type == ArgumentsChanged.__name__


def _is_given_up(error: ActivityError) -> bool:
    """Whether the server has ended the activity: nobody knows by that what became of the call."""
    return isinstance(error.cause, TimedOutError) or error.retry_state is RetryState.TIMEOUT


def _why(error: ActivityError) -> str:
    cause = error.cause
    kind = cause.type if isinstance(cause, TimedOutError) else None
    named = "SCHEDULE_TO_CLOSE" if kind is None else kind.name
    return f"the server ended its activity by the time-out {named.lower()}"


def _task(work: Any) -> Handle:
    # Nothing is done with a handle but what a task can do: to await it, and to cancel it.
    return cast("Handle", asyncio.create_task(work))
