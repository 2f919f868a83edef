"""The activities that open, stop and close a run.

Each is safe to repeat: the run key makes one row of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.common import RawValue

from ...identity import parent_of
from ...ledger import ActionLedger, Run, ThreadLedger
from ...ledger.run_rules import check_starts_something, not_running
from ..app.agent import Agent
from ..app.app import App
from ..contract.deadlines import RunLimits
from ..contract.encoding import from_text, pack, to_text, unpack
from ..contract.runs import CLOSE_RUN, OPEN_RUN, STOP_RUN, CloseRun, Opened, OpenRun, StopRun
from ..contract.spec import AgentSpec
from ..guard.ledger_write import persist
from ..runner.clock import began_at
from .search_attributes import are_registered
from .served import served_agent

_GIVEN_UP: Final = frozenset(
    {EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED}
)


class RunActivities:
    """The activities by which a run begins and ends."""

    def __init__(
        self,
        app: App,
        ledger: ActionLedger,
        threads: ThreadLedger,
        *,
        heartbeat_seconds: float,
        result_limit: int,
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._threads = threads
        self._heartbeat_seconds = heartbeat_seconds
        self._result_limit = result_limit

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.open_run, self.close_run, self.stop_run)

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, raw: RawValue) -> RawValue:
        """Register the run and its conversation; return what it keeps, and the version.

        Safe to repeat: the run keeps the agent's spec of the first time.
        """
        request = unpack(OpenRun, raw)
        info = activity.info()
        thread_id = request.thread_id or request.run_key
        agent = served_agent(self._app, request.agent)
        spec = request.spec or agent.spec(
            heartbeat_seconds=self._heartbeat_seconds,
            limits=_limits_of(agent, request),
            result_limit=self._result_limit,
        )
        spec = replace(spec, listed=await are_registered())
        lost = request.spec is not None or (request.again and await _was_given_up())
        run = await persist(
            lambda: self._ledger.runs.open(
                run_key=request.run_key,
                workflow_id=info.workflow_id or "",
                agent=request.agent,
                input_digest=request.input_digest,
                attempt_at=began_at(),
                thread_id=thread_id,
                spec=to_text(spec),
                namespace=info.namespace,
                lost=lost,
            )
        )
        check_starts_something(run)
        assert run.spec is not None, "kept when it was opened"
        thread = await persist(lambda: self._threads.open(thread_id, agent=request.agent))
        return pack(Opened(_with_time_left(from_text(AgentSpec, run.spec), run), thread.version))

    @activity.defn(name=CLOSE_RUN)
    async def close_run(self, raw: RawValue) -> None:
        """Mark the run as ended: no older attempt claims any more. Safe to repeat.

        Raises:
            RunNotRunning: This workflow had begun to undo the run, and has not ended that: its
                history was reset to before.
        """
        request = unpack(CloseRun, raw)
        info = activity.info()
        run = await persist(
            lambda: self._ledger.runs.end(
                request.run_key, attempt_at=began_at(), owner=info.workflow_id
            )
        )
        if run.state == "undoing" and run.undo_owner == info.workflow_id:
            raise not_running(run, f"the run {run.run_key} is being undone: {run.stop_reason}")

    @activity.defn(name=STOP_RUN)
    async def stop_run(self, raw: RawValue) -> None:
        """Commit that the run stops: it claims nothing any more. Safe to repeat."""
        request = unpack(StopRun, raw)
        info = activity.info()
        await persist(
            lambda: self._ledger.runs.stop(
                request.run_key,
                workflow_id=info.workflow_id or "",
                agent="",
                reason=request.reason,
                attempt_at=began_at(),
                namespace=info.namespace,
            )
        )


async def _was_given_up() -> bool:
    """Whether the server has given up a workflow task of this execution: it may have done much."""
    info = activity.info()
    assert info.workflow_id is not None, "a workflow opens a run"
    handle = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
    return any([event.event_type in _GIVEN_UP async for event in handle.fetch_history_events()])


def seconds_left(deadline_seconds: float | None, run: Run) -> float | None:
    """Return what is left of a run's run_deadline, in seconds; None is no limit."""
    if deadline_seconds is None:
        return None
    return deadline_seconds - (run.now - run.created_at).total_seconds()


def _with_time_left(spec: AgentSpec, run: Run) -> AgentSpec:
    """Return what a run keeps of its agent, with what is left of its run_deadline."""
    return replace(spec, deadline_seconds=seconds_left(spec.deadline_seconds, run))


def _limits_of(agent: Agent, request: OpenRun) -> RunLimits:
    """Return the run's limits; of a parent's limits, those for the tools of the sub-agent."""
    if parent_of(request.run_key) is None:
        return request.limits
    given = request.limits.tool_timeouts
    return replace(
        request.limits,
        tool_timeouts={name: given[name] for name in given if name in agent.tool_names},
    )
