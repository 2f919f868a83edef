"""When a call is tried again: how long after a failure, and whether there is time for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from temporalio import activity

from ..app.tool_failure import ToolFailure
from ..contract.retry_rules import back_off
from .guarded_call import GuardedCall

_FIRST_RETRY: Final = timedelta(seconds=0.5)
_LAST_RETRY: Final = timedelta(seconds=30)
_LAST_RELAYED: Final = timedelta(minutes=10)
"""For a call of the relay, which no run waits for."""


def delay_after(call: GuardedCall, failure: ToolFailure, *, failed: int) -> timedelta:
    """Return how long to wait: what the other side asked for, else twice as long each time.

    Args:
        call: What failed.
        failure: How it failed last.
        failed: How often it has failed so far.
    """
    if failure.retry_after is not None:
        return failure.retry_after
    last = _LAST_RELAYED if call.header.purpose == "relay" else _LAST_RETRY
    return back_off(failed, first=_FIRST_RETRY, longest=last)


def time_for(call: GuardedCall, delay: timedelta) -> bool:
    """Whether another attempt may begin after ``delay``: attempts and the node's time are left."""
    info = activity.info()
    most = info.retry_policy.maximum_attempts if info.retry_policy else 0
    if info.is_local:
        most = 0  # an activity of the server's follows
    if most and info.attempt >= most:
        return False
    node = call.limits.node_seconds
    return node is None or node - call.spent() > delay.total_seconds()
