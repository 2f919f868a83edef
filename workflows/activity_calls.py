"""How a run has its activities carried out: until they have ended, and seen through.

Attempts are not limited: a dead worker or an outage of the ledger must not use them up. What
ends a call is decided by the guard and by the model's activity, within their deadlines.
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
    from ..activities.contract.activity_failure import NOT_STARTED, as_failure
    from ..activities.contract.deadlines import CallLimits
    from ..activities.contract.wire import pack
    from ..errors import CommitlineError

T = TypeVar("T")

_LEDGER_ATTEMPT: Final = timedelta(seconds=15)
"""Of an activity that only talks to the ledger: it does not heartbeat, so this is how long a run
waits for one whose worker died in it."""
_LOOKING: Final = timedelta(seconds=120)
_LOOKER_LOST: Final = timedelta(seconds=10)
"""How soon a look is made again whose worker died in it; no other one begins meanwhile."""
_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10)
)
_AFRESH: Final = (1, 2, 4, 8, 15, 30)
"""Seconds before a call that could not be dispatched is started afresh, time after time."""
_GIVEN_UP: Final = 2
"""How often the server may give a call up (its workers died, or none was there) before what
became of it is settled from the ledger."""


async def carry_out(
    activity: str,
    argument: RawValue,
    *,
    at: str,
    limits: CallLimits,
    heartbeat_seconds: float,
    summary: str,
    afresh_at_most: int | None = None,
) -> RawValue | None:
    """Run one activity of a turn; None where the server gave it up, time after time.

    What could not be dispatched (no ledger, a key that another action is at work on) is
    started afresh, with a fresh clock: an outage ends no run. So often at most where somebody
    comes back to it anyway.
    """
    afresh = given_up = 0
    while True:
        try:
            answer: RawValue = await workflow.execute_activity(
                activity,
                argument,
                result_type=RawValue,
                activity_id=at,
                start_to_close_timeout=min(limits.start_to_close, limits.schedule_to_close),
                schedule_to_close_timeout=limits.schedule_to_close,
                heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
                retry_policy=_RETRY,
                # The default would report the run as cancelled while its tool still works.
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=summary,
            )
            return answer
        except ActivityError as err:
            if cancelled():
                raise
            if type_of(err) == NOT_STARTED and afresh != afresh_at_most:
                await workflow.sleep(_AFRESH[min(afresh, len(_AFRESH) - 1)])
                afresh += 1
            elif isinstance(err.cause, TimedOutError):
                given_up += 1
                if given_up == _GIVEN_UP:
                    return None
            else:
                raise


async def call_ledger(activity: str, request: Any, summary: str) -> RawValue:
    """Run an activity that only talks to the ledger, until it answers."""
    answer: RawValue = await workflow.execute_activity(
        activity,
        pack(request),
        result_type=RawValue,
        start_to_close_timeout=_LEDGER_ATTEMPT,
        retry_policy=_RETRY,
        summary=summary,
    )
    return answer


async def look(activity: str, summary: str) -> Any:
    """Run an activity of the relay's, which looks at much; until it answers."""
    return await workflow.execute_activity(
        activity,
        start_to_close_timeout=_LOOKING,
        heartbeat_timeout=_LOOKER_LOST,
        retry_policy=_RETRY,
        summary=summary,
    )


async def see_through(work: Coroutine[Any, Any, T]) -> T:
    """Wait for ``work`` even where the run is cancelled meanwhile; that stands all the same."""
    task = asyncio.ensure_future(work)
    while not task.done():
        try:
            await workflow.wait([task])
        except asyncio.CancelledError:
            continue
    return task.result()


async def side_by_side(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Carry out calls side by side; each settles on its own. Return their results in order.

    Only what ends the run is raised, and only after the siblings have settled.
    """
    results: list[T] = []
    for one in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results


async def ended(running: asyncio.Future[Any]) -> None:
    """Wait until a task has ended, however."""
    await workflow.wait([running])


def cancelled() -> bool:
    """Whether the run was cancelled, whatever its activities made of that."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def stop_here_if_cancelled() -> None:
    """Go no further in a run that was cancelled while it saw something through."""
    if cancelled():
        raise asyncio.CancelledError


def type_of(error: ActivityError) -> str | None:
    """Return the type of the application failure that an activity ended with."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def failure(error: CommitlineError, *, limit: int = 500) -> ApplicationError:
    """Return the failure by which a run ends with one of our errors; final."""
    return as_failure(error, final=True, benign=False, limit=limit)
