"""How a workflow of ours runs an activity: until it has ended, whatever happens to its workers.

Attempts are not limited, and neither is the time for all of them: a dead worker or a ledger that
is away must not use them up. What ends a call is decided by the guard and by the model's activity,
within their deadlines. A wait is made of attempts as well, so it costs the history nothing.

What only calls the ledger is tried as a local activity first: the worker that has the workflow runs
it, and the server learns its result with the end of the workflow task. That saves a round trip
through the server, and an action on the bill of Temporal Cloud. It is tried once, for a moment.
Where that fails, an activity of the server's follows, whose tries and waits cost no history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from types import NoneType
from typing import Any, Final, TypeVar, cast

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, RetryState
from temporalio.exceptions import TimeoutError as TimedOutError

from ..activities.contract.activity_failure import NOT_STARTED, as_failure
from ..activities.contract.deadlines import CallLimits
from ..activities.contract.encoding import pack, unpack
from ..activities.contract.local_activity import Notes, notes_of
from ..activities.contract.outcomes import RECORD_OUTCOME
from ..activities.contract.relay import PLAN_SETTLEMENT
from ..activities.contract.sub_agents import BEGIN_SUB_AGENT
from ..activities.contract.turns import RECORD_TURN
from ..errors import CommitlineError, EndedByOperator
from .action_headers import leaving
from .local_room import local_room

T = TypeVar("T")

_LEDGER_ATTEMPT: Final = timedelta(seconds=15)
"""For an activity that only calls the ledger. It does not heartbeat, so a run waits this long for
one whose worker died in it."""
_LOCAL_ATTEMPT: Final = timedelta(seconds=2)
"""For such an activity as a local one. The workflow task lasts as long, and has five seconds."""
_LOCAL_ONCE: Final = RetryPolicy(maximum_attempts=1)
_NEVER_LOCAL: Final = frozenset({RECORD_OUTCOME, RECORD_TURN, BEGIN_SUB_AGENT, PLAN_SETTLEMENT})
"""The first two are for a ledger that has just been away: trying them costs the history a marker.
The others ask Temporal, or wait for a workflow's end, and may take seconds."""
_RELAY_ATTEMPT: Final = timedelta(seconds=120)
_RELAY_HEARTBEAT: Final = timedelta(seconds=10)
"""How soon the relay looks again after its worker died; no other look begins meanwhile."""
_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10)
)
_FIRST_TASK_EVENTS: Final = 3
ENDED_BY_OPERATORS: Final = 3
"""How often an activity is run again that somebody ended from outside."""


async def run_activity(
    kind: type[T],
    activity: str,
    argument: RawValue | None,
    *,
    at: str,
    limits: CallLimits,
    heartbeat_seconds: float,
    summary: str,
    local: bool = False,
) -> T | None:
    """Run the activity of a call or of a model turn; return its answer.

    None: an operator ended it (`temporal activity complete`, `fail`, or a time-out set there), so
    the ledger says what became of it.

    Args:
        kind: Of the answer.
        activity: Its type.
        argument: Its JSON; None where it takes none.
        at: Its activity id: the position.
        limits: Its deadlines.
        heartbeat_seconds: How soon Temporal notices a dead worker.
        summary: For the UI.
        local: Try it as a local activity first, once. What another try can help is left to an
            activity of the server's, after the same wait: its tries cost the history nothing.
    """
    notes: Notes = {}
    if local and argument is not None:
        tried = await _call_locally(activity, argument, at=at, limits=limits, summary=summary)
        if isinstance(tried, RawValue):
            return unpack(kind, tried)
        notes = tried
    with leaving(notes):
        return await _call(
            kind,
            activity,
            argument,
            at=at,
            limits=limits,
            heartbeat_seconds=heartbeat_seconds,
            summary=summary,
        )


async def _call_locally(
    activity: str, argument: RawValue, *, at: str, limits: CallLimits, summary: str
) -> RawValue | Notes:
    """Try a call as a local activity; return its answer, or what the next attempt must know."""
    room = local_room.get()
    if room is None or not room.is_left:
        return {}
    began = workflow.time()
    tried = await _try_locally(
        activity,
        argument,
        activity_id=at,
        start_to_close_timeout=limits.start_to_close,
        cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        summary=summary,
    )
    if isinstance(tried, RawValue):
        room.take(len(tried.payload.data))
        return tried
    room.take(0)
    await _wait_as_asked(tried)
    notes = notes_of(tried)
    # The call's time goes on, unless the call could not begin.
    return {**notes, "clock_from": notes.get("clock_from") or began}


async def _call(
    kind: type[T],
    activity: str,
    argument: RawValue | None,
    *,
    at: str,
    limits: CallLimits,
    heartbeat_seconds: float,
    summary: str,
) -> T | None:
    try:
        answer: RawValue = await workflow.execute_activity(
            activity,
            args=[] if argument is None else [argument],
            result_type=RawValue,
            activity_id=at,
            # There is no schedule_to_close: the time begins when the call may start.
            start_to_close_timeout=limits.start_to_close,
            heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
            retry_policy=_RETRY,
            # The default would report the run as cancelled while its tool still works.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=summary,
        )
        if (room := local_room.get()) is not None:
            room.clear()
        return unpack(kind, answer)
    except ActivityError as err:
        if cancelled() or not _ended_by_operator(err):
            raise
    except ValueError:
        pass  # no answer of ours
    return None


