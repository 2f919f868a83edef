"""Closes the runs whose workflows have ended without closing them: the relay's second half.

A workflow that was terminated, timed out or deleted could not close its run. What it left
dispatched is queued, and settlements find out how it ended.

Then it sees to what ended runs have left, whatever the cause: each action has an exit, or gets one.
`commitline_exit` in the migration says which; docs/relay.md has the table. What waits for a person
is queued, so that an open workflow shows it in Temporal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from ...identity import RunKey, is_of_outbox
from ...ledger import ActionLedger, Run
from ...logs import Log
from ...metrics import LOST_RUNS, count
from ..contract.relay import CLOSE_GONE_RUNS
from ..guard.heartbeat import beating
from .left_runs import LeftRuns
from .left_undos import LeftUndos
from .missing_runs import MissingRuns
from .relay_batch import AT_ONCE, LONGEST_SECONDS, side_by_side
from .run_executions import RunExecutions

log = Log()

_BY_ITSELF: Final = ("completed", "failed", "canceled")
"""How a workflow ends that nobody has ended from outside."""
SHOWN_AT_ONCE: Final = 1_000
"""How many open workflows show what waits for a person, in one ledger. `commitline actions list
--parked` lists what is beyond that."""


class GoneRuns:
    """The runs of a namespace that the ledger has as open, and that nobody carries out.

    Args:
        ledger: Over an open pool.
        temporal: The cluster of the runs.
        left: Takes over the runs that go on and that no worker takes up; None: nobody does.
        undos: Takes over the undos that no worker takes up; None: nobody does.
        missing: Tells those to look that the ledger does not know; None: nobody does.
        tools: The tools that the worker serves: what is unknown of them is shown.
    """

    def __init__(
        self,
        ledger: ActionLedger,
        temporal: Client,
        left: LeftRuns | None = None,
        undos: LeftUndos | None = None,
        missing: MissingRuns | None = None,
        *,
        tools: Sequence[str] = (),
    ) -> None:
        self._ledger = ledger
        self._namespace = temporal.namespace
        self._executions = RunExecutions(temporal, ledger)
        self._missing = missing
        self._left = left
        self._undos = undos
        self._tools = tools

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.close_gone_runs,)

    @activity.defn(name=CLOSE_GONE_RUNS)
    async def close_gone_runs(self) -> int:
        """Close the runs that are gone; return how many. Safe to repeat."""
        async with beating():
            return await self.sweep()

    async def sweep(self) -> int:
        """Close the runs that are gone, and see to what ended runs have left; return how many.

        Safe to repeat. A run of which Temporal says nothing now is left to the next look.

        Raises:
            LedgerUnavailable: No answer within the deadline; the next look goes on with the rest.
        """
        gone = await self._close_all()
        if self._missing is not None:
            await self._missing.tell()
        if self._undos is not None:
            await self._undos.take_over()
        await self._give_exits()
        await self._show_parked()
        return gone

    async def _show_parked(self) -> None:
        relay, namespace = self._ledger.relay, self._namespace
        for key in await relay.drop_settled(namespace=namespace):
            log.warning("relay.settled_dropped", action_key=key)
        await relay.queue_parked(self._tools, most=SHOWN_AT_ONCE, namespace=namespace)

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
            if end is None and self._left is not None:
                await self._left.take_over_if_left(run)
        except RPCError as err:
            log.warning("relay.look_failed", run_key=run.run_key, reason=err.message[:200])
            return False
        if end is None:
            return False
        if not run.can_look_up and run.state != "undoing" and end.how in _BY_ITSELF:
            # Nothing is lost with it: a workflow that is not ours closes no run.
            await self._ledger.runs.end(run.run_key, attempt_at=end.at)
            return False
        ended = await self._ledger.relay.end_lost(
            run,
            workflow_status=end.how,
            ended_at=end.at,
            can_look_up=run.can_look_up,
        )
        if ended:
            count(LOST_RUNS)
            log.warning("relay.run_lost", run_key=run.run_key, workflow_status=end.how)
        return ended

    async def _give_exits(self) -> None:
        """Give each action an exit that nobody brings to an end."""
        relay = self._ledger.relay
        for key in await relay.adopt():
            log.info("relay.action_adopted", action_key=key)
        if await relay.settle_repeats():
            log.error("relay.repeats_left_over")
        ends_at = time.monotonic() + LONGEST_SECONDS
        began = await relay.now()
        while True:
            looked_at, left_over = await relay.clear_runs(limit=AT_ONCE, before=began)
            await side_by_side([self._give_exits_of(run_key) for run_key in left_over])
            if looked_at < AT_ONCE or time.monotonic() > ends_at:
                return

    async def _give_exits_of(self, run_key: RunKey) -> bool:
        run = await self._ledger.runs.get(run_key)
        if run is None or not await self._has_ended(run):
            return False
        given = await self._ledger.relay.give_exits(run, can_look_up=run.can_look_up)
        if given:
            log.warning("relay.actions_left_over", run_key=run_key)
        return given

    async def _has_ended(self, run: Run) -> bool:
        """Whether nothing of the run goes on, as far as this relay can find out."""
        if is_of_outbox(run.run_key) or run.namespace is None:
            return True  # it has no workflow
        try:
            return await self._executions.end_of(run) is not None
        except RPCError as err:
            log.warning("relay.look_failed", run_key=run.run_key, reason=err.message[:200])
            return False
