"""What one attempt leaves for the next: counts, and when the time of its call begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from commitline.activities.contract.action_header import ActionHeader
from commitline.activities.contract.deadlines import CallLimits
from commitline.activities.guard.guarded_call import GuardedCall
from commitline.activities.guard.protocols import Guarded
from commitline.activities.runner.attempt_notes import AttemptNotes
from commitline.activities.runner.clock import time_left
from commitline.identity import Position, RunKey

SCHEDULED = datetime(2026, 1, 1, tzinfo=UTC)
TOOL = cast(
    "Guarded",
    SimpleNamespace(
        name="charge", tries=3, hand_over=object(), limits=lambda _: CallLimits(None, None)
    ),
)


class Attempts:
    """The attempts of one call, as Temporal hands each the last heartbeat of those before."""

    def __init__(self) -> None:
        self.heartbeat: tuple[Any, ...] = ()

    def play(self, work: Callable[[], Any], *, attempt: int, seconds: float = 0) -> Any:
        """Do an attempt's work, so long after the call was scheduled."""
        at = SCHEDULED + timedelta(seconds=seconds)
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info,
            attempt=attempt,
            scheduled_time=SCHEDULED,
            current_attempt_scheduled_time=at,
            started_time=at,
            heartbeat_details=self.heartbeat,
        )
        environment.on_heartbeat = self._beat
        return environment.run(work)

    def _beat(self, *details: Any) -> None:
        self.heartbeat = details


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


def cannot_start(*, max_waits: int | None = None) -> ApplicationError:
    header = ActionHeader(RunKey("r/1"), Position("0.0"), "d", max_waits=max_waits)
    return GuardedCall(TOOL, header).not_started("away")


def seconds_left() -> float | None:
    return time_left(CallLimits(None, 60)).node_seconds


def repeats() -> bool:
    return GuardedCall(TOOL, ActionHeader(RunKey("r/1"), Position("0.0"), "d")).repeats


def test_the_time_of_a_call_begins_when_it_may_start(attempts: Attempts) -> None:
    attempts.play(cannot_start, attempt=1)
    attempts.play(cannot_start, attempt=2, seconds=3_600)

    assert attempts.play(seconds_left, attempt=3, seconds=3_602) == pytest.approx(60, abs=0.1)
    assert attempts.play(seconds_left, attempt=4, seconds=3_612) == pytest.approx(50, abs=0.1)


def test_a_wait_grows_to_half_a_minute_and_has_an_end_where_one_is_set(attempts: Attempts) -> None:
    waits = [
        attempts.play(lambda: cannot_start(max_waits=7), attempt=number) for number in range(1, 9)
    ]

    delays = [one.next_retry_delay and one.next_retry_delay.total_seconds() for one in waits]
    assert delays == [1, 2, 4, 8, 16, 30, 30, None]
    assert [one.non_retryable for one in waits] == [*[False] * 7, True]


def test_attempts_that_surely_called_nothing_are_no_repetition(attempts: Attempts) -> None:
    attempts.play(cannot_start, attempt=1)
    attempts.play(cannot_start, attempt=2, seconds=1)

    assert not attempts.play(repeats, attempt=3, seconds=3)
    assert attempts.play(repeats, attempt=4, seconds=5), "the third was lost, and left no note"


def test_that_an_earlier_attempt_may_have_called_is_not_forgotten(attempts: Attempts) -> None:
    attempts.play(cannot_start, attempt=2)

    assert attempts.play(repeats, attempt=3, seconds=3)


def test_an_activity_that_an_operator_resets_is_a_repetition(attempts: Attempts) -> None:
    assert not attempts.play(repeats, attempt=1)
    assert attempts.play(repeats, attempt=1, seconds=5)


def test_a_wait_forgets_no_failure(attempts: Attempts) -> None:
    attempts.play(lambda: AttemptNotes(failed=2).leave(), attempt=1)
    attempts.play(cannot_start, attempt=2)

    assert attempts.play(AttemptNotes.read, attempt=3).failed == 2
