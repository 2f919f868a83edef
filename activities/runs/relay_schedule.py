"""The relay's part of a worker: its schedule in Temporal, and an ear for announcements.

The schedule makes sure that what nobody sees to is found while any worker runs. What is
announced (`pg_notify` on the channel ``commitline_relay``) is seen to at once, and this worker
looks by itself every few seconds besides, so that a lost announcement costs no more than that.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog
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
from ..contract.relay import RELAY
from .relay import Relay
from .relay_notices import look_when_told

log = structlog.get_logger("commitline")

_CATCH_UP: Final = timedelta(seconds=60)
"""A look that was missed by more is not made up for: the next one sees all of it."""


def schedule_id(task_queue: str) -> str:
    """Return the id of the relay's schedule for the workers of a task queue."""
    return f"commitline-relay:{task_queue}"


async def keep_schedule(client: Client, settings: Settings) -> None:
    """Create the relay's schedule, or give it this worker's interval. Safe to repeat.

    Whether it is paused stays as it is. What Temporal refuses is logged: a worker works without.
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
            # One that no worker takes up must not keep the next one from starting for ever.
            execution_timeout=timedelta(minutes=10),
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


async def listen(relay: Relay, settings: Settings) -> None:
    """Start settlings as they are announced, until cancelled; whatever fails, it goes on."""
    await look_when_told(settings.notify_url or settings.require_database(), relay.scan)
