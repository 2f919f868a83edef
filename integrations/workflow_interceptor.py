"""The workflow's half of the plugin: which call of which run each activity is.

The position of a call is a counter of its tool, carried through continue-as-new: never an explicit
``activity_id`` (one may serve for all calls), never a framework's call id (it changes with a
reset). A plan that differs after a reset is refused by the ledger.

Nothing here adds a command to the history, so histories replay with the plugin and without it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, cast

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from ..activities.contract.action_header import HEADER, ActionHeader
from ..activities.contract.encoding import pack, unpack
from ..canonical import dumps
from ..identity import Position
from ..ledger.action_records import Effect
from ..workflows.action_headers import this_run
from .family import ToolCall
from .requested_digest import requested_digest
from .rules import Rules
from .telling import told_by

COUNTERS_HEADER: Final = "commitline-counters"


class FollowsCalls(WorkflowInboundInterceptor):
    """Gives each call of a tool its header. Subclassed per plugin, since Temporal makes it."""

    rules: Rules
    heartbeat: timedelta
    records_models: bool

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """See base class."""
        self._outbound = _Outbound(
            outbound, self.rules, self.heartbeat, records_models=self.records_models
        )
        super().init(self._outbound)

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """See base class."""
        self._outbound.restore(input.headers)
        return await super().execute_workflow(input)


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(
        self,
        next: WorkflowOutboundInterceptor,
        rules: Rules,
        heartbeat: timedelta,
        *,
        records_models: bool,
    ) -> None:
        super().__init__(next)
        self._rules = rules
        self._records_models = records_models
        self._heartbeat = heartbeat
        self._counters: Counter[str] = Counter()

    def restore(self, headers: Mapping[str, Payload]) -> None:
        """Go on counting where the execution before this one ended."""
        if COUNTERS_HEADER in headers:
            self._counters.update(unpack(dict[str, int], RawValue(headers[COUNTERS_HEADER])))

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        """See base class."""
        if self._records_models and self._rules.requests_model(input.activity):
            self._name(input, self._position(input.activity), digest="")
            return super().start_activity(input)
        call = self._call(input)
        if call is None or (call.rule is not None and call.rule.effect == Effect.READ):
            return super().start_activity(input)
        self._name(input, self._position(call.tool), digest=requested_digest(call))
        self._unlimit(input)
        style = self._rules.telling(call)
        handle = super().start_activity(input)
        return handle if style == "failure" else _told(handle, as_text=style == "text")

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        """See base class. A local activity cannot be guarded."""
        family = self._rules.family(input.activity)
        if family is not None:
            call = family.tool_call(input.activity, input.args, workflow.payload_converter())
            if call.rule is None or call.rule.effect != Effect.READ:
                raise ApplicationError(
                    f"{call.tool} has an effect and is guarded, and a local activity cannot be: "
                    "run it by workflow.execute_activity. Nothing was called.",
                    type="LocalActivityRefused",
                    non_retryable=True,
                )
        return super().start_local_activity(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> Any:
        """See base class."""
        if self._counters:
            input.headers = {**input.headers, COUNTERS_HEADER: pack(self._counters).payload}
        return super().continue_as_new(input)

    def _call(self, input: StartActivityInput) -> ToolCall | None:
        family = self._rules.family(input.activity)
        if family is None:
            return None
        return family.tool_call(input.activity, input.args, workflow.payload_converter())

    def _name(self, input: StartActivityInput, at: Position, *, digest: str) -> None:
        header = ActionHeader(this_run(), at, digest)
        input.headers = {**input.headers, HEADER: header.to_payload()}

    def _position(self, counted: str) -> Position:
        number = self._counters[counted]
        self._counters[counted] += 1
        return Position(f"{counted}#{number}")

    def _unlimit(self, input: StartActivityInput) -> None:
        """Let dead workers use up nothing: tries are counted on the row."""
        policy = input.retry_policy or RetryPolicy()
        input.retry_policy = replace(policy, maximum_attempts=0)
        input.heartbeat_timeout = input.heartbeat_timeout or self._heartbeat
        input.cancellation_type = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


def _told(handle: workflow.ActivityHandle[Any], *, as_text: bool) -> workflow.ActivityHandle[Any]:
    """Return the handle of a call whose failure by the guard is told as its result.

    In the history it stays a failure. Frameworks take a tool's exception for a failed run, or
    tell the model to try again.
    """

    async def result() -> Any:
        try:
            return await handle
        except ActivityError as err:
            told = told_by(err)
            if told is None:
                raise
            return dumps(told) if as_text else told

    # Nothing is done with a handle but what a task can do: to await it, and to cancel it.
    return cast("workflow.ActivityHandle[Any]", asyncio.create_task(result()))
