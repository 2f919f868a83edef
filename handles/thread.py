"""`ThreadHandle`: a conversation, for application code. `AgentClient.thread` makes one.

A request goes into Postgres first, under the caller's id, and then to the conversation's run,
which is started by the same call if none is under way. So however often it is sent, and
whatever becomes of the run in between, it counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, TypeVar
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

from ..activities.app.state import State
from ..activities.app.state_model import read_state
from ..activities.contract.conversation import Message, RunResult, ToolCall, ToolResult, Usage
from ..activities.contract.wire import from_text, pack, to_text
from ..errors import (
    CommitlineError,
    ConversationTooLarge,
    RunFailed,
    RunNotFound,
    ThreadBusy,
    ThreadNotFound,
)
from ..identity import RunKey, check_request_id, check_thread_id, thread_workflow
from ..ledger import Request, Run, StoredMessage, ThreadLedger
from ..ledger.threads import MessageRole
from ..workflows.agent_run import MESSAGE
from ..workflows.run_input import RunInput, Send
from .temporal_failure import ended_badly, refused

if TYPE_CHECKING:
    from ..client import AgentClient
    from .run import RunHandle

S = TypeVar("S", bound=State)

MAX_TEXT: Final = 256 * 1024
"""Characters of a request. What is larger belongs elsewhere, and its name into the request."""
_AGAIN_SECONDS: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Before a request is sent again, time after time."""
_LATER: Final = frozenset(
    {
        # The run ended at this very moment.
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.ABORTED,
        RPCStatusCode.FAILED_PRECONDITION,
        # Ten senders wait for it already: Temporal admits no more at a time.
        RPCStatusCode.RESOURCE_EXHAUSTED,
    }
)
_LEFT_UNANSWERED: Final = "AcceptedUpdateCompletedWorkflow"
"""Temporal's type of the failure of an update whose workflow ended first."""


@dataclass(frozen=True)
class ThreadMessage:
    """One message of a conversation, for people and programs."""

    role: MessageRole
    text: str
    """What the person or the model said; empty for tool results."""
    calls: Sequence[ToolCall]
    """What the model asked for."""
    results: Sequence[ToolResult]
    """What it was told about the calls of the message before."""
    version: int
    """Of the commit that it came with."""
    run_key: RunKey
    """The run that wrote it."""
    step: int
    """The run's model turn that it belongs to."""
    request_id: str | None
    created_at: datetime
    usage: Usage
    """Tokens of the model request that it answers."""

    @classmethod
    def from_stored(cls, stored: StoredMessage) -> ThreadMessage:
        """Read a row."""
        message = from_text(Message, stored.message)
        answer = message.completion
        return cls(
            role=stored.role,
            text=message.text if answer is None else answer.text,
            calls=() if answer is None else tuple(answer.calls),
            results=tuple(message.results),
            version=stored.version,
            run_key=stored.run_key,
            step=stored.step,
            request_id=stored.request_id,
            created_at=stored.created_at,
            usage=Usage() if answer is None else answer.usage,
        )


