"""`RunHandle` and `ThreadHandle`: an agent's run, and the conversation that it writes.

Each leads to the other, so both are here. `AgentClient` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from ..activities.app.state import State
from ..activities.app.state_model import read_state
from ..activities.contract.conversation import RunResult
from ..activities.contract.encoding import from_text
from ..canonical import storable
from ..identity import THREAD_PREFIX, parent_of, thread_workflow
from ..ledger import Request, ThreadLedger
from .any_run import AnyRun
from .connection import Connection
from .intervention import Intervention
from .temporal_failure import ended_badly, refused
from .thread_message import ThreadMessage
from .thread_request import ThreadRequests

S = TypeVar("S", bound=State)


class RunHandle(AnyRun):
    """One run of an agent. Made by `AgentClient.start` and `AgentClient.run`.

    Args:
        connection: Of the client that made it.
        id: The workflow id.
        request: What the run was started with, on a thread.
        first: As `AnyRun` takes it.
    """

    def __init__(
        self,
        connection: Connection,
        id: str,
        *,
        request: Request | None = None,
        first: str | None = None,
    ) -> None:
        super().__init__(connection, id, first=first)
        self._request = request

    async def result(self) -> RunResult:
        """Wait for the run's end and return its answer. Safe to repeat.

        Of a run that was started on a thread it is the answer to what it was started with,
        whatever other requests the run got meanwhile.

        Raises:
            RunError: It ended without an answer; by kind and code.
            LedgerError: It was refused by the ledger (`PlanDivergence`, …).
            RunNotFound: No run has this id.
        """
        try:
            result = await self._workflow.result(RunResult)
        except WorkflowFailureError as err:
            replied = await self._replied()
            if replied is None:
                raise ended_badly(self.id, err.cause) from err
            return replied
        except RPCError as err:
            raise refused(self.id, err) from err
        return await self._replied() or result

    async def _replied(self) -> RunResult | None:
        """Return the reply to the request that the run was started for, if there is one."""
        if self._request is None:
            return None
        threads = (await self._connection.ledger()).threads
        found = await threads.request(self._request.thread_id, self._request.request_id)
        return None if found is None or found.reply is None else from_text(RunResult, found.reply)

    async def thread(self) -> ThreadHandle:
        """Return the run's conversation.

        Raises:
            RunNotFound: No run has this id.
        """
        run_key = await self._workflow.run_key()
        if self.id.startswith(THREAD_PREFIX) and parent_of(run_key) is None:
            return ThreadHandle(self._connection, self.id.removeprefix(THREAD_PREFIX))
        return ThreadHandle(self._connection, run_key)


class ThreadHandle:
    """One conversation. Made by `AgentClient.thread`, whether or not it exists yet.

    Args:
        connection: Of the client that made it.
        id: The thread's.
    """

    def __init__(self, connection: Connection, id: str) -> None:
        self._connection = connection
        self.id = id
        """The thread's id; of a run without a named thread its run key."""

    @property
    def run(self) -> RunHandle:
        """The run that answers, or answered last: the workflow ``thread:<id>``."""
        return RunHandle(self._connection, thread_workflow(self.id))

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
        """Return the conversation's state, as of its last model turn; it only reads.

        Args:
            model: The agent's state model. A field that no tool has changed has its default.

        Raises:
            StateUnusable: What is stored does not fit it.
            ThreadNotFound: No such conversation.
            ThreadDeleted: It was deleted.
            LedgerUnavailable: No answer from Postgres.
        """
        return read_state(model, await (await self._threads()).state(self.id))

    async def delete(self, *, by: str = "") -> None:
        """Delete the conversation for good: messages, requests and replies. Safe to repeat.

        A run under way writes no more of it, and ends with `ThreadDeleted`. What it did stands, and
        its actions stay in the ledger. Temporal deletes its history after the namespace's
        retention.

        Args:
            by: Who does: the client's ``authorize`` gets it.

        Raises:
            NotAuthorized: This person may not delete it; nothing was changed.
            ThreadNotFound: No such conversation.
            LedgerUnavailable: No answer from Postgres; delete it again.
        """
        wanted = Intervention("delete", self.id)
        await self._connection.check_authorized(storable(by), wanted)
        await (await self._threads()).delete(self.id)

    async def send(
        self, text: str, *, agent: str | None = None, request_id: str | None = None
    ) -> RunResult:
        """Say something, and wait for the answer. See `AgentClient.send`."""
        requests = ThreadRequests(self._connection, self.id)
        return await requests.send(text, agent=agent, request_id=request_id)

    async def receive(self, text: str, *, agent: str | None, request_id: str | None) -> Request:
        """Put a request into the ledger; return it, with its reply if it has one.

        Raises:
            ConversationTooLarge: Over 256 KiB.
            InvalidRunId: The thread's id, or the request's, is not 1 to 180 printable ASCII
                characters.
            ThreadBusy: It is the conversation of a run that is under way.
            As `ThreadLedger.receive`.
        """
        requests = ThreadRequests(self._connection, self.id)
        return await requests.receive(text, agent=agent, request_id=request_id)

    async def _threads(self) -> ThreadLedger:
        return (await self._connection.ledger()).threads
