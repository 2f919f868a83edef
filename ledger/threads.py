"""`ThreadLedger`: conversations, versioned; one commit per model turn.

    agent_threads    a version, which counts commits, and the run that wrote last
    agent_messages   the messages, in the order of the commits
    agent_requests   what callers sent, and the replies
    agent_states     what its tools share, by the version that left it so

A commit names the version that it started from. If another one came between, nothing is
written (`StaleThread`): no message is lost, and none is overwritten. A turn's completion is
there once, by run and model turn: the first one stands, and a repeated commit returns it.

Every method is one bounded ledger call (see `statements`), which opens its own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import errors as pg

from ..errors import RequestConflict, ThreadDeleted, ThreadNotFound
from ..identity import ActionKey, Position, RunKey
from .action_records import Action
from .conversation_read import keep_committed, read_conversation
from .forks import fork_run
from .known_messages import KnownMessages
from .open_turns import close_turn
from .pool import Pool
from .row_factory import read
from .run_records import Run
from .statements import Connection, LedgerCalls, execute, fetch, fetch_all, fetch_row
from .thread_records import (
    NO_STATE,
    Committed,
    Conversation,
    Request,
    StoredMessage,
    Thread,
    Turn,
)
from .thread_rules import check_alive, stale
from .transaction import transaction


class ThreadLedger(LedgerCalls):
    """Conversations over an open psycopg pool (see `ledger_pool`).

    It keeps the messages that it has read or written, and reads them again only if they are others
    by then (`KnownMessages`). So hold on to one for many turns.
    """

    def __init__(self, pool: Pool, *, statement_seconds: float = 10.0) -> None:
        super().__init__(pool, statement_seconds=statement_seconds)
        self._known = KnownMessages()

    async def open(self, thread_id: str, *, agent: str) -> Thread:
        """Begin a conversation, or find it. Safe to repeat.

        Raises:
            ThreadDeleted: It was deleted.
            LedgerUnavailable: No answer within the deadline.
        """
        found = await self._fetch_one(Thread, "open_thread", thread_id=thread_id, agent=agent)
        return check_alive(thread_id, found)

    async def get(self, thread_id: str) -> Thread | None:
        """Return one conversation, deleted or not; it only reads."""
        return await self._fetch(Thread, "get_thread", thread_id=thread_id)

    async def list(self, *, limit: int = 100) -> Sequence[tuple[Thread, int]]:
        """Return the newest conversations and how many messages each has; it only reads."""
        rows = await self._fetch_rows("list_threads", limit=limit)
        return [(read(Thread, row), row["messages"]) for row in rows]

    async def messages(self, thread_id: str) -> Sequence[StoredMessage]:
        """Return a conversation in order; it only reads.

        Raises:
            ThreadNotFound: There is none.
            ThreadDeleted: It was deleted.
        """

        async def work(connection: Connection) -> Sequence[StoredMessage]:
            found = await fetch(connection, Thread, "get_thread", thread_id=thread_id)
            check_alive(thread_id, found)
            return await fetch_all(connection, StoredMessage, "get_messages", thread_id=thread_id)

        return await self._call(work)

    async def receive(
        self, thread_id: str, request_id: str, message: str, *, agent: str | None
    ) -> Request:
        """Take a request up; return it, with its reply if it has one.

        Safe to repeat: the id makes it one request, whichever run it reaches.

        Args:
            thread_id: The conversation; begun, if an agent is named.
            request_id: The caller's; unique within the conversation.
            message: JSON text.
            agent: Who begins the conversation; None where it must be there.

        Raises:
            ThreadNotFound: No such conversation, and no agent was named.
            ThreadDeleted: It was deleted.
            RequestConflict: The id was used for another text.
        """
        parameters = {"thread_id": thread_id, "request_id": request_id, "message": message}
        opened = {"thread_id": thread_id, "agent": agent}

        async def work(connection: Connection) -> Request | None:
            begin = "get_thread" if agent is None else "open_thread"
            check_alive(thread_id, await fetch(connection, Thread, begin, **opened))
            await execute(connection, "receive", **parameters)
            return await fetch(connection, Request, "get_request", **parameters)

        received = await self._call(work)
        if received is None:
            raise ThreadDeleted(f"the thread {thread_id!r} was deleted")
        if received.message != message:
            raise RequestConflict(f"{request_id!r} of the thread {thread_id!r} said something else")
        return received

    async def request(self, thread_id: str, request_id: str) -> Request | None:
        """Return one request, or None; it only reads."""
        return await self._fetch(Request, "get_request", thread_id=thread_id, request_id=request_id)

    async def read(
        self,
        run_key: RunKey,
        thread_id: str,
        *,
        request_id: str | None = None,
        calls: Sequence[ActionKey] = (),
    ) -> Conversation:
        """Return what a model turn starts from; it only reads.

        Args:
            run_key: The run.
            thread_id: The conversation that it writes.
            request_id: The request that the turn answers, if there is one.
            calls: Those of which it is read what they returned.

        Raises:
            RunNotRunning: The run is not in the ledger.
            ThreadNotFound: The conversation is not.
            ThreadDeleted: The conversation was deleted.
        """
        at = {"run_key": run_key, "thread_id": thread_id, "request_id": request_id}

        async def work(connection: Connection) -> Conversation:
            return await read_conversation(connection, self._known, at, calls)

        return await self._call(work)

    async def state(self, thread_id: str, version: int | None = None) -> str:
        """Return what a conversation's tools share, as JSON text; it only reads.

        Args:
            thread_id: The conversation.
            version: As that commit left it; None is as it is now.

        Raises:
            ThreadNotFound: There is none.
            ThreadDeleted: It was deleted.
        """
        row = await self._fetch_row("get_thread_with_state", thread_id=thread_id, version=version)
        check_alive(thread_id, None if row is None else read(Thread, row))
        return NO_STATE if row is None or row["state"] is None else str(row["state"])

    async def pending_notices(self, thread_id: str) -> Sequence[Action]:
        """Return what was settled after the model had read that it is unknown or pending.

        It only reads: the commit of the notice marks it (`Turn.notified`).
        """
        return await self._fetch_all(Action, "pending_notices", thread_id=thread_id)

    async def commit(self, turn: Turn) -> Committed:
        """Commit a model turn: its messages, the state, the thread's next version, the reply.

        One round trip in the common case. Safe to repeat: the first completion of a turn
        stands, and is returned.

        Raises:
            StaleThread: Another commit came between; nothing was written.
            ThreadDeleted: It was deleted; nothing was written.
            LedgerUnavailable: No answer within the deadline. Commit again.
        """
        parameters = {
            **vars(turn),
            "roles": [new.role for new in turn.messages],
            "messages": [new.message for new in turn.messages],
            "request_ids": [new.request_id for new in turn.messages],
            "notified": list(turn.notified),
        }

        async def work(connection: Connection) -> Committed:
            try:
                row = await fetch_row(connection, "commit_turn", **parameters)
            except pg.UniqueViolation:
                # Committed before, and this starts from what came of it.
                row = None
                at = {"run_key": turn.run_key, "step": turn.step}
                if await fetch(connection, StoredMessage, "get_turn", **at) is None:
                    raise
            if row is not None:
                keep_committed(self._known, turn, row)
                return Committed(
                    row["version"], row["input_tokens"] or 0, row["output_tokens"] or 0
                )
            return await _committed_before(connection, turn)

        return await self._call(work)

    async def close_turn(
        self,
        run_key: RunKey,
        positions: Sequence[Position],
        *,
        by: RunKey,
        thread_id: str,
        version: int,
    ) -> dict[Position, Action]:
        """Close a turn that another run left without an answer; return its actions.

        From then on that run starts nothing: a call of it without a row was not carried out,
        for good. What it may have sent is parked: the model reads that it is unknown, and a
        person settles it. Safe to repeat.

        Args:
            run_key: The run that left it.
            positions: Its calls.
            by: The run that goes on with the conversation.
            thread_id: The conversation.
            version: The version of it that ``by`` goes on from.

        Raises:
            StaleThread: Another commit came between: this run must not close the turn.
            ThreadDeleted: The conversation was deleted.
        """

        async def work(connection: Connection) -> dict[Position, Action]:
            async with transaction(connection):
                return await close_turn(
                    connection, run_key, positions, by=by, thread_id=thread_id, version=version
                )

        return await self._call(work)

    async def delete(self, thread_id: str) -> None:
        """Delete a conversation for good: its messages, requests, state and large read results.

        A tombstone stays, and late writes do not bring it back. The record of its actions
        stays too. Safe to repeat.

        Raises:
            ThreadNotFound: There is none.
        """

        async def work(connection: Connection) -> None:
            async with transaction(connection):
                if not await execute(connection, "lock_thread", thread_id=thread_id):
                    raise ThreadNotFound(f"no thread {thread_id!r}")
                for query in (
                    "delete_thread",
                    "delete_messages",
                    "delete_requests",
                    "delete_states",
                    "delete_values",
                ):
                    await execute(connection, query, thread_id=thread_id)

        await self._call(work)

    async def fork(self, run_key: RunKey, step: int) -> int:
        """Open a run's next epoch: from this model turn on it goes another way.

        The messages from there on leave the conversation (they stay in the table), and so does
        the state. What the run did stands. Safe to repeat until the run has gone on.

        Returns:
            The epoch.

        Raises:
            ResetRefused: The run has no such turn, was stopped, or writes no conversation.
            StaleThread: Another run has written the conversation since.
            ThreadDeleted: It was deleted.
        """

        async def work(connection: Connection) -> int:
            async with transaction(connection):
                return await fork_run(connection, run_key, step)

        return await self._call(work)


async def _committed_before(connection: Connection, turn: Turn) -> Committed:
    """Return the completion that stands for a turn whose commit was not taken, or say why."""
    found = await fetch(connection, Thread, "get_thread", thread_id=turn.thread_id)
    thread = check_alive(turn.thread_id, found)
    at = {"run_key": turn.run_key, "step": turn.step}
    earlier = await fetch(connection, StoredMessage, "get_turn", **at)
    if earlier is None:
        raise stale(turn, thread)
    run = await fetch(connection, Run, "get_run", run_key=turn.run_key)
    return Committed(
        earlier.version,
        0 if run is None else run.input_tokens,
        0 if run is None else run.output_tokens,
        earlier,
    )
