"""Which HTTP statuses are worth another try, and how long to wait before it. Pure functions.

For tools and models alike. Only a number in an attribute of an exception counts as a status; a
number in the text of a message does not.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

ERROR_STATUSES: Final = range(400, 600)
"""What counts as the status of an error."""
RETRYABLE_STATUSES: Final = frozenset({408, 409, 429, *range(500, 600)})
"""Statuses after which the same request may succeed."""
MAX_RETRY_AFTER: Final = timedelta(days=1)
"""The longest wait that is honoured. A longer one is cut to this: it may not fit a timedelta."""


def requested_delay(value: Any) -> timedelta | None:
    """Return the wait that the other side requested, a day at most; None where it is unreadable.

    Args:
        value: A ``timedelta``, seconds, or the text of a ``Retry-After`` header (seconds or a
            date).
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and not value.replace(".", "", 1).strip().isdigit():
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        seconds = float(value)
    else:
        return None
    if math.isnan(seconds) or seconds < 0:
        return None
    return timedelta(seconds=min(seconds, MAX_RETRY_AFTER.total_seconds()))


def back_off(failed: int, *, first: timedelta, longest: timedelta) -> timedelta:
    """Return how long to wait after the ``failed``-th failure: twice as long each time.

    Args:
        failed: How many tries have failed so far, from 1.
        first: The wait after the first failure.
        longest: The longest wait.
    """
    return min(first * (1 << min(max(failed - 1, 0), 20)), longest)
