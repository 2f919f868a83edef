"""`GuardedCall`: what is fixed about a call while one attempt is at work on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from ...canonical import scrub
from ...identity import action_key
from ...logs import Log
from ...metrics import Metric, count
from ..contract.action_header import ActionHeader
from ..contract.activity_failure import NOT_STARTED
from ..runner.attempt_notes import AttemptNotes
from ..runner.clock import now
from .protocols import Guarded
from .start_later import start_later

log = Log()


class GuardedCall:
    """One call, as one attempt of Temporal's got it.

    Args:
        guarded: The activity type.
        header: Which call of which run it is.
        adopted: It was scheduled by a worker without the guard, so an earlier attempt may have
            called without a row.
    """

    def __init__(self, guarded: Guarded, header: ActionHeader, *, adopted: bool = False) -> None:
        self.guarded = guarded
        self.header = header
        self.adopted = adopted
        self.limits = guarded.limits(header)
        """How long this attempt may take."""
        self.tries = header.tries or guarded.tries
        """How often the activity may fail the call."""
        self.began = now()
        self.named: Mapping[str, Any] = {
            "run_key": header.run_key,
            "position": header.position,
            "action_key": action_key(header.run_key, header.position),
            "tool": guarded.name,
            "attempt": activity.info().attempt,
        }
        """What every event of the attempt says."""
        self.log = log.bind(**self.named)

    def spent(self) -> float:
        """Return the seconds since this attempt began."""
        return now() - self.began

    @property
    def nothing_written_before(self) -> bool:
        """Whether no earlier attempt can have written anything, so that a READ need not look.

        That is the first attempt in the run's first execution: a reset and a retry of the workflow
        run in another one. What the workflow schedules again has `ActionHeader.again`.

        The number of an attempt is no sign by itself: `temporal activity reset` sets it back to
        one. Such an attempt was scheduled later than its activity was. Of a local one there is no
        sign at all: it is always the first, also after its worker died.
        """
        info = activity.info()
        if info.is_local:
            return False
        first = info.attempt == 1 and info.current_attempt_scheduled_time == info.scheduled_time
        in_first_execution = self.header.run_key.endswith(f"/{info.workflow_run_id}")
        return first and in_first_execution and not self.header.again

    @property
    def cancelled_with_its_run(self) -> bool:
        """Whether the run was cancelled; otherwise the worker is shutting down."""
        details = activity.cancellation_details()
        return details is not None and details.cancel_requested

    def count(self, metric: Metric) -> None:
        """Count an event of the call in the worker's metrics, by its tool."""
        count(metric, self.guarded.name)

    @property
    def repeats(self) -> bool:
        """Whether an attempt before this one may have called.

        The number of an attempt is no sign by itself; see `nothing_written_before`.
        """
        info = activity.info()
        if info.is_local or self.header.again:
            return True
        if info.attempt == 1:
            return info.current_attempt_scheduled_time != info.scheduled_time
        return AttemptNotes.read().uncalled != info.attempt - 1

    def not_started(self, reason: str) -> ApplicationError:
        """Return the failure of an attempt that called nothing: another one starts the call."""
        if self.guarded.hand_over is None:
            # The workflow of another application says how often it tries.
            return ApplicationError(scrub(reason), type=NOT_STARTED)
        return start_later(
            reason,
            began=self.began,
            max_waits=self.header.max_waits,
            uncalled=0 if self.repeats else activity.info().attempt,
        )
