"""The run's own activities: open it, settle what was left, stop it, close it.

Each is safe to repeat: the run key, or the action's, makes one row of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog
from temporalio import activity
from temporalio.common import RawValue

from ...errors import ConfigurationError, Fenced, LedgerError, NodeTimeout, RunNotRunning
from ...identity import ActionKey, parent_of
from ...ledger import Action, ActionLedger, Owned, Run, ThreadLedger
from ..app.agent import Agent
from ..app.app import App
from ..contract.activity_failure import as_failure
from ..contract.deadlines import RunLimits
from ..contract.outcomes import RECORD_OUTCOME, SETTLE_TIMED_OUT, SettleTimedOut, Unrecorded
from ..contract.reply import Reply
from ..contract.runs import CLOSE_RUN, OPEN_RUN, STOP_RUN, CloseRun, Opened, OpenRun, StopRun
from ..contract.spec import AgentSpec
from ..contract.wire import from_text, pack, to_text, unpack
from ..guard.ledger_write import persist
from ..replies import call_reply
from .served import served_agent

log = structlog.get_logger("commitline")


class RunActivities:
    """The activities of `AgentRun` besides the tools."""

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
        return (
            self.open_run,
            self.close_run,
            self.stop_run,
            self.record_outcome,
            self.settle_timed_out,
        )

    @activity.defn(name=OPEN_RUN)
    async def open_run(self, raw: RawValue) -> RawValue:
        """Register the run and its conversation; return what it keeps, and the version.

        Safe to repeat: what the run keeps of its agent is what it kept the first time.
        """
        request = unpack(OpenRun, raw)
        info = activity.info()
        thread_id = request.thread_id or request.run_key
        try:
            agent = served_agent(self._app, request.agent)
            spec = request.spec or agent.spec(
                heartbeat_seconds=self._heartbeat_seconds,
                limits=_limits_of(agent, request),
                result_limit=self._result_limit,
            )
            run = await persist(
                lambda: self._ledger.open_run(
                    run_key=request.run_key,
                    workflow_id=info.workflow_id or "",
                    agent=request.agent,
                    input_digest=request.input_digest,
                    attempt_at=info.started_time,
                    thread_id=thread_id,
                    spec=to_text(spec),
                    namespace=info.namespace,
                )
            )
            if run.stopped_at is not None:
                raise RunNotRunning(
                    f"the run {run.run_key} was stopped: {run.stop_reason}",
                    stopping=run.state == "stopping",
                )
            thread = await persist(lambda: self._threads.open(thread_id, agent=request.agent))
        except (ConfigurationError, LedgerError) as err:
            raise as_failure(err) from err
        assert run.spec is not None, "kept when it was opened"
        return pack(Opened(_with_what_is_left(from_text(AgentSpec, run.spec), run), thread.version))

    @activity.defn(name=CLOSE_RUN)
    async def close_run(self, raw: RawValue) -> None:
        """Mark the run as ended: no older attempt claims any more. Safe to repeat."""
        request = unpack(CloseRun, raw)
        info = activity.info()
        try:
            await persist(
                lambda: self._ledger.end_run(
                    request.run_key, attempt_at=info.started_time, owner=info.workflow_id
                )
            )
        except LedgerError as err:
            raise as_failure(err) from err

    @activity.defn(name=STOP_RUN)
    async def stop_run(self, raw: RawValue) -> None:
        """Commit that the run stops: it starts nothing any more. Safe to repeat."""
        request = unpack(StopRun, raw)
        info = activity.info()
        await persist(
            lambda: self._ledger.stop_run(
                request.run_key,
                workflow_id=info.workflow_id or "",
                agent="",
                reason=request.reason,
                attempt_at=info.started_time,
                namespace=info.namespace,
            )
        )

    @activity.defn(name=RECORD_OUTCOME)
    async def record_outcome(self, raw: RawValue) -> RawValue:
        """Record how a call ended, which its own attempt could not; return what stands.

        Safe to repeat: the first record stands. A ledger that is away fails the attempt, and
        Temporal tries again without end.
        """
        ended = unpack(Unrecorded, raw)
        owned = ended.owned
        try:
            if ended.known is None:
                parked = await self._ledger.park(
                    owned, ended.reason, over=ended.over, failures=ended.failures
                )
                return pack(call_reply.of_action(parked, limit=ended.content_limit))
            stands = await self._ledger.record(owned, ended.known)
        except Fenced as err:
            return pack(await self._overtaken(owned.key, ended, err))
        except LedgerError as err:
            raise as_failure(err) from err
        log.info("ledger.outcome_recorded", action_key=ended.key, outcome=stands.kind)
        return pack(call_reply.done(ended.key, stands, limit=ended.content_limit))

    async def _overtaken(self, key: ActionKey, ended: Unrecorded, fenced: Fenced) -> Reply:
        """Return what to tell where the row is no longer the attempt's whose outcome this is."""
        try:
            found = await self._ledger.get(key)
            if found is not None and found.state == "dispatched":
                if found.leased:
                    raise as_failure(fenced)  # a live attempt is at work on it: wait for it
                found = await self._park(found, "an attempt that had taken it over was lost")
        except LedgerError as err:
            raise as_failure(err) from err
        if found is not None and found.state != "intent":
            return call_reply.of_action(found, limit=ended.content_limit)
        # A failover lost the row while its outcome was here: what happened is still true.
        log.error("ledger.row_lost", action_key=key)
        if ended.known is None:
            raise as_failure(fenced)
        return call_reply.done(key, ended.known, limit=ended.content_limit)

    @activity.defn(name=SETTLE_TIMED_OUT)
    async def settle_timed_out(self, raw: RawValue) -> RawValue:
        """Return what is known of a call that the server gave up; park it if nothing is.

        Safe to repeat. Returns a reply without action key where nothing was dispatched so far:
        it may be started afresh, and an attempt that wakes up late may still dispatch it.
        """
        request = unpack(SettleTimedOut, raw)
        try:
            found = await self._ledger.get(request.key)
            if found is not None and found.relayed and await self._is_sent(found):
                return pack(call_reply.accepted(found))
            if found is not None and found.state == "dispatched":
                why = f"its attempts were lost until its time was up [{NodeTimeout.code}]"
                found = await self._park(found, why)
        except LedgerError as err:
            raise as_failure(err) from err
        if found is None or found.state == "intent":
            return pack(call_reply.node_timed_out())
        return pack(call_reply.of_action(found, limit=request.content_limit))

    async def _is_sent(self, found: Action) -> bool:
        """Whether the relay still sees to a row of its: not once its run was stopped."""
        run = await self._ledger.get_run(found.run_key)
        return run is not None and run.stopped_at is None

    async def _park(self, found: Action, why: str) -> Action:
        """Leave a dispatched row unknown, whoever's attempt was lost; it may yet be at work."""
        assert found.claim_token is not None, "agent_actions_dispatch_is_complete"
        holder = Owned(found.key, found.claim_token, found.domain_key)
        return await self._ledger.park(holder, why, over=False)


def _limits_of(agent: Agent, request: OpenRun) -> RunLimits:
    """Return the run's limits; of those that a sub-agent's has from its parent, what is for it."""
    if parent_of(request.run_key) is None:
        return request.limits
    given = request.limits.tool_timeouts
    return replace(
        request.limits,
        tool_timeouts={name: given[name] for name in given if name in agent.tool_names},
    )


def _with_what_is_left(spec: AgentSpec, run: Run) -> AgentSpec:
    """Return what a run keeps of its agent, with what is left of its run_deadline."""
    return replace(spec, deadline_seconds=what_is_left(spec.deadline_seconds, run))


def what_is_left(deadline_seconds: float | None, run: Run) -> float | None:
    """Return what is left of a run's run_deadline, in seconds; None is no limit."""
    if deadline_seconds is None:
        return None
    return deadline_seconds - (run.now - run.created_at).total_seconds()
