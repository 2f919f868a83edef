"""Deadlines: what they are set to, and how they travel.

    setting        default   bounds
    tool_timeout   300 s     one attempt of one tool call
    node_timeout   900 s     a model request or a tool call, each with its retries
    model_timeout  600 s     one model request
    run_deadline   none      the run

The most specific setting wins, in this order: the run's for a tool, the tool's, the run's, the
agent's, the default. None, zero and less mean no limit. A setting that is no number is logged,
and the default is used.

Deadlines are enforced inside the activity. The server's time-out of an attempt lies beyond them as
a backstop, because the SDK starts the next attempt before it cancels the old one. Our deadlines
travel beside it, because the server cuts its own down to what is left of the workflow's. There is
no time-out of the server's for a call with its retries: the server would count the time in which
the call cannot start.

`runner.clock` says what is left of them, `runner.bounded_call` ends a call by them, and
`guard.invocation.failure_of` says what a time-out means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

from pydantic import SkipValidation

from ...logs import Log

log = Log()

BACKSTOP: Final = timedelta(seconds=30)
"""How far the server's time-out lies beyond our deadlines: for a slow claim or a slow record."""
NO_LIMIT: Final = timedelta(days=3650)
"""The server's time-out where there is no limit: the server wants one."""

LONGEST: Final = timedelta(days=3653)
"""Ten years: the longest duration of a tool that becomes a date. No date is past the year 9999."""

DEFAULTS: Final = {"tool_timeout": 300.0, "node_timeout": 900.0, "model_timeout": 600.0}
"""Seconds."""


class Unset(StrEnum):
    """The type of `UNSET`. It travels as the text ``unset``."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""Not set here: the next less specific setting decides."""

Deadline: TypeAlias = Annotated[timedelta | float | str | None, SkipValidation]
"""A deadline as it is set: a ``timedelta``, or seconds, also as text (``"1.5"``). None, zero and
less are no limit; `UNSET` leaves the decision to the next less specific setting.

Not validated when it is read: a run must not fail because of a setting that is no number.
"""


@dataclass(frozen=True)
class CallLimits:
    """The deadlines of one call, in seconds; None is no limit."""

    attempt_seconds: float | None
    """For one attempt."""
    node_seconds: float | None
    """For the call with its retries, from when it may start."""

    @property
    def start_to_close(self) -> timedelta:
        """The server's time-out of one attempt."""
        return NO_LIMIT if self.nearest is None else timedelta(seconds=self.nearest) + BACKSTOP

    @property
    def nearest(self) -> float | None:
        """The nearer of the two, which ends the attempt."""
        given = [one for one in (self.attempt_seconds, self.node_seconds) if one is not None]
        return min(given, default=None)


@dataclass(frozen=True)
class RunLimits:
    """The deadlines that a run was started with, as they were given; kept with its input."""

    tool_timeout: Deadline = UNSET
    """For one attempt of a tool call."""
    node_timeout: Deadline = UNSET
    """For a model request, and for a tool call, each with its retries."""
    model_timeout: Deadline = UNSET
    """For one model request."""
    run_deadline: Deadline = UNSET
    """For the whole run."""
    tool_timeouts: Mapping[str, Deadline] = field(default_factory=dict)
    """``tool_timeout`` by the name of the tool."""

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are set, as plain JSON: a duration as its seconds."""
        return {
            name: _plain(value) for name, value in vars(self).items() if value not in (UNSET, {})
        }


def resolve(name: str, *settings: Deadline) -> float | None:
    """Return a deadline in seconds: the first setting that is set, else the default.

    Args:
        name: ``tool_timeout``, ``node_timeout``, ``model_timeout`` or ``run_deadline``.
        settings: From the most specific to the least specific.
    """
    for setting in settings:
        if isinstance(setting, str) and setting == UNSET:
            continue
        try:
            return _number(setting)
        except (TypeError, ValueError, OverflowError):
            log.warning("limits.setting_invalid", setting=name, value=repr(setting)[:80])
            break
    return DEFAULTS.get(name)


def wait_seconds(seconds_left: float | None) -> float:
    """Return how long a workflow waits for a person: Temporal wants a positive number.

    Args:
        seconds_left: Until what it waits for expires; None is never.
    """
    return NO_LIMIT.total_seconds() if seconds_left is None else max(seconds_left, 0.001)


def _number(setting: Deadline) -> float | None:
    if setting is None:
        return None
    if isinstance(setting, timedelta):
        seconds = setting.total_seconds()
    elif isinstance(setting, bool) or not isinstance(setting, int | float | str):
        raise TypeError("not a number of seconds")
    else:
        seconds = float(setting)
    if math.isnan(seconds):
        raise ValueError("not a number")
    return seconds if 0 < seconds < NO_LIMIT.total_seconds() else None


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity; read as text it means what it says
    return value if value is None or isinstance(value, str | int | float | list) else repr(value)
