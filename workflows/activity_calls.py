"""How a workflow of ours runs an activity: until it has ended, whatever happens to its workers.

Attempts are not limited, and neither is the time for all of them: a dead worker or a ledger that
is away must not use them up. What ends a call is decided by the guard and by the model's activity,
within their deadlines. A wait is made of attempts as well, so it costs the history nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as TimedOutError

with workflow.unsafe.imports_passed_through():
    from ..activities.contract.activity_failure import as_failure
    from ..activities.contract.deadlines import CallLimits
    from ..activities.contract.encoding import pack
    from ..errors import CommitlineError

T = TypeVar("T")

_LEDGER_ATTEMPT: Final = timedelta(seconds=15)
"""For an activity that only calls the ledger. It does not heartbeat, so a run waits this long for
one whose worker died in it."""
_RELAY_ATTEMPT: Final = timedelta(seconds=120)
_RELAY_HEARTBEAT: Final = timedelta(seconds=10)
"""How soon the relay looks again after its worker died; no other look begins meanwhile."""
_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10)
)


async def run_activity(
    activity: str,
    argument: RawValue,
    *,
    at: str,
    limits: CallLimits,
    heartbeat_seconds: float,
    summary: str,
) -> RawValue | None:
    """Run the activity of a call or of a model turn; return None where the server gave it up.

    Args:
        activity: Its type.
        argument: Its JSON.
        at: Its activity id: the position.
        limits: Its deadlines.
        heartbeat_seconds: How soon Temporal notices a dead worker.
        summary: For the UI.
    """
    try:
        answer: RawValue = await workflow.execute_activity(
            activity,
            argument,
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
        return answer
    except ActivityError as err:
        if cancelled() or not isinstance(err.cause, TimedOutError):
            raise
        return None  # an operator has set a time-out


async def run_ledger_activity(activity: str, request: Any, summary: str) -> RawValue:
    """Run an activity that only calls the ledger, until it answers."""
    answer: RawValue = await workflow.execute_activity(
        activity,
        pack(request),
        result_type=RawValue,
        start_to_close_timeout=_LEDGER_ATTEMPT,
        retry_policy=_RETRY,
        summary=summary,
    )
    return answer


async def run_relay_activity(activity: str, summary: str) -> int:
    """Run an activity of the relay, which may take on many rows; return how many they were."""
    return int(
        await workflow.execute_activity(
            activity,
            start_to_close_timeout=_RELAY_ATTEMPT,
            heartbeat_timeout=_RELAY_HEARTBEAT,
            retry_policy=_RETRY,
            summary=summary,
        )
    )


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
