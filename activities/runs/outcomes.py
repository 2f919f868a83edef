"""The activities for a call whose outcome its own attempt did not record.

Either the attempt knew the outcome and the ledger was away (`record_outcome`), or an operator ended
the activity (`settle_ended`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from temporalio import activity
from temporalio.common import RawValue

from ...errors import EndedByOperator, Fenced
from ...identity import ActionKey
from ...ledger import Action, ActionLedger, HeldClaim
from ...logs import Log
from ..contract.encoding import pack, unpack
from ..contract.outcomes import RECORD_OUTCOME, SETTLE_ENDED, SettleEnded, Unrecorded
from ..contract.reply import Reply
from ..replies import call_reply

log = Log()


class OutcomeActivities:
    """The activities for outcomes that their own attempts did not record."""

    def __init__(self, ledger: ActionLedger) -> None:
        self._ledger = ledger

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.record_outcome, self.settle_ended)

    @activity.defn(name=RECORD_OUTCOME)
    async def record_outcome(self, raw: RawValue) -> RawValue:
        """Record an outcome that travelled through the workflow; return the reply that stands.

        Safe to repeat: the first record stands. While the ledger is away the attempt fails, and
        Temporal tries again without limit.
        """
        ended = unpack(Unrecorded, raw)
        held = ended.held
        try:
            if ended.known is None:
                parked = await self._ledger.park(
                    held, ended.reason, over=ended.over, failures=ended.failures
                )
                return pack(call_reply.of_action(parked, limit=ended.content_limit))
            stands = await self._ledger.record(held, ended.known)
        except Fenced as err:
            return pack(await self._fenced_reply(held.key, ended, err))
        log.info("ledger.outcome_recorded", action_key=ended.key, outcome=stands.kind)
        return pack(call_reply.done(ended.key, stands, limit=ended.content_limit))

    async def _fenced_reply(self, key: ActionKey, ended: Unrecorded, fenced: Fenced) -> Reply:
        """Return the reply where a later attempt has taken the row over, or the row is gone.

        Raises:
            Fenced: A live attempt works on the row: tried again.
        """
        found = await self._ledger.get(key)
        if found is not None and found.state == "dispatched":
            if found.leased:
                raise fenced
            found = await self._park(found, "an attempt that had taken it over was lost")
        if found is not None and found.state != "intent":
            return call_reply.of_action(found, limit=ended.content_limit)
        # A failover lost the row while its outcome was here. What happened is still true.
        log.error("ledger.row_lost", action_key=key)
        if ended.known is None:
            return call_reply.record_lost()
        return call_reply.done(key, ended.known, limit=ended.content_limit)

    @activity.defn(name=SETTLE_ENDED)
    async def settle_ended(self, raw: RawValue) -> RawValue:
        """Return the reply to a call that an operator ended; park its row if nothing is known.

        Safe to repeat. The reply has no action key where nothing was dispatched so far. The
        workflow may start such a call again, and a late attempt may still dispatch it.
        """
        request = unpack(SettleEnded, raw)
        found = await self._ledger.get(request.key)
        if found is not None and found.relayed and await self._is_sent_by_relay(found):
            return pack(call_reply.accepted(found))
        if found is not None and found.state == "dispatched":
            why = f"an operator ended its activity in Temporal [{EndedByOperator.code}]"
            found = await self._park(found, why)
        if found is None or found.state == "intent":
            return pack(call_reply.ended_by_operator())
        return pack(call_reply.of_action(found, limit=request.content_limit))

    async def _is_sent_by_relay(self, found: Action) -> bool:
        """Whether the relay sends a row of this run; it does not once the run was stopped."""
        run = await self._ledger.runs.get(found.run_key)
        return run is not None and (run.stopped_at is None or found.adopted)

    async def _park(self, found: Action, why: str) -> Action:
        """Leave a dispatched row unknown; its attempt may still be working."""
        assert found.claim_token is not None, "agent_actions_dispatch_is_complete"
        holder = HeldClaim(found.key, found.claim_token, found.domain_key)
        return await self._ledger.park(holder, why, over=False)
