"""The plugin's own activities about calls: may one be made, what was decided, what became of it.

They run on the queue of the tool, whose workers have its code and its rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue

from ..activities.contract.action_header import ActionHeader
from ..activities.contract.approvals import ApprovalState, Decide
from ..activities.contract.encoding import pack, unpack
from ..activities.guard.claims import open_run_of_caller
from ..activities.runs.approvals import Approvals
from ..activities.runs.served import leave_to_other_workers
from ..canonical import Json, parse
from ..errors import ArgumentsChanged, RunNotRunning
from ..identity import action_key
from ..ledger import ActionLedger, Effect
from .call_messages import CHECK_CALL, DECIDE_CALL, SETTLE_CALL, CheckCall, SettleCall
from .effect_rule import EffectRule
from .foreign_tool import ForeignTool
from .given_up_calls import settle_given_up
from .rules import Rules


class CallActivities:
    """See the module.

    Args:
        rules: Of the worker.
        ledger: Returns the ledger, which is open while a worker runs.
    """

    def __init__(self, rules: Rules, ledger: Callable[[], ActionLedger]) -> None:
        self._rules = rules
        self._ledger = ledger

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers that has activities."""
        return (self.check_call, self.decide_call, self.settle_call)

    @activity.defn(name=CHECK_CALL)
    async def check_call(self, raw: RawValue) -> RawValue:
        """Return the `ApprovalState` of a call; see `Approvals.check`. Safe to repeat."""
        request = unpack(CheckCall, raw)
        try:
            return pack(await self._check(request))
        except RunNotRunning as err:
            if err.known:
                raise
        run_key = request.asked.run_key
        await open_run_of_caller(self._ledger(), run_key, lost=not request.first)
        return pack(await self._check(request))

    @activity.defn(name=DECIDE_CALL)
    async def decide_call(self, raw: RawValue) -> RawValue:
        """Record a person's decision. Safe to repeat: the first decision counts."""
        ledger = self._ledger()
        return pack(
            await Approvals(self._tool, ledger, ledger.approvals).decide(unpack(Decide, raw))
        )

    def _tool(self, name: str) -> ForeignTool:
        rule = self._rules.rule_named(name) or _UNNAMED
        return ForeignTool(name, rule, self._rules.function(name), activity.payload_converter())

    @activity.defn(name=SETTLE_CALL)
    async def settle_call(self, raw: RawValue) -> RawValue:
        """Return the `SettledCall` of a call that the server gave up. Safe to repeat."""
        return pack(await settle_given_up(self._ledger(), unpack(SettleCall, raw)))

    async def _check(self, request: CheckCall) -> ApprovalState:
        ledger = self._ledger()
        listed = isinstance(parse(request.asked.arguments), list)

        def served(name: str) -> ForeignTool:
            if listed and self._rules.function(name) is None:
                leave_to_other_workers(name)
            expires = request.expires_seconds
            rule = replace(
                self._rules.rule_named(name) or _UNNAMED,
                approval_expires=None if expires is None else timedelta(seconds=expires),
            )
            if request.always or not rule.gated:
                rule = replace(rule, approve=True)  # also where this worker's rule differs
            function = self._rules.function(name) if listed else None
            return ForeignTool(name, rule, function, activity.payload_converter())

        return await Approvals(served, ledger, ledger.approvals).check(request.asked)


_UNNAMED = EffectRule(Effect.AT_MOST_ONCE)
"""Of a tool whose rule travels with its calls."""


async def approved_arguments(ledger: ActionLedger, header: ActionHeader, tool: ForeignTool) -> Json:
    """Return the arguments with which a call was begun, or else those that were approved.

    Raises:
        ArgumentsChanged: There is no approval any more, or the tool does not take them.
        LedgerUnavailable: No answer within the deadline.
    """
    key = action_key(header.run_key, header.position)
    begun = await ledger.get(key)
    if begun is not None:
        return parse(begun.args)
    approval = await ledger.approvals.get(key)
    if approval is None or approval.state != "approved":
        raise ArgumentsChanged(f"the approval of {key} is gone: it is requested again")
    tool.check_stored(approval.approved_args)
    return tool.stored(approval.approved_args)
