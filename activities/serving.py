"""What a worker does not serve: for a while another one may, during a deploy; then it is said.

A task queue hands work to any of its workers. One of the release before, or after, may lack the
agent or the tool that a run is about. So each is looked for some time, and then the run ends
with a clear failure instead of trying for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ..canonical import scrub
from ..errors import CommitlineError, ConfigurationError, ToolNotServed
from .agent import Agent, App
from .tool import Tool

log = structlog.get_logger("commitline")

_LACKING: Final = "not served"
_TRIES: Final = 5
"""How often, a second apart, a worker is looked for that serves it."""


def served_agent(app: App, name: str) -> Agent:
    """Return an agent; if this worker has none of that name, let others try for a while.

    Raises:
        ApplicationError: This worker has none; final after a few tries.
    """
    try:
        return app.agent(name)
    except ConfigurationError as err:
        log.warning("run.agent_not_served", agent=name)
        raise _not_served(err, f"{err.message}; give each app a task queue of its own") from err


def served_tool(app: App, name: str) -> Tool:
    """Return a tool; if this worker has none of that name, let others try for a while.

    Raises:
        ApplicationError: This worker has none; final after a few tries.
    """
    for tool in app.tools:
        if tool.name == name:
            return tool
    raise _tool_not_served(name)


@activity.defn(dynamic=True)
async def unserved_tool(arguments: Sequence[RawValue]) -> Any:
    """Be the activity of every tool that this worker does not have. Nothing is called."""
    raise _tool_not_served(activity.info().activity_type)


def _tool_not_served(name: str) -> ApplicationError:
    log.warning("run.tool_not_served", tool=name)
    error = ToolNotServed(f"no worker of this task queue serves {scrub(name, limit=80)!r}")
    return _not_served(error, error.message)


def _not_served(error: CommitlineError, message: str) -> ApplicationError:
    """Count the workers that lack it, on the heartbeat, which the next attempt reads.

    Temporal's own attempts are not counted: the call may have been tried for other reasons.
    """
    before = activity.info().heartbeat_details
    lacking = 1 + (before[1] if before and before[0] == _LACKING else 0)
    activity.heartbeat(_LACKING, lacking)
    return ApplicationError(
        scrub(f"{message} [{error.code}]"),
        type=type(error).__name__,
        non_retryable=lacking >= _TRIES,
        next_retry_delay=timedelta(seconds=1),
    )
