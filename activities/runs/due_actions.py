"""Starts a settlement for each action that is due: the relay's first half.

The relay calls no tool itself. Each due action gets a workflow of its own, ``settle:<action
key>``. The id is unique, so many relays are safe, and an action that keeps failing holds up no
other.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...identity import settle_workflow
from ...ledger import ActionLedger, RelayEntry
from ...logs import Log
from ...shown import markdown_line
from ..contract.encoding import pack
from ..contract.relay import LOOK_AGAIN, SETTLE_ACTION, START_SETTLEMENTS
from ..guard.heartbeat import beating
from .left_workflows import left
from .relay_batch import AT_ONCE, LONGEST_SECONDS, side_by_side
from .step_tools import StepTools

log = Log()

_AWAY: Final = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.CANCELLED,
)
"""Errors of Temporal as a whole, not of the one workflow that was to start."""


class DueActions:
    """The actions of an app's tools that are due in the relay's queue.

    Args:
        app: Only actions of its tools are taken.
        ledger: Over an open pool.
        temporal: The cluster where settlements start.
        task_queue: The task queue of the settlements.
    """

    def __init__(
        self, app: StepTools, ledger: ActionLedger, temporal: Client, *, task_queue: str
    ) -> None:
        self._tools = [made.name for made in app.tools]
        self._ledger = ledger
        self._temporal = temporal
        self._task_queue = task_queue

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.start_settlements_activity,)

    @activity.defn(name=START_SETTLEMENTS)
    async def start_settlements_activity(self) -> int:
        """Start a settlement of each action that is due; return how many. Safe to repeat."""
        async with beating():
            return await self.start_settlements()

    async def start_settlements(self) -> int:
        """Start a settlement of each action that is due; return how many. Safe to repeat.

        Raises:
            LedgerUnavailable: No answer within the deadline.
            RPCError: Temporal is away; the other actions are due again soon.
        """
        started = 0
        ends_at = time.monotonic() + LONGEST_SECONDS
        while True:
            due = await self._ledger.relay.take_due(
                self._tools, limit=AT_ONCE, namespace=self._temporal.namespace
            )
            begun = await side_by_side([self._start(queued) for queued in due])
            started += sum(begun)
            if len(due) < AT_ONCE or time.monotonic() > ends_at:
                return started

    async def _start(self, queued: RelayEntry) -> bool:
        try:
            if not await self._started(queued):
                return False
        except RPCError as err:
            # The action is due again soon; the others need not wait for it.
            log.warning("relay.start_failed", action_key=queued.key, reason=err.message[:200])
            if err.status in _AWAY:
                raise
            return False
        await self._ledger.relay.count_start(queued)
        log.info("relay.settlement_started", action_key=queued.key, why=queued.why)
        return True

    async def _started(self, queued: RelayEntry) -> bool:
        """Start a settlement, also instead of one that is left; return whether there was none.

        The one that is left may have called the tool. The lease of the action says whether that
        is at work still, and the next settlement waits for its end. One that shows that the action
        waits for a person looks again.
        """
        start = functools.partial(
            self._temporal.start_workflow,
            SETTLE_ACTION,
            pack(queued.key),
            id=settle_workflow(queued.key),
            task_queue=self._task_queue,
            static_summary=markdown_line(f"{queued.why}: {queued.tool}"),
        )
        try:
            await start(id_conflict_policy=WorkflowIDConflictPolicy.FAIL)
        except WorkflowAlreadyStartedError:
            if await left(self._temporal, settle_workflow(queued.key)) is None:
                if queued.shown:
                    at_it = self._temporal.get_workflow_handle(settle_workflow(queued.key))
                    await at_it.signal(LOOK_AGAIN)
                    # One that does not go on is told less often, and its history does not fill.
                    await self._ledger.relay.count_start(queued)
                return False  # one is at work
            log.warning("relay.settlement_left", action_key=queued.key)
            await start(id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING)
        return True
