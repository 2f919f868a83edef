"""The call itself: told what it belongs to, bounded in time, and what its end means.

The time is counted from the claim, by which the row counts too. It holds for a process that was
frozen in between as well: `still_in_time` is asked by what calls the tool, as the last thing
before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

from ...errors import NodeTimeout, NotAttempted, ToolTimeout
from ...identity import ActionKey, split_action_key
from ...ledger import Question
from ..app.contained_error import raise_contained
from ..app.interrupt import AttemptQuestions
from ..app.state_copy import current_state
from ..app.tool_context import ToolContext, current_call
from ..app.tool_failure import FailureKind, ToolFailure
from ..runner.bounded_call import Abandoned, CallEnd, OnLate, Raised, call_within, ignore_late_end
from ..runner.clock import now
from .incoming_call import IncomingCall
from .metrics import count
from .pausing import asks
from .preparing import Prepared

Invoke: TypeAlias = Callable[[Sequence[Any]], Coroutine[Any, Any, Any]]
"""Runs the activity with the given arguments."""

_ends_at: ContextVar[float | None] = ContextVar("commitline_ends_at", default=None)


def still_in_time() -> None:
    """Raise where the call is past its deadline before it has begun: its process was frozen.

    Called by what calls the tool, as the last thing before it.

    Raises:
        NotAttempted: Nothing was sent, and by now the row may be another attempt's.
    """
    ends_at = _ends_at.get()
    if ends_at is not None and now() > ends_at:
        raise NotAttempted("woken up after its deadline, before the call")


class Calling:
    """Makes the calls of one attempt.

    Args:
        call: The call as it came.
        prepared: What the tool is given beside its arguments.
        invoke: Runs the activity.
        spent: Returns the seconds of the call's time that are gone.
    """

    def __init__(
        self,
        call: IncomingCall,
        prepared: Prepared,
        invoke: Invoke,
        *,
        spent: Callable[[], float],
    ) -> None:
        self._call = call
        self._guarded = call.guarded
        self._prepared = prepared
        self._invoke = invoke
        self._spent = spent

    def context(
        self,
        key: ActionKey,
        idempotency_key: str,
        *,
        taken_over: bool,
        asked: Sequence[Question] = (),
    ) -> ToolContext:
        """Return what the tool may know of its call, which begins now."""
        run, position = split_action_key(key)
        may_interrupt = self._guarded.may_interrupt and self._call.header.purpose == "forward"
        return ToolContext(
            idempotency_key=idempotency_key,
            action_key=key,
            run_key=run,
            position=position,
            tool=self._guarded.name,
            taken_over=taken_over,
            seconds_left=self.seconds_left(None),
            undoes=self._prepared.undoes,
            questions=AttemptQuestions(asked) if may_interrupt else None,
        )

    def seconds_left(self, key_life: timedelta | None) -> float | None:
        """Return the time for a call, counted from its claim; None is no limit.

        Args:
            key_life: How long its key counts, from the claim; None is for ever.
        """
        spent = self._spent()
        given = [
            self._call.limits.nearest,
            None if key_life is None else key_life.total_seconds(),
        ]
        return min((one - spent for one in given if one is not None), default=None)

    async def call(
        self,
        context: ToolContext,
        args: str,
        *,
        key_life: timedelta | None = None,
        on_late: OnLate = ignore_late_end,
    ) -> CallEnd:
        """Call, and return how it ended.

        Args:
            context: Of the call.
            args: The stored arguments.
            key_life: See `seconds_left`.
            on_late: Told of the end of a tool that was left behind.
        """
        seconds = self.seconds_left(key_life)

        async def work() -> Any:
            token = current_call.set(context)
            current_state.set(self._prepared.state)
            _ends_at.set(None if seconds is None else began + seconds)
            try:
                return await self._invoke(self._guarded.stored_args(args))
            except BaseException as err:
                raise_contained(self._guarded.name, err)
            finally:
                current_call.reset(token)

        began = now()
        end = await call_within(seconds, work(), on_late=on_late)
        self._tell_of(end)
        return end

    async def ask(self, context: ToolContext, args: str) -> CallEnd:
        """Ask the downstream system what became of an earlier call; return how that ended."""
        return await call_within(self.seconds_left(None), self._guarded.ask(context, args))

    def failure(self, end: CallEnd) -> ToolFailure:
        """Return what an end means that is no value, where it was not the caller who stopped it."""
        if end.stopped_by == "deadline":
            return self._timed_out()
        assert isinstance(end.how, Raised)
        if isinstance(end.how.error, asyncio.CancelledError):
            return ToolFailure(FailureKind.OTHER, "CancelledError", "the tool cancelled itself")
        return self._guarded.failure(end.how.error)

    def _tell_of(self, end: CallEnd) -> None:
        if end.stopped_by == "deadline":
            count("commitline_tool_timeouts", self._guarded.name)
            self._call.log.warning(
                "tool.timed_out",
                seconds=self._call.limits.nearest,
                abandoned=isinstance(end.how, Abandoned),
            )
        elif asks(end):
            pass  # the tool is well
        elif end.stopped_by is None and isinstance(end.how, Raised):
            count("commitline_tool_errors", self._guarded.name)
            self._call.log.info("tool.raised", error=type(end.how.error).__name__)

    def _timed_out(self) -> ToolFailure:
        node, nearest = self._call.limits.node_seconds, self._call.limits.nearest
        if node is not None and nearest == node:
            count("commitline_node_timeouts", self._guarded.name)
            text = f"no answer until the node's time was up [{NodeTimeout.code}]"
            return ToolFailure(FailureKind.OTHER, NodeTimeout.__name__, text)
        error = ToolTimeout(f"no answer within {nearest or 0:g} s")
        failure = self._guarded.failure(error)
        # What a tool declares of exceptions speaks for those it raises. This one is ours, and
        # means that it may have happened, however wide its `refused_on`.
        kind = failure.kind if failure.kind is FailureKind.TRANSIENT else FailureKind.OTHER
        return replace(failure, kind=kind, message=f"{error.message} [{error.code}]")
