"""Tools under the guard: their activity, their arguments, their replies.

An activity of a tool takes the model's arguments as one JSON object, so the Temporal UI shows
what the model asked for, and returns a `Reply`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ...canonical import parse
from ...errors import ActionError, DefinitionError, IdempotencyKeyConflict
from ...ledger import Action, ActionRequest, Effect, Outcome, Question
from ..app.state_copy import GivenState, StateCopy, current_state
from ..app.tool import Tool
from ..app.tool_context import ToolContext, current_call
from ..app.tool_failure import ToolFailure
from ..contract.action_header import ActionHeader
from ..contract.activity_failure import not_started
from ..contract.deadlines import CallLimits
from ..contract.outcomes import Unrecorded
from ..contract.reply import Reply
from ..contract.sizes import MAX_CONTENT
from ..contract.wire import pack, pack_text, raw_text
from ..replies import call_reply
from ..runner.isolated_process import IsolatedFailure, run_isolated
from ..runner.tool_runner import ToolRunner
from .calling import still_in_time


class GuardedTool:
    """A tool as the guard sees it (`guarded.Guarded`)."""

    surely_ends = True

    def __init__(self, tool: Tool, runner: ToolRunner) -> None:
        self._tool = tool
        self._runner = runner

    @property
    def name(self) -> str:
        """See `Guarded`."""
        return self._tool.name

    @property
    def effect(self) -> Effect:
        """See `Guarded`."""
        return self._tool.effect

    @property
    def tries(self) -> int:
        """See `Guarded`."""
        return self._tool.tries

    @property
    def can_look_up(self) -> bool:
        """See `Guarded`."""
        return self._tool.lookup is not None

    @property
    def settles_after(self) -> timedelta:
        """See `Guarded`."""
        return self._tool.settles_after

    @property
    def takes_state(self) -> bool:
        """See `Guarded`."""
        return self._tool.state is not None

    def check_state(self, given: GivenState) -> None:
        """See `Guarded`."""
        self._tool.copy_of(given)

    @property
    def may_interrupt(self) -> bool:
        """See `Guarded`."""
        return self._tool.may_interrupt

    @property
    def answer_expires(self) -> timedelta | None:
        """See `Guarded`."""
        return self._tool.approval_expires

    def limits(self, header: ActionHeader) -> CallLimits:
        """See `Guarded`: what the run resolved when it started."""
        return CallLimits(header.attempt_seconds, header.node_seconds).left

    def failure(self, error: BaseException) -> ToolFailure:
        """See `Guarded`."""
        return error.failure if isinstance(error, IsolatedFailure) else self._tool.failure(error)

    async def ask(self, context: ToolContext, request_args: str) -> Any:
        """See `Guarded`."""
        lookup = self._tool.lookup
        assert lookup is not None, "claimed with can_look_up"
        args = self._tool.parameters(request_args)
        found = await self._runner.run(
            self._tool.name,
            lambda: lookup(args, context.idempotency_key),
            is_async=inspect.iscoroutinefunction(lookup),
        )
        if found is None and not self._tool.returns_nothing:
            raise DefinitionError(
                f"the lookup of {self._tool.name!r} returned None: return NEVER_HAPPENED, or "
                "what the call returned"
            )
        return found

    def prepare(self, args: Sequence[Any], header: ActionHeader) -> ActionRequest:
        """See `Guarded`."""
        effective = self._tool.effective(parse(raw_text(args[0])))
        forward = header.purpose != "undo"
        return ActionRequest(
            run_key=header.run_key,
            position=header.position,
            tool=self._tool.name,
            args=effective,
            effect=self._tool.effect,
            requested_digest=header.requested_digest,
            effective_digest=self._tool.sameness(effective),
            domain_key=self._tool.domain_key(effective),
            key_ttl=self._tool.key_ttl,
            thread_id=header.thread_id or header.run_key,
            can_look_up=self.can_look_up,
            settles_after=self.settles_after,
            compensator=self._compensator if forward else None,
            undoes=header.undoes,
            undoes_domain_key=self._tool.undoes_key(effective) if forward else None,
            purpose=header.purpose,
            lookup_only=header.lookup_only,
            owner=activity.info().workflow_id,
            detached=self._tool.detached and header.purpose == "forward",
        )

    @property
    def _compensator(self) -> str | None:
        return None if self._tool.compensate is None else self._tool.compensate.name

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """See `Guarded`."""
        return [pack_text(request_args)]

    def encode(self, value: Any) -> Outcome:
        """See `Guarded`."""
        if isinstance(value, Outcome):
            return value  # encoded where the tool ran: a large one takes a while
        return self._tool.encode(value)

    def reply_done(
        self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None
    ) -> RawValue:
        """See `Guarded`."""
        bound = MAX_CONTENT if limit is None else limit
        return _pack(call_reply.done(key or None, outcome, duplicate_of=duplicate_of, limit=bound))

    def reply_raised(self, failure: ToolFailure, error: BaseException | None) -> RawValue:
        """See `Guarded`: a READ that failed has had no effect."""
        return _pack(call_reply.done(None, failure.without_effect))

    def reply_unknown(self, action: Action) -> RawValue:
        """See `Guarded`."""
        return _pack(call_reply.unknown(action))

    def reply_accepted(self, action: Action, *, own: bool) -> RawValue:
        """See `Guarded`."""
        return _pack(call_reply.accepted(action, own=own))

    def reply_refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> RawValue:
        """See `Guarded`."""
        return _pack(call_reply.refused(error, key=key or None))

    def records_later(self, unrecorded: Unrecorded) -> bool:
        """See `Guarded`: by way of history, if history can carry it."""
        return len(unrecorded.result) <= MAX_CONTENT

    def reply_unrecorded(self, unrecorded: Unrecorded) -> RawValue:
        """See `Guarded`."""
        return _pack(call_reply.unrecorded(unrecorded))

    def reply_asked(self, question: Question) -> RawValue:
        """See `Guarded`: the run waits for the answer, and calls again."""
        return _pack(call_reply.question(question))

    def not_started(self, reason: str) -> ApplicationError:
        """See `Guarded`: the run starts it afresh."""
        return not_started(reason)


def tool_activity(tool: Tool, runner: ToolRunner) -> Callable[[RawValue], Any]:
    """Return the activity of a tool, which runs where ``runner`` and its isolation say.

    It only ever runs under the guard, which gives it the *stored* arguments.
    """

    @activity.defn(name=tool.name)
    async def run(arguments: RawValue) -> Any:
        text, context, state = raw_text(arguments), current_call.get(), current_state.get()
        if tool.isolation == "process":
            still_in_time()
            return await run_isolated(tool, text, context, state)
        copy = tool.copy_of(state)
        bound = tool.bind(text, context, copy)
        return await runner.run(
            tool.name, lambda: _called(tool, bound, copy), is_async=tool.is_async
        )

    return run


def _called(tool: Tool, bound: dict[str, Any], copy: StateCopy | None) -> Any:
    still_in_time()
    return tool.finished(tool.fn(**bound), copy)


def _pack(reply: Reply) -> RawValue:
    return pack(reply)
