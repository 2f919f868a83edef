"""The activities that begin and end the run of a sub-agent.

To begin it is to give its run to the workflow that the parent starts next. After a reset of the
parent, an older workflow may have the run. Its claims fail from then on; it is cancelled, and the
next workflow starts when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from ...errors import AgentsTooDeep, RunNotRunning, SubAgentClosed, SubAgentNotEnded
from ...identity import MAX_DEPTH, depth_of, sub_workflow
from ...ledger import SubRunLedger
from ...ledger.action_ledger import ActionLedger
from ...logs import Log
from ..contract.activity_failure import as_failure
from ..contract.encoding import pack, unpack
from ..contract.sub_agents import (
    BEGIN_SUB_AGENT,
    END_SUB_AGENT,
    BeginSubAgent,
    BegunSubAgent,
    EndSubAgent,
)
from ..guard.ledger_write import persist
from ..replies import call_reply
from ..replies.standing_actions import left_standing
from ..runner.clock import began_at

log = Log()

_WAIT_SECONDS: Final = 8.0
"""How long one attempt waits for the older workflow; then the next attempt waits."""
_NEXT_WAIT: Final = timedelta(seconds=1)


class SubAgentActivities:
    """The activities of calls that a sub-agent carries out."""

    def __init__(self, ledger: ActionLedger) -> None:
        self._ledger = ledger

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.begin_sub_agent, self.end_sub_agent)

    @activity.defn(name=BEGIN_SUB_AGENT)
    async def begin_sub_agent(self, raw: RawValue) -> RawValue:
        """Give a sub-agent's run to the workflow that this execution starts next.

        Safe to repeat: the row names the older workflow until that one has ended. The new
        workflow's id is made here, from the execution that runs now: workflow code would read
        another execution's id when its history is replayed after a reset.
        """
        request = unpack(BeginSubAgent, raw)
        info = activity.info()
        if depth_of(request.sub_run) > MAX_DEPTH:
            raise AgentsTooDeep(
                f"{request.agent!r} would be the agent number {MAX_DEPTH + 1} below"
            )
        begun = BegunSubAgent(
            sub_workflow(info.workflow_id or "", request.position, info.workflow_run_id or "")
        )
        try:
            former = await self._give(request, begun)
            if former is not None:
                log.info("run.sub_agent_overtaken", run_key=request.sub_run, workflow_id=former)
                await _end(former)
                await self._give(request, begun, ended=former)
        except SubAgentClosed:
            return pack(replace(begun, closed=True))
        return pack(begun)

    async def _give(
        self, request: BeginSubAgent, begun: BegunSubAgent, *, ended: str | None = None
    ) -> str | None:
        info = activity.info()

        async def give() -> str | None:
            return await self._sub_runs.assign(
                request.sub_run,
                workflow_id=begun.workflow_id,
                by=info.workflow_id or "",
                agent=request.agent,
                input_digest=request.input_digest,
                attempt_at=began_at(),
                ended=ended,
            )

        try:
            return await persist(give)
        except RunNotRunning as err:
            if err.known:
                raise
            # A failover lost the parent's row.
            await persist(
                lambda: self._ledger.runs.open(
                    run_key=request.run_key,
                    workflow_id=info.workflow_id or "",
                    agent="",
                    input_digest="",
                    attempt_at=began_at(),
                )
            )
            return await persist(give)

    @activity.defn(name=END_SUB_AGENT)
    async def end_sub_agent(self, raw: RawValue) -> RawValue:
        """Close a sub-agent's run that gave no answer; return the call's `Reply`.

        The reply lists the actions of the run that stand. Safe to repeat, by a later execution
        too: the first reason stands, and the run claims nothing any more.
        """
        request = unpack(EndSubAgent, raw)
        started = began_at()
        closed = await persist(
            lambda: self._sub_runs.close(request.sub_run, reason=request.reason, attempt_at=started)
        )
        standing = left_standing(closed.actions)
        log.warning(
            "run.sub_agent_failed",
            run_key=request.sub_run,
            reason=closed.reason,
            standing=len(standing),
        )
        return pack(call_reply.sub_agent_failed(closed.reason, standing))

    @property
    def _sub_runs(self) -> SubRunLedger:
        return self._ledger.sub_runs


async def _end(workflow_id: str) -> None:
    """Cancel a workflow and wait until it has ended, and its tools with it.

    Raises:
        ApplicationError: It has not ended yet; tried again.
    """
    handle = activity.client().get_workflow_handle(workflow_id)
    try:
        await handle.cancel(reason="its parent was reset, and has started it anew")
    except RPCError as err:
        if err.status is RPCStatusCode.NOT_FOUND:  # it has ended, or its history is gone
            return
        raise
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            with suppress(WorkflowFailureError):
                await handle.result()
    except TimeoutError as err:
        error = SubAgentNotEnded(f"{workflow_id} was cancelled and has not ended yet")
        raise as_failure(error, delay=_NEXT_WAIT) from err
