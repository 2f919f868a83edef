"""`RunSpans`: a span for each run, which ends with it, whichever worker ends it.

The SDK makes ids in workflows by the workflow's own randomness: a replay begins the same span
again, and only the worker that carries the run on ends it. Nothing is ended in a replay, nor where
a worker forgets a run, which the SDK takes for one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from ..activities.contract.encoding import unpack
from ..activities.contract.plans import PlanInput
from ..activities.contract.runs import AGENT_RUN, PLAN_RUN
from ..traces import AGENT, CONVERSATION, OPERATION, RUN, SCHEMA_URL, WORKFLOW, fail
from .run_input import RunInput

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_OF_THE_LEDGER: Final = {"SettleAction": "settle", "UndoRun": "undo"}


class RunSpans(Interceptor):
    """Traces runs. Adding it while workflows run is safe: it schedules nothing."""

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        found = None
        with suppress(Exception):  # the run says what is wrong with its input
            found = _name_and_attributes(input)
        if found is None:
            return await super().execute_workflow(input)
        from opentelemetry import context, trace

        tracer = trace.get_tracer("commitline", schema_url=SCHEMA_URL)
        name, attributes = found
        span = tracer.start_span(name, attributes=attributes)
        # Never detached: the workflow's task has a context of its own, which ends with it.
        context.attach(trace.set_span_in_context(span))
        return await self._traced(span, input)

    async def _traced(self, span: Span, input: ExecuteWorkflowInput) -> Any:
        try:
            result = await super().execute_workflow(input)
        except workflow.ContinueAsNewError:
            span.end()
            raise
        except (Exception, asyncio.CancelledError) as err:
            # Of another error only the task fails: a later one goes on with the run.
            if isinstance(err, asyncio.CancelledError) or workflow.is_failure_exception(err):
                fail(span, err)
                span.end()
            raise
        span.end()
        return result


def _name_and_attributes(input: ExecuteWorkflowInput) -> tuple[str, dict[str, str]] | None:
    """Return what the span of a workflow says; None for one that is no run."""
    kind, run = workflow.info().workflow_type, {RUN: workflow.info().workflow_id}
    if kind == AGENT_RUN:
        given = unpack(RunInput, input.args[0])
        named = {OPERATION: "invoke_agent", AGENT: given.agent}
        thread = {} if given.thread_id is None else {CONVERSATION: given.thread_id}
        return f"invoke_agent {given.agent}", named | thread | run
    if kind == PLAN_RUN:
        plan = unpack(PlanInput, input.args[0])
        return f"invoke_workflow {plan.name}", {
            OPERATION: "invoke_workflow",
            WORKFLOW: plan.name,
        } | run
    if (own := _OF_THE_LEDGER.get(input.type.__name__)) is not None:
        return own, run
    return None
