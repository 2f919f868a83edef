"""What Temporal says of workflows, whatever their status: the SDK does not know all of them.

SDK 1.35 refuses to read a workflow that is paused (`temporal workflow pause`), and a list that
such a workflow is in. So both are asked for by the raw call, and what has not ended is running to
the SDK. Remove when ``WorkflowExecutionStatus`` has ``PAUSED``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client, WorkflowExecutionDescription

from ..activities.contract.encoding import unreadable

_PAGE: Final = 100


async def describe_execution(
    temporal: Client, workflow_id: str, run_id: str | None = None
) -> WorkflowExecutionDescription:
    """Return what Temporal knows of an execution, by default of the newest of its workflow id.

    Raises:
        RPCError: As Temporal has it.
    """
    answer = await temporal.workflow_service.describe_workflow_execution(
        DescribeWorkflowExecutionRequest(
            namespace=temporal.namespace,
            execution=Execution(workflow_id=workflow_id, run_id=run_id or ""),
        ),
        retry=True,
    )
    if not answer.workflow_execution_info.HasField("close_time"):
        answer.workflow_execution_info.status = Status.WORKFLOW_EXECUTION_STATUS_RUNNING
    return await WorkflowExecutionDescription._from_raw_description(
        answer, namespace=temporal.namespace, converter=temporal.data_converter
    )


async def list_executions(temporal: Client, query: str) -> AsyncIterator[WorkflowExecutionInfo]:
    """Yield the executions that a query finds, as Temporal has them."""
    asked = ListWorkflowExecutionsRequest(
        namespace=temporal.namespace, query=query, page_size=_PAGE
    )
    while True:
        answer = await temporal.workflow_service.list_workflow_executions(asked, retry=True)
        for found in answer.executions:
            yield found
        asked.next_page_token = answer.next_page_token
        if not asked.next_page_token:
            return


def state_name(info: WorkflowExecutionInfo) -> str:
    """Return Temporal's name of a state, as we write it: ``timed_out``."""
    return Status.Name(info.status).removeprefix("WORKFLOW_EXECUTION_STATUS_").lower()


@contextmanager
def naming_codec() -> Iterator[None]:
    """Raise `PayloadUnreadable` for a payload that the SDK's converter does not know.

    The SDK says so by a KeyError. What travels as `RawValue` is looked at by `raw_text` instead.
    """
    try:
        yield
    except KeyError as err:
        _, known, encoding = str(err.args[0]).partition("Unknown payload encoding ")
        if not known:
            raise
        raise unreadable(encoding) from err


async def check_readable(temporal: Client, described: WorkflowExecutionDescription) -> None:
    """Look whether this process can read what Temporal keeps of a workflow.

    Its memo says so. A workflow of another framework may have none: then its input does.

    Args:
        temporal: Whose codec counts.
        described: The workflow.

    Raises:
        PayloadUnreadable: It is encoded, and this process lacks the codec: what it sends there
            would stand in plain text among it.
    """
    with suppress(RuntimeError), naming_codec():  # of a type that the converter does not know
        if not await described.memo():
            await temporal.data_converter.decode(await _input_of(temporal, described))


async def _input_of(temporal: Client, described: WorkflowExecutionDescription) -> Sequence[Payload]:
    """Return the payloads that a workflow was started with."""
    asked = GetWorkflowExecutionHistoryRequest(
        namespace=temporal.namespace,
        execution=Execution(workflow_id=described.id, run_id=described.run_id),
        maximum_page_size=1,
    )
    answer = await temporal.workflow_service.get_workflow_execution_history(asked, retry=True)
    started = answer.history.events[0].workflow_execution_started_event_attributes
    return started.input.payloads


async def memo_text(described: WorkflowExecutionDescription, key: str) -> str | None:
    """Return a text of a workflow's memo; None where it has none.

    Raises:
        PayloadUnreadable: A codec that this process lacks has encoded it.
    """
    with naming_codec():
        found: str | None = await described.memo_value(key, None, type_hint=str)
    return found


def is_paused(described: WorkflowExecutionDescription) -> bool:
    """Whether a workflow is paused: none of its tasks is carried out."""
    return described.raw_description.workflow_extended_info.HasField("pause_info")
