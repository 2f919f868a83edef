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

from ...canonical import scrub
from ...errors import CommitlineError, ConfigurationError, ToolNotServed
from ..app.agent import Agent
from ..app.app import App
from ..app.tool import Tool
from ..contract.activity_failure import as_failure

log = structlog.get_logger("commitline")

_LACKING: Final = "not served"
_TRIES: Final = 40
"""How often a worker is looked for that serves it. Which one takes the next attempt is chance:
the more workers lack it, the more attempts it takes to come to one that does not."""
_BETWEEN_THEM: Final = timedelta(seconds=0.25)


def served_agent(app: App, name: str) -> Agent:
    """Return an agent; if this worker has none of that name, let others try for a while.

    Raises:
        ApplicationError: This worker has none; final after a few tries.
    """
    try:
        return app.agent(name)
    except ConfigurationError as err:
        lacking = _count()
        if lacking == 1:
            log.warning("run.agent_not_served", agent=name)
        error = ConfigurationError(f"{err.message}; give each app a task queue of its own")
        raise _not_served(error, lacking) from err


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


def let_others_try(tool: str) -> None:
    """Leave it to another worker to say what is to be done with a tool that this one lacks.

    By a failed attempt: Temporal gives the next one to any worker. An activity that the
    workflow starts anew is mostly given to the very worker that is at the workflow.
    Returns where others were looked for long enough.

    Raises:
        ApplicationError: They were not; Temporal tries again.
    """
    failed = _tool_not_served(tool)
    if not failed.non_retryable:
        raise failed


def _tool_not_served(name: str) -> ApplicationError:
    lacking = _count()
    if lacking == 1:
        log.warning("run.tool_not_served", tool=name)
    error = ToolNotServed(f"no worker of this task queue serves {scrub(name, limit=80)!r}")
    return _not_served(error, lacking)


def _count() -> int:
    """Count the attempts that lack it, on the heartbeat, which the next attempt reads.

    Temporal's own attempts are not counted: the call may have been tried for other reasons.
    """
    before = activity.info().heartbeat_details
    lacking: int = 1 + (before[1] if before and before[0] == _LACKING else 0)
    activity.heartbeat(_LACKING, lacking)
    return lacking


def _not_served(error: CommitlineError, lacking: int) -> ApplicationError:
    # As designed, and often: the SDK need not log a traceback of each that is not final.
    return as_failure(error, final=lacking >= _TRIES, delay=_BETWEEN_THEM)