async def run_ledger_activity(kind: type[T], activity: str, request: Any, summary: str) -> T:
    """Run an activity that only calls the ledger, until it answers; return the answer.

    Each is safe to repeat, so one that an operator ended is run again.

    Raises:
        ApplicationError: Operators ended it, time after time; final.
    """
    if activity not in _NEVER_LOCAL:
        tried = await _try_locally(
            activity, pack(request), schedule_to_close_timeout=_LOCAL_ATTEMPT, summary=summary
        )
        if isinstance(tried, RawValue):
            return _answer(kind, tried)
    for _ in range(ENDED_BY_OPERATORS):
        try:
            answer: RawValue = await workflow.execute_activity(
                activity,
                pack(request),
                result_type=RawValue,
                start_to_close_timeout=_LEDGER_ATTEMPT,
                retry_policy=_RETRY,
                summary=summary,
            )
            return _answer(kind, answer)
        except ActivityError as err:
            if cancelled() or not _ended_by_operator(err):
                raise
        except ValueError:
            pass  # no answer of ours
    raise failure(EndedByOperator(f"{activity} gave no answer {ENDED_BY_OPERATORS} times"))


async def _try_locally(
    activity: str, argument: RawValue, **options: Any
) -> RawValue | ActivityError:
    """Run a local activity once; return its answer, or a failure that another try may mend.

    Raises:
        ActivityError: No other try can help, or the run was cancelled.
    """
    try:
        answer: RawValue = await workflow.execute_local_activity(
            activity, argument, result_type=RawValue, retry_policy=_LOCAL_ONCE, **options
        )
        return answer
    except FailureError as err:
        error = _of_local(err, activity)
    if cancelled() or _is_final(error):
        raise error from error.cause
    return error


def _of_local(failure: FailureError, activity: str) -> ActivityError:
    """Return the failure of a local activity as an activity's: most come without that cover.

    Which do is not the same live and on a replay.
    """
    return failure if isinstance(failure, ActivityError) else as_of_activity(failure, activity)


def as_of_activity(
    failure: FailureError, activity: str, *, retry_state: RetryState | None = None
) -> ActivityError:
    """Return a failure as a workflow gets it of an activity."""
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=activity,
        activity_id="",
        retry_state=retry_state,
    )
    error.__cause__ = failure
    return error


async def _wait_as_asked(error: ActivityError) -> None:
    """Wait for as long as a failure says. What was not begun waits in its own attempts."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type != NOT_STARTED and cause.next_retry_delay:
        await workflow.sleep(cause.next_retry_delay)


def _answer(kind: type[T], raw: RawValue) -> T:
    """Return what a worker of ours answered.

    Raises:
        ValueError: It is no answer of ours.
    """
    if kind is not NoneType:
        return unpack(kind, raw)
    if raw.payload.metadata.get("encoding") != b"binary/null":
        raise ValueError("an activity that returns nothing returned something")
    return cast("T", None)


def _is_final(error: ActivityError) -> bool:
    """Whether no other try can help, as it can after an outage, a time-out, a worker that ended."""
    return isinstance(error.cause, ApplicationError) and error.cause.non_retryable


def _ended_by_operator(error: ActivityError) -> bool:
    """Whether no worker of ours ended an activity: our failures have a type, and no time-out."""
    cause = error.cause
    return isinstance(cause, TimedOutError) or (
        isinstance(cause, ApplicationError) and not cause.type
    )


async def run_relay_activity(activity: str, summary: str) -> int:
    """Run an activity of the relay, which may take on many rows; return how many they were."""
    try:
        answer: RawValue = await workflow.execute_activity(
            activity,
            result_type=RawValue,
            start_to_close_timeout=_RELAY_ATTEMPT,
            heartbeat_timeout=_RELAY_HEARTBEAT,
            retry_policy=_RETRY,
            summary=summary,
        )
        return unpack(int, answer)
    except ActivityError as err:
        if not _ended_by_operator(err):
            raise
    except ValueError:
        pass  # no answer of ours
    return 0  # the relay looks again soon


async def despite_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work`` even if the run is cancelled meanwhile; `cancelled` says so afterwards."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


async def side_by_side(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run calls side by side; each settles on its own. Return their results in order.

    Only what ends the run is raised, and only after all calls have settled.
    """
    results: list[T] = []
    for one in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


def may_be_made_anew() -> bool:
    """Whether the first task of this execution may be made anew: one before it was given up.

    What that one did by local activities no history tells. A first task has three events before it
    (started, scheduled, begun), unless somebody has sent a signal, or cancelled the run, before.
    """
    return workflow.info().get_current_history_length() > _FIRST_TASK_EVENTS


def history_is_full() -> bool:
    """Whether the server suggests that the workflow goes on in another execution."""
    return workflow.info().is_continue_as_new_suggested()


def cancelled() -> bool:
    """Whether the run was cancelled, whatever its activities made of that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_if_cancelled() -> None:
    """End a run that was cancelled while it waited despite the cancellation."""
    if cancelled():
        raise asyncio.CancelledError


def type_of(error: ActivityError) -> str | None:
    """Return the type of the application failure that an activity ended with."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def failure(error: CommitlineError, *, limit: int = 500) -> ApplicationError:
    """Return the failure by which a run ends with one of our errors; final."""
    return as_failure(error, final=True, benign=False, limit=limit)
