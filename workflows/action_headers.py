"""The workflow's half of the guard: the run key, the position and the digest of each call.

They travel in a header, because only the workflow knows them: an activity sees neither the first
execution of its workflow nor the arguments as the plan had them. Our own workflows name the
position of each call as its ``activity_id``; those of others count (`integrations`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from ..activities.contract.action_header import HEADER, ActionHeader
from ..activities.contract.activity_failure import as_failure
from ..activities.contract.deadlines import CallLimits
from ..activities.contract.local_activity import (
    NOTES,
    SCHEDULED,
    Notes,
    notes_header,
    schedule_header,
)
from ..activities.contract.references import StoredInput
from ..activities.contract.spec import RESERVED_PREFIX
from ..errors import InvalidRunId
from ..identity import Position, RunKey, run_key

MEMO_RUN_KEY: Final = "commitline_run_key"
"""The memo of a sub-agent's workflow with its run key, which contains its parent's. Temporal
carries it into every later execution, and shows it with the workflow."""


@dataclass(frozen=True)
class Surroundings:
    """What the header says of a call beyond what Temporal knows."""

    thread_id: str | None = None
    """The conversation; None is the run's own."""
    content_limit: int | None = None
    """Characters of a result that travel."""
    header: ActionHeader | None = None
    """The header of a call that no run planned: of an undo, or of the relay."""
    tries: int | None = None
    """How often a call may fail; None is as often as the tool says."""
    judged: str | None = None
    """As in the header, of the one call that is made."""
    calls_tools: bool = False
    """The activities that are scheduled are tools by the run's spec, even if this worker does not
    serve them: during a deploy another one may."""
    thread_version: int | None = None
    """The conversation's version after the turn that planned the calls."""
    changes_limit: int | None = None
    """Characters that one call's changes of the state may have."""
    inputs: list[StoredInput] = field(default_factory=list)
    """What the guard puts into the arguments of the call, out of the ledger."""
    approved: str | None = None
    """Digest of the approved arguments, where the guard takes those out of the ledger."""
    limits: CallLimits = field(default_factory=lambda: CallLimits(None, None))
    """The deadlines of the call."""
    notes: Notes = field(default_factory=dict)
    """What a local attempt has left for the activity that goes on."""


surroundings: ContextVar[Surroundings] = ContextVar(
    "commitline_surroundings",
    default=Surroundings(),  # noqa: B039 - frozen
)
"""Set by a workflow of ours around its calls; each workflow runs in a context of its own."""


@contextmanager
def calling(
    *, judged: str | None, inputs: list[StoredInput], approved: str | None
) -> Iterator[None]:
    """Say more in the header of the calls that are made meanwhile."""
    around = replace(surroundings.get(), judged=judged, inputs=inputs, approved=approved)
    with _around(around):
        yield


@contextmanager
def leaving(notes: Notes) -> Iterator[None]:
    """Hand on what a local attempt has left to the activity that is started meanwhile."""
    with _around(replace(surroundings.get(), notes=notes)):
        yield


@contextmanager
def _around(meanwhile: Surroundings) -> Iterator[None]:
    before = surroundings.get()
    surroundings.set(meanwhile)
    try:
        yield
    finally:
        # Not by its token: a workflow that is dropped ends in another context.
        surroundings.set(before)


class ActionHeaders(Interceptor):
    """Adds the header to the guarded activities.

    Args:
        guarded: Their types. Adding one while workflows run is safe: a header is not part
            of what Temporal compares on replay.
    """

    def __init__(self, guarded: frozenset[str]) -> None:
        self._guarded = guarded

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        guarded = self._guarded

        class Inbound(_Inbound):
            guarded_types = guarded

        return Inbound


class _Inbound(WorkflowInboundInterceptor):
    guarded_types: frozenset[str] = frozenset()

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self.guarded_types))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        if input.type.__module__.startswith(f"{__package__}."):
            _check_arguments(input)
        return await super().execute_workflow(input)


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, guarded: frozenset[str]) -> None:
        super().__init__(next)
        self._guarded = guarded
        self._scheduled: set[str] = set()

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        around = surroundings.get()
        if input.activity in self._guarded or _is_our_call(input, around):
            header = around.header or self._header(input, around)
            input.headers = {**input.headers, HEADER: header.to_payload()}
        if around.notes:
            input.headers = {**input.headers, NOTES: notes_header(around.notes)}
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        around = surroundings.get()
        ours = input.activity.startswith(RESERVED_PREFIX)
        if ours or _is_our_call(input, around):
            input.headers = {**input.headers, SCHEDULED: schedule_header(workflow.time())}
        if not ours and _is_our_call(input, around):
            header = self._header(input, around)
            input.headers = {**input.headers, HEADER: header.to_payload()}
        return super().start_local_activity(input)

    def _header(
        self, input: StartActivityInput | StartLocalActivityInput, around: Surroundings
    ) -> ActionHeader:
        assert input.activity_id, "a workflow of ours names the position of each call"
        position = Position(input.activity_id)
        again = position in self._scheduled
        self._scheduled.add(position)
        return ActionHeader(
            this_run(),
            requested_digest=around.approved or "",
            again=again,
            attempt_seconds=around.limits.attempt_seconds,
            node_seconds=around.limits.node_seconds,
            thread_id=around.thread_id,
            content_limit=around.content_limit,
            thread_version=around.thread_version,
            changes_limit=around.changes_limit,
            tries=around.tries,
            judged=around.judged,
            inputs=around.inputs,
            approved=around.approved is not None,
        )


def _is_our_call(input: StartActivityInput | StartLocalActivityInput, around: Surroundings) -> bool:
    """Whether a workflow of ours calls a tool by it."""
    return around.calls_tools and not input.activity.startswith(RESERVED_PREFIX)


def _check_arguments(input: ExecuteWorkflowInput) -> None:
    """Fail a run of ours that was started with the wrong number of arguments.

    Calling it would fail the workflow *task*, which Temporal repeats for ever.
    """
    try:
        inspect.signature(input.run_fn).bind(None, *input.args)
    except TypeError as err:
        raise ApplicationError(
            f"{workflow.info().workflow_type}: {err}", type="InvalidInput", non_retryable=True
        ) from err


def this_run() -> RunKey:
    """Return the run key of the workflow that is running.

    Raises:
        ApplicationError: The workflow's id cannot be a run's; final.
    """
    info = workflow.info()
    if MEMO_RUN_KEY in info.raw_memo:
        return RunKey(workflow.memo_value(MEMO_RUN_KEY, type_hint=str))
    try:
        return run_key(info.workflow_id, info.first_execution_run_id)
    except InvalidRunId as err:
        raise as_failure(err) from err
