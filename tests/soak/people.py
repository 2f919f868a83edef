"""The people of a soak: they decide about approvals, and settle what is unknown."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from temporalio.service import RPCError

from commitline.canonical import dumps
from commitline.client import AgentClient
from commitline.errors import CommitlineError, LedgerUnavailable, SettlementRefused
from commitline.ledger import Action, ActionLedger, Approval, Outcome, QueuedAction
from commitline.tests.soak.counted import Counted
from commitline.tests.soak.unforeseen import Unforeseen

BY: Final = "soak"
_LOOK_SECONDS: Final = 0.3
_DECIDE_SECONDS: Final = 10.0
_DECISIONS: Final = {"approves": True, "rejects": False}


class People:
    """Decide, and settle, with a client of their own."""

    def __init__(self, client: AgentClient, unforeseen: Unforeseen) -> None:
        self.counts: Counter[str] = Counter()
        self._client = client
        self._unforeseen = unforeseen
        self._deciding: set[str] = set()

    async def decide(self) -> None:
        """Decide about every approval, as the arguments of its call say, until cancelled."""
        async with asyncio.TaskGroup() as under_way:
            while True:
                # The ledger may be unavailable.
                with self._unforeseen.noted("people"), suppress(CommitlineError):
                    for asked in await (await self._client.ledger()).approvals.list():
                        if asked.key not in self._deciding:
                            self._deciding.add(asked.key)
                            under_way.create_task(self._decide(asked))
                await asyncio.sleep(_LOOK_SECONDS)

    async def _decide(self, asked: Approval) -> None:
        """Decide once; if the run cannot be reached, a later look tries again."""
        approve = _DECISIONS.get(json.loads(asked.args)["person"])
        if approve is None:
            return  # the person is away: it stays marked, and expires
        with self._unforeseen.noted("people"):
            try:
                async with asyncio.timeout(_DECIDE_SECONDS):
                    run = self._client.run(asked.workflow_id)
                    await run.decide(asked, approve=approve, by=BY, reason="as it says")
                    self.counts["approved" if approve else "rejected"] += 1
            except (CommitlineError, RPCError, TimeoutError):
                self.counts["decided too late"] += 1  # or the answer was lost
            finally:
                self._deciding.discard(asked.key)

    async def settle(self, ledger: ActionLedger, counted: Counted) -> int:
        """Settle unknown actions by what the provider counted; return how many are to be.

        All that hold back others of their order are settled, and half of the rest. What became
        known meanwhile is refused.
        """
        wanted = to_settle(await ledger.list(limit=1_000_000), await ledger.relay.list())
        for action in wanted:
            try:
                await self._client.settle(action.key, _found(action, counted), by=BY)
                self.counts["settled"] += 1
            except (SettlementRefused, LedgerUnavailable) as err:
                self.counts[f"not settled: {err.code}"] += 1
        return len(wanted)


def to_settle(actions: Sequence[Action], queue: Sequence[QueuedAction]) -> Sequence[Action]:
    """Return what people settle: what holds up others, and one in two of what else was sent."""
    holds = {one.key for one in queue if one.order_key is not None}
    return [
        action
        for action in actions
        if action.parked
        and action.duplicate_of is None
        and action.dispatched_at is not None
        and not action.leased
        and (action.key in holds or sum(action.key.encode()) % 2)
    ]


def _found(action: Action, counted: Counted) -> Outcome:
    if counted.effects[action.key]:
        return Outcome.ok(dumps({"id": f"found for {action.tool}"}))
    return Outcome.error(
        kind="NotFound", message="the provider has not seen it", effect_possible=False
    )
