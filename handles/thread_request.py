"""A person's request to a conversation: it goes into Postgres, and then to the run that answers.

The run is started by the same call if none is under way. The ledger has the request first,
under the caller's id. So however often it is sent, and whatever becomes of the run in between,
it counts once, and its reply is read from the ledger.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Final
from uuid import uuid4

from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from ..activities.contract.conversation import Message, RunResult
from ..activities.contract.encoding import from_text, pack, to_text
from ..errors import (
    CommitlineError,
    ConversationTooLarge,
    RunFailed,
    RunNotFound,
    ThreadBusy,
    ThreadNotFound,
)
from ..identity import RunKey, check_request_id, check_thread_id, thread_workflow
from ..ledger import Request, Run
from ..workflows.agent_run import MESSAGE
from ..workflows.run_input import RunInput, SendRequest
from .connection import Connection
from .run_workflow import RunWorkflow
from .start import start_options
from .temporal_failure import (
    LEFT_UNANSWERED,
    ended_badly,
    only_the_wait_ended,
    raise_if_cancelled,
    refused,
)

MAX_TEXT: Final = 256 * 1024
"""Characters of a request. What is larger belongs elsewhere, and its name into the request."""
_PAUSES_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Before a request is sent another time; the last one again and again."""
_SEND_AGAIN: Final = frozenset(
    {
        # The run ended at this very moment.
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.ABORTED,
        RPCStatusCode.FAILED_PRECONDITION,
        # Ten senders wait for it already: Temporal admits no more at a time.
        RPCStatusCode.RESOURCE_EXHAUSTED,
    }
)


class ThreadRequests:
    """Sends requests to one conversation.

    Args:
        connection: Of the client.
        thread_id: The conversation's.
    """

    def __init__(self, connection: Connection, thread_id: str) -> None:
        self._connection = connection
        self._thread_id = thread_id

    async def send(self, text: str, *, agent: str | None, request_id: str | None) -> RunResult:
        """Send a request, wait for its reply and return it; see `AgentClient.send`."""
        request = await self.receive(text, agent=agent, request_id=request_id)
        pauses = chain(_PAUSES_SECONDS, repeat(_PAUSES_SECONDS[-1]))
        while request.reply is None:
            failure: CommitlineError | None = None
            try:
                await self._send_to_run(request, text, agent)
            except CommitlineError as err:
                failure = err
            # The ledger has the last word: an answer may be on record that did not get here.
            request = await self.receive(text, agent=agent, request_id=request.request_id)
            if request.reply is None and failure is not None:
                raise failure
            if request.reply is None:
                await asyncio.sleep(next(pauses))
        return from_text(RunResult, request.reply)

    async def receive(self, text: str, *, agent: str | None, request_id: str | None) -> Request:
        """Put a request into the ledger; see `ThreadHandle.receive`."""
        check_thread_id(self._thread_id)
        if request_id is not None:
            check_request_id(request_id)
        if len(text) > MAX_TEXT:
            raise ConversationTooLarge(f"the text has {len(text)} characters, over {MAX_TEXT}")
        ledger = await self._connection.ledger()
        if "/" in self._thread_id:
            owner = await ledger.runs.get(RunKey(self._thread_id))
            if owner is not None and await self._is_open(owner):
                raise ThreadBusy(f"the run {owner.workflow_id!r} writes its own conversation")
        return await ledger.threads.receive(
            self._thread_id,
            str(uuid4()) if request_id is None else request_id,
            to_text(Message.user(text)),
            agent=agent,
        )

    async def _is_open(self, owner: Run) -> bool:
        """Whether the run that this is the conversation of may still write it.

        The ledger alone does not say: a run that was terminated could not close itself there.
        """
        if owner.state != "running":
            return False
        try:
            described = await RunWorkflow(self._connection, owner.workflow_id).describe()
        except RunNotFound:
            return False
        return described.status is WorkflowExecutionStatus.RUNNING

    async def _send_to_run(self, request: Request, text: str, agent: str | None) -> None:
        """Send a request to the run under way, or start one, and wait.

        Whether it is answered then is in the ledger. It is not where that run went away, is
        full, or is a run of another agent than the one named.
        """
        workflow_id = thread_workflow(self._thread_id)
        given = RunInput(agent=agent or await self._agent(), thread_id=self._thread_id)
        options = start_options(
            given, id=workflow_id, task=text, task_queue=self._connection.settings.task_queue
        )
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            **options, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING
        )
        try:
            await self._connection.temporal.execute_update_with_start_workflow(
                MESSAGE,
                pack(SendRequest(request.request_id, agent)),
                start_workflow_operation=start,
                result_type=RawValue,
            )
        except WorkflowUpdateFailedError as err:
            if isinstance(err.cause, ApplicationError) and err.cause.type != LEFT_UNANSWERED:
                raise ended_badly(workflow_id, err.cause) from err
            raise RunFailed(
                f"the run of the thread {self._thread_id!r} ended before it answered"
            ) from err
        except WorkflowUpdateRPCTimeoutOrCancelledError as err:
            raise_if_cancelled(err)
        except RPCError as err:
            await _retrieve_error_of(start)
            if err.status in _SEND_AGAIN and "namespace" not in err.message.lower():
                return
            if not await only_the_wait_ended(self._connection.temporal, workflow_id, err):
                raise refused(workflow_id, err) from err

    async def _agent(self) -> str:
        thread = await (await self._connection.ledger()).threads.get(self._thread_id)
        if thread is None:
            raise ThreadNotFound(f"no thread {self._thread_id!r}")
        return thread.agent


async def _retrieve_error_of(start: WithStartWorkflowOperation[Any, Any]) -> None:
    """Retrieve the same error from the start; asyncio warns of one that is never retrieved."""
    with suppress(Exception):
        async with asyncio.timeout(0):
            await start.workflow_handle()
