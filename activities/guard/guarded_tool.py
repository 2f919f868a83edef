"""Tools under the guard: their activity, their arguments, their replies.

An activity of a tool takes the model's arguments as one JSON object, so the Temporal UI shows
what the model asked for, and returns a `Reply`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity
from temporalio.common import RawValue

from ...canonical import digest, dumps, parse
from ...errors import ActionError, ArgumentsChanged, DefinitionError, IdempotencyKeyConflict
from ...ledger import Action, ActionRequest, Outcome, Question
from ..app.state_copy import GivenState, StateCopy, current_state
from ..app.tool import Tool
from ..app.tool_context import ToolContext, current_call
from ..app.tool_failure import ToolFailure
from ..contract.action_header import ActionHeader
from ..contract.deadlines import CallLimits
from ..contract.encoding import pack, pack_text, raw_text
from ..contract.outcomes import Unrecorded
from ..contract.sizes import MAX_CONTENT
from ..replies import call_reply
from ..runner.clock import time_left
from ..runner.isolated_process import IsolatedFailure, run_isolated
from ..runner.tool_runner import ToolRunner
from .invocation import still_in_time


class GuardedTool:
    """A tool as the guard sees it (`protocols.Guarded`).

    Args:
        tool: The tool.
        runner: Where its lookup runs.
    """

    ends_when_cancelled = True
    runs_apart = True

    def __init__(self, tool: Tool, runner: ToolRunner) -> None:
        self._tool = tool
        self.name = tool.name
        self.effect = tool.effect
        self.tries = tool.tries
        self.replies = ToolReplies()
        self.hand_over = ToRun()
        self.lookup = None if tool.lookup is None else _Lookup(tool, runner)
        self.state = None if tool.state is None else _State(tool)
        self.questions = _Questions(tool) if tool.may_interrupt else None

    def limits(self, header: ActionHeader) -> CallLimits:
        """See `Guarded`: the run fixed them when it started."""
        return time_left(CallLimits(header.attempt_seconds, header.node_seconds))

    def failure(self, error: BaseException) -> ToolFailure:
        """See `Guarded`."""
        return error.failure if isinstance(error, IsolatedFailure) else self._tool.failure(error)

    def request(self, args: Sequence[Any], header: ActionHeader) -> ActionRequest:
        """See `Guarded`."""
        tool = self._tool
        effective = tool.effective(parse(raw_text(args[0])))
        if header.judged is not None and digest(parse(effective)) != header.judged:
            raise ArgumentsChanged(
                f"{tool.name} would be called with other arguments than were approved"
            )
        forward = header.purpose != "undo"
        compensator = None if tool.compensate is None else tool.compensate.name
        return ActionRequest(
            run_key=header.run_key,
            position=header.position,
            tool=tool.name,
            args=effective,
            effect=tool.effect,
            requested_digest=header.requested_digest,
            effective_digest=tool.sameness(effective),
            domain_key=tool.domain_key(effective),
            key_ttl=tool.key_ttl,
            thread_id=header.thread_id or header.run_key,
            can_look_up=tool.lookup is not None,
            settles_after=tool.settles_after,
            compensator=compensator if forward else None,
            undoes=header.undoes,
            undoes_domain_key=tool.undoes_key(effective) if forward else None,
            purpose=header.purpose,
            lookup_only=header.lookup_only,
            owner=activity.info().workflow_id,
            detached=tool.detached and header.purpose == "forward",
        )

    def undo_args(self, undone: Action) -> str:
        """See `Guarded`."""
        return dumps(self._tool.undo_arguments(undone.args, undone.recorded))

    def stored_args(self, request_args: str) -> Sequence[Any]:
        """See `Guarded`."""
        return [pack_text(request_args)]

    def encode(self, value: Any) -> Outcome:
        """See `Guarded`."""
        if isinstance(value, Outcome):
            return value  # encoded where the tool ran: a large one takes a while
        return self._tool.encode(value)


class ToolReplies:
    """See `protocols.Replies`: a `Reply` for the model."""

    def done(
        self, key: str, outcome: Outcome, duplicate_of: str | None, limit: int | None
    ) -> RawValue:
        """See `protocols.Replies`."""
        bound = MAX_CONTENT if limit is None else limit
        reply = call_reply.done(key or None, outcome, duplicate_of=duplicate_of, limit=bound)
        return pack(reply.without_key)

    def raised(self, failure: ToolFailure, error: BaseException | None) -> RawValue:
        """See `protocols.Replies`: a READ that failed had no effect."""
        return pack(call_reply.done(None, failure.without_effect))

    def unknown(self, action: Action) -> RawValue:
        """See `protocols.Replies`."""
        return pack(call_reply.unknown(action))

    def accepted(self, action: Action, *, own: bool) -> RawValue:
        """See `protocols.Replies`."""
        return pack(call_reply.accepted(action, own=own))

    def refused(self, error: ActionError | IdempotencyKeyConflict, key: str) -> RawValue:
        """See `protocols.Replies`."""
        return pack(call_reply.refused(error, key=key or None))


class ToRun:
    """See `protocols.HandOver`: the run records it, by way of its history."""

    def fits(self, unrecorded: Unrecorded) -> bool:
        """See `protocols.HandOver`."""
        return len(unrecorded.result) <= MAX_CONTENT

    def reply(self, unrecorded: Unrecorded) -> RawValue:
        """See `protocols.HandOver`."""
        return pack(call_reply.unrecorded(unrecorded))


class _Questions:
    """See `protocols.Questions`: the run waits for the answer, and calls again."""

    def __init__(self, tool: Tool) -> None:
        self.expires_after = tool.approval_expires

    def reply(self, question: Question) -> RawValue:
        """See `protocols.Questions`."""
        return pack(call_reply.question(question))


class _State:
    """See `protocols.SharedState`."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def check(self, given: GivenState) -> None:
        """See `protocols.SharedState`."""
        self._tool.copy_of(given)


class _Lookup:
    """See `protocols.Lookup`: the tool's own lookup, run where the tool runs."""

    def __init__(self, tool: Tool, runner: ToolRunner) -> None:
        self._tool = tool
        self._runner = runner
        self.settles_after = tool.settles_after

    async def find(self, context: ToolContext, request_args: str) -> Any:
        """See `protocols.Lookup`."""
        tool, lookup = self._tool, self._tool.lookup
        assert lookup is not None, "made for a tool that has one"
        args = tool.lookup_arguments(request_args)
        found = await self._runner.run(
            tool.name,
            lambda: lookup(args, context.idempotency_key),
            is_async=inspect.iscoroutinefunction(lookup),
        )
        if found is None and not tool.returns_nothing:
            raise DefinitionError(
                f"the lookup of {tool.name!r} returned None: return NEVER_HAPPENED, or "
                "what the call returned"
            )
        return found


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
