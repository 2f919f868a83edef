"""Agents and tools that a worker serves, and what happens with one that it does not serve.

A task queue hands work to any of its workers. During a deploy, some of them may lack the agent or
the tool that a run needs. So the attempt fails and Temporal gives the next one to any worker, for
some time. Then the run ends with a clear failure; it does not try for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ...canonical import scrub
from ...errors import CommitlineError, ConfigurationError, ToolNotServed
from ...logs import Log
from ..app.agent import Agent
from ..app.app import App
from ..app.tool import Tool
from ..contract.activity_failure import as_failure
from ..runner.attempt_notes import AttemptNotes

log = Log()

_TRIES: Final = 40
"""Attempts until the failure is final. Which worker takes the next attempt is chance: the more
workers lack the tool, the more attempts it takes to reach one that serves it."""
_BETWEEN_TRIES: Final = timedelta(seconds=0.25)


def served_agent(app: App, name: str) -> Agent:
    """Return an agent by its name.

    Raises:
        ApplicationError: This worker does not serve it. Another worker may; final after
            40 tries.
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
    """Return a tool by its name.

    Raises:
        ApplicationError: This worker does not serve it. Another worker may; final after
            40 tries.
    """
    for tool in app.tools:
        if tool.name == name:
            return tool
    raise _tool_not_served(name)


@activity.defn(dynamic=True)
async def unserved_tool(arguments: Sequence[RawValue]) -> Any:
    """Stand in for every tool that this worker does not serve. Nothing is called."""
    raise _tool_not_served(activity.info().activity_type)


def leave_to_other_workers(tool: str) -> None:
    """Fail this attempt, so that a worker that serves the tool may take the next one.

    An attempt must fail for this: Temporal gives an activity that the workflow schedules anew
    mostly to the worker that runs the workflow. Returns after 40 tries: no worker was found.

    Raises:
        ApplicationError: Temporal tries again.
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
    """Count the attempts on workers that lack it, for the next one."""
    before = AttemptNotes.read()
    notes = replace(before, unserved=before.unserved + 1)
    notes.leave()
    return notes.unserved


def _not_served(error: CommitlineError, lacking: int) -> ApplicationError:
    # By design, and often: the SDK need not log a traceback of one that is not final.
    return as_failure(error, final=lacking >= _TRIES, delay=_BETWEEN_TRIES)
