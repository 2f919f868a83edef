"""Closes the runs whose workflows have ended without closing them: the relay's second half.

A workflow that was terminated, timed out or deleted could not close its run. What it left
dispatched is queued, and settlements find out how it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from ...ledger import ActionLedger, Run
from ...logs import Log
from ..contract.relay import CLOSE_GONE_RUNS
from ..guard.heartbeat import beating
from .relay_batch import AT_ONCE, LONGEST_SECONDS, side_by_side
from .run_executions import RunExecutions

log = Log()


class GoneRuns:
    """The runs of a namespace that the ledger has as open and Temporal as ended."""

    def __init__(self, ledger: ActionLedger, temporal: Client) -> None:
        self._ledger = ledger
        self._namespace = temporal.namespace
        self._executions = RunExecutions(temporal, ledger)

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.close_gone_runs,)

    @activity.defn(name=CLOSE_GONE_RUNS)
    async def close_gone_runs(self) -> int:
        """Close the runs that are gone; return how many. Safe to repeat.

        A run of which Temporal says nothing now is left to the next look.
        """
        async with beating():
            return await self._close_all()

    async def _close_all(self) -> int:
        relay = self._ledger.relay
        gone = 0
        ends_at = time.monotonic() + LONGEST_SECONDS
        began = await relay.now()
        while True:
            runs = await relay.take_runs(limit=AT_ONCE, before=began, namespace=self._namespace)
            gone += sum(await side_by_side([self._close_if_gone(run) for run in runs]))
            if len(runs) < AT_ONCE or time.monotonic() > ends_at:
                return gone

    async def _close_if_gone(self, run: Run) -> bool:
        try:
            end = await self._executions.end_of(run)
        except RPCError as err:
            log.warning("relay.look_failed", run_key=run.run_key, reason=err.message[:200])
            return False
        if end is None:
            return False
        ended = await self._ledger.relay.end_lost(
            run,
            workflow_status=end.how,
            ended_at=end.at,
            # The activities of a workflow that is not ours: the relay has no such tools.
            can_look_up=run.spec is not None or run.parent_key is not None,
        )
        if ended:
            log.warning("relay.run_lost", run_key=run.run_key, workflow_status=end.how)
        return ended
