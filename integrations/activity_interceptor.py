"""The activity's half of the plugin: puts the guard around each call of a foreign tool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio import activity
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
)

from ..activities.contract.action_header import HEADER, ActionHeader
from ..activities.contract.activity_failure import as_failure
from ..activities.contract.encoding import unpack
from ..activities.guard.attempt import attempt
from ..activities.guard.guarded_call import GuardedCall
from ..activities.guard.heartbeat import Heartbeats, beating
from ..canonical import dumps
from ..errors import (
    ApprovalMissing,
    ArgumentsChanged,
    CommitlineError,
    InvalidArguments,
    LedgerError,
    PlanDivergence,
)
from ..identity import action_key
from ..ledger import ActionLedger, Effect
from ..logs import Log
from .adopted_call import header_of_adopted
from .call_activities import approved_arguments
from .coarse_activity import CoarseActivity
from .compensation import undo_arguments
from .effect_rule import EffectRule
from .family import ArrivedCall, Family, ToolCall
from .foreign_tool import ForeignTool
from .mcp_hints import hinted
from .recorded_models import recorded_completion
from .ruled_call import RuledCall, not_declared
from .rules import Rules

log = Log()

_SENT_ONCE: Final = EffectRule(Effect.AT_MOST_ONCE)


class GuardsActivities(ActivityInboundInterceptor):
    """Guards the calls of one activity.

    Args:
        next: What runs the activity.
        rules: Which activities carry calls of tools.
        ledger: Returns the ledger, which is open while a worker runs.
    """

    def __init__(
        self, next: ActivityInboundInterceptor, rules: Rules, ledger: Callable[[], ActionLedger]
    ) -> None:
        super().__init__(next)
        self._rules = rules
        self._ledger = ledger

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        """See base class."""
        self._heartbeats = Heartbeats(outbound)
        super().init(self._heartbeats)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """See base class."""
        kind, header = activity.info().activity_type, _header(input)
        if header is not None and self._rules.requests_model(kind):
            return await self._request_model(header, input)
        if self._rules.is_coarse(kind):
            return await self._make_several_calls(kind, header, input)
        family = self._rules.family(kind)
        if family is None:
            return await super().execute_activity(input)
        converter = activity.payload_converter()
        call = hinted(family.tool_call(kind, input.args, converter), input.headers)
        if _is_read(call) and header is None:
            return await super().execute_activity(input)
        try:
            return await self._guard(family, call, header, input, converter)
        except PlanDivergence as err:
            log.error("ledger.plan_diverged", tool=call.tool, reason=err.message)
            raise as_failure(err) from err
        except CommitlineError as err:
            raise as_failure(err) from err

    async def _guard(
        self,
        family: Family,
        call: ToolCall,
        header: ActionHeader | None,
        input: ExecuteActivityInput,
        converter: PayloadConverter,
    ) -> Any:
        try:
            call = await self._approved(call, header, converter)
            arrived = family.arrived(call, input.args, input.fn, converter)
        except ArgumentsChanged as err:
            return family.replies(input.args).refused(err, "")

        async def invoke(args: Sequence[Any]) -> Any:
            run = super(GuardsActivities, self).execute_activity
            return arrived.checked(await run(replace(input, args=args)))

        rule = call.rule or await self._begun_by(header)
        if rule is None:
            return arrived.replies.refused(not_declared(call.tool), "")
        tool = self._tool(call, rule, converter)
        if rule.gated and await self._is_unjudged(arrived, tool, header):
            return arrived.replies.refused(_unapproved(call), "")
        guarded = RuledCall(
            call,
            rule,
            arrived,
            tool,
            undoes=lambda undone: undo_arguments(self._rules, tool, undone, converter),
            planned=header is None or header.purpose == "forward",
        )
        guarded_call = await _guarded_call(guarded, header, call)
        async with beating(self._heartbeats.again):
            return await attempt(self._ledger(), guarded_call, invoke, input.args)

    def _tool(self, call: ToolCall, rule: EffectRule, converter: PayloadConverter) -> ForeignTool:
        # By its type: a framework's tool may have the name of an activity.
        function = self._rules.function(call.activity_type)
        return ForeignTool(call.tool, rule, function, converter)

    async def _approved(
        self, call: ToolCall, header: ActionHeader | None, converter: PayloadConverter
    ) -> ToolCall:
        """Return the call with the arguments that a person has approved, if one had to.

        Raises:
            ArgumentsChanged: They are gone, or the tool does not take them any more.
        """
        if header is None or not header.approved:
            return call
        tool = self._tool(call, call.rule or _SENT_ONCE, converter)
        arguments = await approved_arguments(self._ledger(), header, tool)
        return replace(call, arguments=arguments)

    async def _is_unjudged(
        self, arrived: ArrivedCall, tool: ForeignTool, header: ActionHeader | None
    ) -> bool:
        """Whether a person has to approve a call that has not begun, and nobody was asked.

        So it is where the workflow's worker has another rule, or the workflow began before it.
        """
        if header is None:
            if activity.info().attempt > 1:
                return False  # it may have begun
        elif header.approved or header.judged is not None or header.purpose != "forward":
            return False
        else:
            found = await self._ledger().get(action_key(header.run_key, header.position))
            if found is not None and not found.only_intended:
                return False
        try:
            named = dumps(tool.named(arrived.effective()))
        except InvalidArguments:
            return False  # the guard refuses it
        return await asyncio.to_thread(tool.needs_approval, named)

    async def _begun_by(self, header: ActionHeader | None) -> EffectRule | None:
        """Return by which rule a call goes on whose tool has none any more; None: it never began.

        An earlier attempt of a worker without the plugin may have called, too.
        """
        if header is None:
            return None if activity.info().attempt == 1 else _SENT_ONCE
        found = await self._ledger().get(action_key(header.run_key, header.position))
        return None if found is None else EffectRule(found.effect)

    async def _make_several_calls(
        self, kind: str, header: ActionHeader | None, input: ExecuteActivityInput
    ) -> Any:
        async def known() -> ActionHeader:
            return header or await header_of_adopted(ToolCall(kind, kind, None, None))

        coarse = CoarseActivity(self._rules, self._ledger(), known, adopted=header is None)
        async with beating(self._heartbeats.again):
            return await coarse.run(lambda: super(GuardsActivities, self).execute_activity(input))

    async def _request_model(self, header: ActionHeader, input: ExecuteActivityInput) -> Any:
        async def request() -> Any:
            return await super(GuardsActivities, self).execute_activity(input)

        try:
            async with beating(self._heartbeats.again):
                return await recorded_completion(self._ledger(), header, request)
        except LedgerError as err:
            raise as_failure(err) from err


async def _guarded_call(
    guarded: RuledCall, header: ActionHeader | None, call: ToolCall
) -> GuardedCall:
    if header is not None:
        # What was approved is in the call's arguments by now.
        return GuardedCall(guarded, replace(header, approved=False))
    return GuardedCall(guarded, await header_of_adopted(call), adopted=True)


def _header(input: ExecuteActivityInput) -> ActionHeader | None:
    """Return the header of a call; None of one that was scheduled without the plugin."""
    if HEADER not in input.headers:
        return None
    return unpack(ActionHeader, RawValue(input.headers[HEADER]))


def _is_read(call: ToolCall) -> bool:
    return call.rule is not None and call.rule.effect == Effect.READ


def _unapproved(call: ToolCall) -> ApprovalMissing:
    return ApprovalMissing(
        f"a person has to approve {call.tool!r}, and its workflow has asked nobody: nothing was "
        "called"
    )
