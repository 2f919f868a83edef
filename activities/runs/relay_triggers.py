"""What makes the relay look for work: a schedule in Temporal, and notifications from Postgres.

The schedule belongs to the task queue: while any of its workers runs, it starts the relay's
workflow every ``COMMITLINE_RELAY_SECONDS``. Whoever commits work for the relay also notifies the
channel ``commitline_relay``, on which every worker listens, so that the work begins at once. A
notification may be lost: each worker also looks by itself every few seconds.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError

from ...config import Settings
from ...ledger import listen
from ...logs import Log
from ..contract.relay import RELAY
from .due_actions import DueActions
from .gauges import Gauges

log = Log()

_CATCH_UP: Final = timedelta(seconds=60)
"""A start that was missed by more is not made up for: the next one finds the same work."""
_LONGEST_RUN: Final = timedelta(minutes=10)
"""The time-out of the relay's workflow. One that no worker takes up ends by it, so that the
schedule can start the next."""
_POLL_SECONDS: Final = 5.0
"""Between two looks of a worker that hears notifications."""
_POLL_SECONDS_DEAF: Final = 1.0
"""The same while it hears none."""


def schedule_id(task_queue: str) -> str:
    """Return the id of the relay's schedule for the workers of a task queue."""
    return f"commitline-relay:{task_queue}"


async def keep_schedule(client: Client, settings: Settings) -> None:
    """Create the relay's schedule, or give it this worker's interval. Safe to repeat.

    A schedule that an operator paused stays paused. Where Temporal refuses the schedule, that is
    logged, and the worker works without it.
    """
    named = schedule_id(settings.task_queue)
    try:
        try:
            await client.create_schedule(named, _schedule(settings))
        except ScheduleAlreadyRunningError:
            await client.get_schedule_handle(named).update(lambda found: _updated(found, settings))
    except RPCError as err:
        log.error("relay.schedule_refused", schedule=named, reason=err.message[:300])


def _schedule(settings: Settings) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            RELAY,
            id=schedule_id(settings.task_queue),
            task_queue=settings.task_queue,
            execution_timeout=_LONGEST_RUN,
        ),
        spec=ScheduleSpec(
            intervals=[ScheduleIntervalSpec(every=timedelta(seconds=settings.relay_seconds))]
        ),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=_CATCH_UP),
    )


def _updated(found: ScheduleUpdateInput, settings: Settings) -> ScheduleUpdate | None:
    stands, ours = found.description.schedule, _schedule(settings)
    if stands.spec.intervals == ours.spec.intervals:
        return None
    stands.spec, stands.policy = ours.spec, ours.policy
    return ScheduleUpdate(stands)


async def scan_when_notified(due: DueActions, gauges: Gauges, settings: Settings) -> None:
    """Have the relay scan after each notification, and by the clock, until cancelled.

    The worker's gauges are looked at beside it, also while the scan fails.

    What a scan raises is logged, and the next one comes by the clock: the relay outlives an
    outage of its database.
    """

    async def scan() -> None:
        try:
            await due.start_settlements()
        except Exception as err:
            log.warning("relay.scan_failed", error=type(err).__name__, reason=str(err)[:300])
        await gauges.look()

    await listen(
        settings.notify_url or settings.require_database(),
        on_notice=scan,
        on_hearing=_log_hearing,
        poll_seconds=_POLL_SECONDS,
        poll_seconds_alone=_POLL_SECONDS_DEAF,
    )


def _log_hearing(hears: bool, why: str) -> None:
    if hears:
        log.info("relay.listening")
    else:
        log.warning("relay.polling", reason=why[:500])
