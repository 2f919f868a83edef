"""The workflow's half of the plugin: which call of which run each activity is.

The position of a call is a counter of its tool, carried through continue-as-new: never an explicit
``activity_id`` (one may serve for all calls), never a framework's call id (it changes with a
reset). A plan that differs after a reset is refused by the ledger.

Histories replay with the plugin and without it, but for what stands behind a patch: a call that
waits for an approval, and one that the server gave up (`followed_call`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Final

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ContinueAsNewInput,
    ExecuteWorkflowInput,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

from ..activities.contract.action_header import HEADER, ActionHeader
from ..activities.contract.activity_failure import as_failure
from ..activities.contract.encoding import pack, unpack
from ..activities.contract.spec import RESERVED_PREFIX
from ..errors import ScheduleUnsupported
from ..identity import Position
from ..ledger.action_records import Effect
from ..workflows.action_headers import surroundings
from .family import ToolCall
from .followed_call import FollowedCall, told_as
from .gates import Gates
from .interrupted_activities import InterruptedActivities
from .mcp_hints import MCPHints
from .parent_call import ParentCall, parent_call, place_of
from .rules import Rules

COUNTERS_HEADER: Final = "commitline-counters"
_NEVER_FITS: Final = ["PayloadsTooLarge", "PayloadSizeError"]
"""Failures that another attempt at the same call has again."""


class FollowsCalls(WorkflowInboundInterceptor):
    """Gives each call of a tool its header. Subclassed per plugin, since Temporal makes it."""

    rules: Rules
    heartbeat: timedelta
    records_models: bool

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """See base class."""
        self._gates = Gates()
        super().init(
            _Outbound(
                outbound,
                self.rules,
                self.heartbeat,
                self._gates,
                records_models=self.records_models,
            )
        )

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """See base class."""
        if not input.type.__module__.startswith("commitline.workflows."):
            self._gates.listen()
        return await super().execute_workflow(input)


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(
        self,
        next: WorkflowOutboundInterceptor,
        rules: Rules,
        heartbeat: timedelta,
        gates: Gates,
        *,
        records_models: bool,
    ) -> None:
        super().__init__(next)
        self._rules = rules
        self._gates = gates
        self._records_models = records_models
        self._heartbeat = heartbeat
        self._hints = MCPHints(rules)
        self._counted: Counter[str] | None = None

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        """See base class."""
        if input.activity.startswith(RESERVED_PREFIX) or surroundings.get().calls_tools:
            return super().start_activity(input)  # of a workflow of our own
        if self._rules.requests_model(input.activity):
            if self._records_models and _can_be_a_run():
                self._name(input, self._position(input.activity), digest="")
            return super().start_activity(input)
        if self._rules.is_coarse(input.activity):
            return self._start_coarse(input)
        converter = workflow.payload_converter()
        call = self._rules.tool_call(input.activity, input.args, converter)
        call = call and self._hints.applied(call, input)
        if call is None or (call.rule is not None and call.rule.effect == Effect.READ):
            handle = super().start_activity(input)
            self._hints.watch(input.activity, handle)
            return handle
        if call.rule is None:
            if _can_be_a_run():
                self._name(input, self._position(call.tool), digest=call.requested_digest)
            return self._told(call, input)
        self._unlimit(input)
        first = not any(
            number and not self._rules.requests_model(counted)
            for counted, number in self._counters().items()
        )
        followed = FollowedCall(
            super().start_activity,
            input,
            call,
            self._header(self._position(call.tool), digest=call.requested_digest),
            self._rules.telling(call, by_name=input.ret_type is None),
            self._rules.replies(call, input.args),
        )
        return followed.begin(call.rule, self._gates, first=first)

    def _told(self, call: ToolCall, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        """Start a call that has a rule where its activity runs, if anywhere; return its handle."""
        style = self._rules.telling(call, by_name=input.ret_type is None)
        handle = super().start_activity(input)
        return handle if style == "failure" else told_as(style, handle)

    def _start_coarse(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        """Start an activity that makes several calls. It says itself how often it may fail."""
        if not _can_be_a_run():
            return super().start_activity(input)
        kind, interrupted = input.activity, self._interrupted
        number = interrupted.taken_up(kind)
        if number is None:
            number = self._next_number(kind)
        self._name(input, Position(f"{_uncounted_before()}{kind}#{number}"), digest="")
        self._notice(input)
        handle = super().start_activity(input)
        interrupted.watch(handle, kind, number)
        return handle

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

    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        """See base class. The child's calls belong to this run."""
        ours = input.workflow.startswith(RESERVED_PREFIX) or surroundings.get().calls_tools
        if not ours and _can_be_a_run():
            begun_at = ParentCall(*place_of(self._position(f"child.{input.workflow}")))
            input.headers = {**input.headers, **begun_at.header()}
        return await super().start_child_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> Any:
        """See base class."""
        # Always: without it, the next execution would take this one for one without the plugin.
        counters = {COUNTERS_HEADER: pack(self._counters()).payload}
        parent = parent_call(workflow.info().headers)
        begun_by = parent.header() if parent else {}
        input.headers = {**input.headers, **counters, **self._interrupted.header(), **begun_by}
        return super().continue_as_new(input)

    @cached_property
    def _interrupted(self) -> InterruptedActivities:
        return InterruptedActivities(workflow.info().headers)

    def _counters(self) -> Counter[str]:
        """Return the counters, which go on where the execution before this one ended.

        Read when they are first needed: handlers of signals run before the workflow does.
        """
        if self._counted is None:
            self._counted = Counter()
            headers = workflow.info().headers
            if COUNTERS_HEADER in headers:
                kept = RawValue(headers[COUNTERS_HEADER])
                self._counted.update(unpack(dict[str, int], kept))
        return self._counted

    def _name(self, input: StartActivityInput, at: Position, *, digest: str) -> None:
        header = self._header(at, digest=digest)
        input.headers = {**input.headers, HEADER: header.to_payload()}

    def _header(self, at: Position, *, digest: str) -> ActionHeader:
        info = workflow.info()
        if info.cron_schedule:
            raise as_failure(ScheduleUnsupported(f"{info.workflow_id} has a cron schedule"))
        run, position = place_of(at)
        return ActionHeader(run, position, digest)

    def _position(self, counted: str) -> Position:
        return Position(f"{_uncounted_before()}{counted}#{self._next_number(counted)}")

    def _next_number(self, counted: str) -> int:
        counters = self._counters()
        counters[counted] += 1
        return counters[counted] - 1

    def _unlimit(self, input: StartActivityInput) -> None:
        """Let dead workers use up nothing: tries are counted on the row.

        What the guard raises to be tried again must be, whatever its type is named.
        """
        policy = input.retry_policy or RetryPolicy()
        input.retry_policy = replace(
            policy, maximum_attempts=0, non_retryable_error_types=_NEVER_FITS
        )
        self._notice(input)

    def _notice(self, input: StartActivityInput) -> None:
        """Have dead workers noticed, and wait for the end of what is cancelled."""
        input.heartbeat_timeout = input.heartbeat_timeout or self._heartbeat
        input.cancellation_type = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


def _uncounted_before() -> str:
    """Return what tells the positions of an execution from those of one without the plugin.

    An execution that goes on as a new one under a worker without the plugin carries no counters;
    without a prefix the next one would begin at positions that are taken.
    """
    info = workflow.info()
    if info.continued_run_id is None or COUNTERS_HEADER in info.headers or info.attempt > 1:
        return ""
    return f"{info.original_execution_run_id}."


def _can_be_a_run() -> bool:
    """Whether calls of the workflow can be told apart; if not, only a guarded call says so."""
    try:
        place_of(Position(""))
    except ApplicationError:
        return False
    return not workflow.info().cron_schedule
