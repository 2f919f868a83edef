"""The call itself: what the tool knows of it, how long it may take, and what its end means.

Its time is counted from the claim, as the row counts it. That holds for a process that was frozen
in between too: `still_in_time` is the last check before the tool is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias

from temporalio import activity

from ...errors import NodeTimeout, NotAttempted, ToolTimeout
from ...identity import Position, RunKey, action_key
from ...ledger import Dispatched, Question, QuestionRequest
from ...metrics import NODE_TIMEOUTS, TOOL_DURATION, TOOL_ERRORS, TOOL_TIMEOUTS, observe
from ...traces import ARGUMENTS, note_content
from ..app.contained_error import raise_contained
from ..app.interrupt import AttemptQuestions, is_interrupt
from ..app.state_copy import current_state
from ..app.tool_context import ToolContext, current_call
from ..app.tool_failure import FailureKind, ToolFailure
from ..runner.bounded_call import (
    Abandoned,
    CallEnd,
    OnLate,
    Raised,
    Returned,
    call_within,
    cancelled_if_told,
    ignore_late_end,
)
from ..runner.clock import now
from .claim_request import Prepared
from .guarded_call import GuardedCall

Invoke: TypeAlias = Callable[[Sequence[Any]], Coroutine[Any, Any, Any]]
"""Runs the activity with the given arguments."""


@dataclass(frozen=True)
class NotBegun:
    """The call was not made: its claim is too old, or its time is up.

    The claim was slow, or this process was frozen since: the row gives this attempt more time than
    is left, and by now another attempt may have it.
    """

    too_old: bool
    """The claim is too old; otherwise its time is up."""


_ends_at: ContextVar[float | None] = ContextVar("commitline_ends_at", default=None)


def still_in_time() -> None:
    """Refuse to begin a call whose deadline has passed: its process was frozen.

    Called right before the tool is.

    Raises:
        NotAttempted: Nothing was sent, and by now another attempt may have the row.
    """
    ends_at = _ends_at.get()
    if ends_at is not None and now() > ends_at:
        raise NotAttempted("woken up after its deadline, before the call")


class Invocation:
    """Makes the calls of one attempt.

    Args:
        call: The call.
        prepared: What the tool is given beside its arguments.
        invoke: Runs the activity.
        spent: Returns the seconds of the call's time that are gone.
    """

    def __init__(
        self,
        call: GuardedCall,
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
        self._lasted = 0.0

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

    def context(self, claim: Dispatched, *, taken_over: bool) -> ToolContext:
        """Return what the tool may know of a call that begins now.

        Args:
            claim: The claim that allows the call.
            taken_over: An earlier attempt may have called already.
        """
        return self._context(
            claim.place, claim.idempotency_key, taken_over=taken_over, asked=claim.questions
        )

    def read_context(self, asked: Sequence[Question]) -> ToolContext:
        """Return what a READ may know of its call, which begins now.

        Args:
            asked: The questions of earlier attempts, in order, with their answers.
        """
        header = self._call.header
        key = f"read-{header.position}"
        return self._context((header.run_key, header.position), key, taken_over=False, asked=asked)

    def _context(
        self,
        place: tuple[RunKey, Position],
        idempotency_key: str,
        *,
        taken_over: bool,
        asked: Sequence[Question],
    ) -> ToolContext:
        run_key, position = place
        may_ask = self._guarded.questions is not None and self._call.header.purpose == "forward"
        return ToolContext(
            idempotency_key=idempotency_key,
            action_key=action_key(run_key, position),
            run_key=run_key,
            position=position,
            tool=self._guarded.name,
            taken_over=taken_over,
            seconds_left=self.seconds_left(None),
            undoes=self._prepared.undoes,
            questions=AttemptQuestions(asked) if may_ask else None,
        )

    async def run_claimed(
        self, claim: Dispatched, context: ToolContext, *, too_old: bool, on_late: OnLate
    ) -> CallEnd | NotBegun:
        """Call by a claim, unless it is too late to begin; never raises.

        Args:
            claim: The claim that allows the call.
            context: What the tool may know.
            too_old: The claim is older than it may be.
            on_late: Gets the end of a tool that was abandoned.
        """
        left = self.seconds_left(claim.key_life)
        if too_old or (left is not None and left <= 0):
            return NotBegun(too_old)
        return await self.run(context, claim.args, key_life=claim.key_life, on_late=on_late)

    async def run(
        self,
        context: ToolContext,
        args: str,
        *,
        key_life: timedelta | None = None,
        on_late: OnLate = ignore_late_end,
    ) -> CallEnd:
        """Call, and return how the call ended; never raises.

        Args:
            context: What the tool may know.
            args: The stored arguments.
            key_life: As for `seconds_left`.
            on_late: Gets the end of a tool that was abandoned.
        """
        seconds, apart = self.seconds_left(key_life), self._guarded.runs_apart
        note_content({ARGUMENTS: args})

        async def work() -> Any:
            token = current_call.set(context)
            current_state.set(self._prepared.state)
            _ends_at.set(None if seconds is None else began + seconds)
            try:
                invoked = self._invoke(self._guarded.stored_args(args))
                return await (invoked if apart else cancelled_if_told(invoked))
            except BaseException as err:
                raise_contained(self._guarded.name, err)
            finally:
                current_call.reset(token)

        began = now()
        end = await call_within(seconds, work(), on_late=on_late)
        self._lasted = now() - began
        may_go_on = not self._guarded.ends_when_cancelled
        if end.stopped_by is None and may_go_on and activity.is_cancelled():
            # Temporal itself cancels the thread of a plain function, past `call_within`.
            end = CallEnd(Raised(asyncio.CancelledError()), "caller")
        return end

    async def look_up(self, context: ToolContext, args: str) -> CallEnd:
        """Ask the downstream system what became of an earlier call; return how that ended."""
        lookup = self._guarded.lookup
        assert lookup is not None, "a claim to look up is only made where there is a lookup"
        return await call_within(self.seconds_left(None), lookup.find(context, args))

    def count(self, end: CallEnd | NotBegun) -> None:
        """Count and log how a call ended, after what follows from it has been written."""
        if isinstance(end, NotBegun):
            return
        observe(TOOL_DURATION, self._lasted, self._guarded.name, _how(end))
        if end.stopped_by == "deadline":
            self._call.count(TOOL_TIMEOUTS)
            self._call.log.warning(
                "tool.timed_out",
                seconds=self._call.limits.nearest,
                abandoned=isinstance(end.how, Abandoned),
            )
        elif is_question(end):
            pass  # nothing failed
        elif end.stopped_by is None and isinstance(end.how, Raised):
            self._call.count(TOOL_ERRORS)
            self._call.log.info("tool.raised", error=type(end.how.error).__name__)


def _how(end: CallEnd) -> str:
    """Return the word for how a call ended."""
    if end.stopped_by is not None:
        return "timeout" if end.stopped_by == "deadline" else "cancelled"
    if is_question(end):
        return "question"
    return "returned" if isinstance(end.how, Returned) else "raised"


def is_question(end: CallEnd) -> bool:
    """Whether the call ended with its question. After its deadline it timed out instead."""
    interrupted = isinstance(end.how, Raised) and is_interrupt(end.how.error)
    return interrupted and end.stopped_by != "deadline"


def question_request(call: GuardedCall, context: ToolContext) -> QuestionRequest:
    """Return the question that ended a call.

    Args:
        call: The call.
        context: What it was made with.
    """
    kind = call.guarded.questions
    assert kind is not None, "only such a call has questions"
    assert context.questions is not None, "as above"
    asked = context.questions.open_question
    assert asked is not None, "it ended the call"
    own = context.run_key == call.header.run_key
    return QuestionRequest(
        run_key=context.run_key,
        position=context.position,
        thread_id=(call.header.thread_id if own else None) or context.run_key,
        tool=call.guarded.name,
        index=asked.index,
        message=asked.message,
        payload=asked.payload,
        expires_after=kind.expires_after,
    )


def failure_of(call: GuardedCall, end: CallEnd) -> ToolFailure:
    """Classify the end of a call that returned no value and that nobody cancelled."""
    if end.stopped_by == "deadline":
        return _timed_out(call)
    assert isinstance(end.how, Raised)
    if isinstance(end.how.error, asyncio.CancelledError):
        return ToolFailure(FailureKind.OTHER, "CancelledError", "the tool cancelled itself")
    return call.guarded.failure(end.how.error)


def _timed_out(call: GuardedCall) -> ToolFailure:
    node, nearest = call.limits.node_seconds, call.limits.nearest
    if node is not None and nearest == node:
        call.count(NODE_TIMEOUTS)
        text = f"no answer until the node's time was up [{NodeTimeout.code}]"
        return ToolFailure(FailureKind.OTHER, NodeTimeout.__name__, text)
    error = ToolTimeout(f"no answer within {nearest or 0:g} s")
    failure = call.guarded.failure(error)
    # `refused_on` is about exceptions that the tool raises. This one is ours, and means that the
    # call may have happened, however wide the declaration is.
    kind = failure.kind if failure.kind is FailureKind.TRANSIENT else FailureKind.OTHER
    return replace(failure, kind=kind, message=f"{error.message} [{error.code}]")