class ThreadHandle:
    """One conversation. Made by `AgentClient.thread`, without asking whether it exists."""

    def __init__(self, client: AgentClient, id: str) -> None:
        self._client = client
        self.id = id
        """The thread's id; of a run without a named thread its run key."""

    @property
    def run(self) -> RunHandle:
        """The run that answers, or answered last: the workflow ``thread:<id>``."""
        return self._client.run(thread_workflow(self.id))

    async def messages(self) -> Sequence[ThreadMessage]:
        """Return the conversation, oldest first. Safe to repeat; it only reads.

        Raises:
            ThreadNotFound: No such conversation.
            ThreadDeleted: It was deleted.
            LedgerUnavailable: No answer from Postgres.
        """
        threads = await self._threads()
        return [ThreadMessage.from_stored(one) for one in await threads.messages(self.id)]

    async def state(self, model: type[S]) -> S:
        """Return what the conversation's tools share, as of its last model turn; it only reads.

        Args:
            model: The agent's. Fields that no tool has changed have their defaults.

        Raises:
            StateUnusable: What is stored does not fit it.
            ThreadNotFound: No such conversation.
            ThreadDeleted: It was deleted.
            LedgerUnavailable: No answer from Postgres.
        """
        return read_state(model, await (await self._threads()).state(self.id))

    async def delete(self) -> None:
        """Delete the conversation for good: what was said, asked and read. Safe to repeat.

        A run under way writes no more of it and ends with `ThreadDeleted`. What its tools did
        stays on record, in the ledger. What Temporal's history holds goes with the namespace's
        retention.

        Raises:
            ThreadNotFound: No such conversation.
            LedgerUnavailable: No answer from Postgres; delete it again.
        """
        await (await self._threads()).delete(self.id)

    async def send(
        self, text: str, *, agent: str | None = None, request_id: str | None = None
    ) -> RunResult:
        """Say something, and wait for the answer. See `AgentClient.send`."""
        request = await self.receive(text, agent=agent, request_id=request_id)
        pauses = chain(_AGAIN_SECONDS, repeat(_AGAIN_SECONDS[-1]))
        while request.reply is None:
            failure: CommitlineError | None = None
            try:
                await self._send(request, text, agent)
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
        """Put a request into the ledger; return it, with its reply if it has one.

        Raises:
            ConversationTooLarge: Over 256 KiB.
            InvalidRunId: The thread's id, or the request's, is not 1 to 180 printable ASCII
                characters.
            ThreadBusy: It is the conversation of a run that is under way.
            As `ThreadLedger.receive`.
        """
        check_thread_id(self.id)
        if request_id is not None:
            check_request_id(request_id)
        if len(text) > MAX_TEXT:
            raise ConversationTooLarge(f"the text has {len(text)} characters, over {MAX_TEXT}")
        ledger = await self._client.ledger()
        if "/" in self.id:
            owner = await ledger.get_run(RunKey(self.id))
            if owner is not None and await self._is_open(owner):
                raise ThreadBusy(f"the run {owner.workflow_id!r} writes its own conversation")
        message = to_text(Message.user(text))
        return await ledger.threads.receive(
            self.id, str(uuid4()) if request_id is None else request_id, message, agent=agent
        )

    async def _is_open(self, owner: Run) -> bool:
        """Whether the run that this is the conversation of may still write it.

        The ledger alone does not say: a run that was terminated could not close itself there.
        """
        if owner.state != "running":
            return False
        try:
            described = await self._client.run(owner.workflow_id).describe()
        except RunNotFound:
            return False
        return described.status is WorkflowExecutionStatus.RUNNING

    async def _send(self, request: Request, text: str, agent: str | None) -> None:
        """Send a request to the run under way, or start one, and wait.

        Whether it is answered then is in the ledger. It is not where that run went away, is
        full, or is another agent's than was named.
        """
        given = RunInput(agent=agent or await self._agent(), thread_id=self.id)
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            **self._client.start_options(given, id=thread_workflow(self.id), told=text),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        try:
            await self._client.temporal.execute_update_with_start_workflow(
                MESSAGE,
                pack(Send(request.request_id, agent)),
                start_workflow_operation=start,
                result_type=RawValue,
            )
        except WorkflowUpdateFailedError as err:
            if isinstance(err.cause, ApplicationError) and err.cause.type != _LEFT_UNANSWERED:
                raise ended_badly(thread_workflow(self.id), err.cause) from err
            raise RunFailed(f"the run of the thread {self.id!r} ended before it answered") from err
        except WorkflowUpdateRPCTimeoutOrCancelledError as err:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from err  # the SDK makes one error of both
        except RPCError as err:
            await _take_error_of(start)
            if err.status not in _LATER or "namespace" in err.message.lower():
                raise refused(thread_workflow(self.id), err) from err

    async def _agent(self) -> str:
        thread = await (await self._threads()).get(self.id)
        if thread is None:
            raise ThreadNotFound(f"no thread {self.id!r}")
        return thread.agent

    async def _threads(self) -> ThreadLedger:
        return (await self._client.ledger()).threads


async def _take_error_of(start: WithStartWorkflowOperation[Any, Any]) -> None:
    """Take the same error from the start, which asyncio would complain of if nobody did."""
    with suppress(Exception):
        async with asyncio.timeout(0):
            await start.workflow_handle()
