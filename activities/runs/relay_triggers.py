"""What makes the relay look for work: each worker does, by the clock and by notifications.

Whoever commits work for the relay also notifies the channel ``commitline_relay``, on which every
worker listens, so that the work begins at once. A notification may be lost: each worker also looks
by itself every few seconds. Where nothing is due, a look is one query, and Temporal hears of none.

Runs that are lost notify nobody. So the workers of a task queue sweep every
``COMMITLINE_RELAY_SECONDS``: each asks the ledger for the next sweep, and one of them gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

from ...config import Settings
from ...errors import CommitlineError
from ...ledger import ActionLedger, Sweep, listen
from ...logs import Log
from .due_actions import DueActions
from .gauges import Gauges
from .gone_runs import GoneRuns

log = Log()

_POLL_SECONDS: Final = 5.0
"""Between two looks of a worker that hears notifications."""
_POLL_SECONDS_DEAF: Final = 1.0
"""The same while it hears none."""
_SWEEP_POLLS: Final = 3
"""How often in ``COMMITLINE_RELAY_SECONDS`` a worker asks for the next sweep."""
_KEEP_SECONDS: Final = 5.0
"""How often a worker that sweeps says so."""


def relay_workflow(task_queue: str) -> str:
    """Return the id of the workflow of a look that a person asks for."""
    return f"commitline-relay:{task_queue}"


@asynccontextmanager
async def relaying(
    due: DueActions, gone: GoneRuns, ledger: ActionLedger, settings: Settings, *, namespace: str
) -> AsyncIterator[None]:
    """Be a relay while the body runs: start what is due, and sweep. Many may be, side by side.

    Not where ``COMMITLINE_RELAY_SECONDS`` is 0.
    """
    if not settings.relay_seconds:
        yield
        return
    looking = [
        asyncio.create_task(scan_when_notified(due, Gauges(ledger), settings)),
        asyncio.create_task(sweep_by_the_clock(gone, ledger, settings, namespace=namespace)),
    ]
    try:
        yield
    finally:
        for one in looking:
            one.cancel()
        await asyncio.wait(looking)


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
            _say_failed(err)
        await gauges.look()

    await listen(
        settings.notify_url or settings.require_database(),
        on_notice=scan,
        on_hearing=_log_hearing,
        poll_seconds=_POLL_SECONDS,
        poll_seconds_alone=_POLL_SECONDS_DEAF,
    )


async def sweep_by_the_clock(
    gone: GoneRuns, ledger: ActionLedger, settings: Settings, *, namespace: str
) -> None:
    """Sweep when a sweep is due and no other worker of the task queue is at it, until cancelled.

    What a sweep raises is logged, as of a scan.
    """
    every = timedelta(seconds=settings.relay_seconds)
    while True:
        try:
            sweep = await ledger.relay.sweeps.take(
                namespace=namespace, task_queue=settings.task_queue, every=every
            )
            if sweep is not None:
                await _sweep(gone, ledger, sweep)
        except Exception as err:
            _say_failed(err)
        await asyncio.sleep(settings.relay_seconds / _SWEEP_POLLS)


async def _sweep(gone: GoneRuns, ledger: ActionLedger, sweep: Sweep) -> None:
    keeping = asyncio.create_task(_keep(ledger, sweep))
    try:
        await gone.sweep()
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
    await ledger.relay.sweeps.keep(sweep, seconds=0)


async def _keep(ledger: ActionLedger, sweep: Sweep) -> None:
    """Hold a sweep for this worker until cancelled. After an outage others may sweep, too."""
    while True:
        await asyncio.sleep(_KEEP_SECONDS)
        with suppress(CommitlineError):
            await ledger.relay.sweeps.keep(sweep)


def _say_failed(error: Exception) -> None:
    log.warning("relay.scan_failed", error=type(error).__name__, reason=str(error)[:300])


def _log_hearing(hears: bool, why: str) -> None:
    if hears:
        log.info("relay.listening")
    else:
        log.warning("relay.polling", reason=why[:500])
