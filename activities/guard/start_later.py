"""What could not be *started* is started later: the ledger is away, say, or the key is in use.

Temporal's own attempts carry that wait. They cost the workflow's history nothing, however long it
lasts, and hold no worker between two of them. The node's time begins when the wait is over.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from temporalio.exceptions import ApplicationError

from ...canonical import scrub
from ..contract.activity_failure import NOT_STARTED, again, not_started
from ..contract.retry_rules import back_off
from ..runner.attempt_notes import AttemptNotes
from ..runner.clock import began_at, now

_FIRST_WAIT: Final = timedelta(seconds=1)
_LONGEST_WAIT: Final = timedelta(seconds=30)


def start_later(
    reason: str, *, began: float, max_waits: int | None = None, uncalled: int = 0
) -> ApplicationError:
    """Return the failure of an attempt that could not start its call: the next one tries to.

    Args:
        reason: Why it could not.
        began: When the attempt began, by `clock.now`.
        max_waits: How often the call may wait; after that, the failure is final.
        uncalled: As `AttemptNotes.uncalled`.
    """
    notes = AttemptNotes.read()
    if max_waits is not None and notes.waits >= max_waits:
        return not_started(reason)
    waits = notes.waits + 1
    delay = back_off(waits, first=_FIRST_WAIT, longest=_LONGEST_WAIT)
    starts_in = now() - began + delay.total_seconds()
    clock_from = began_at().timestamp() + starts_in
    replace(notes, waits=waits, uncalled=uncalled, clock_from=clock_from).leave()
    return again(NOT_STARTED, scrub(reason), delay=delay)
