"""`ThreadLedger`: conversations, versioned; one commit per model turn.

    agent_threads    a version, which counts commits, and who wrote last
    agent_messages   what was said, in the order of the commits
    agent_requests   what callers asked for, and what they were answered
    agent_states     what its tools share, by the version that left it so

A commit names the version that it started from. If another one came between, nothing is
written (`StaleThread`): no message is lost, and none is overwritten. A turn's completion is
there once, by run and model turn: the first one stands, and whoever commits again gets it.

Every method is one bounded ledger call (see `calls`), which opens its own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Final, Literal

from psycopg import errors as pg

from ..errors import (
    RequestConflict,
    ResetRefused,
    RunNotRunning,
    StaleThread,
    ThreadDeleted,
    ThreadNotFound,
)
from ..identity import (
    UNDO_PREFIX,
    ActionKey,
    Position,
    RunKey,
    action_key,
    is_from,
    parent_of,
    position_in_parent,
    started_workflow_of,
)
from .calls import Connection, LedgerCalls, Row, execute, fetch, fetch_all, fetch_each
from .records import Action, Outcome, Run

MessageRole = Literal["user", "assistant", "tool"]

NO_STATE: Final = "{}"
"""The state (JSON text) of a conversation whose tools have changed nothing."""

_GIVEN_UP = Outcome.error(
    kind="NeverSent",
    message="its run ended before anything was sent, and the conversation went on without it",
    effect_possible=False,
)


@dataclass(frozen=True)
class Thread:
    """A row of ``agent_threads``."""

    thread_id: str
    agent: str
    """The agent that began it."""
    version: int
    """Commits so far."""
    written_by: RunKey | None
    """The run of the last commit."""
    forked_run: RunKey | None
    """The run that was forked, where nobody has gone on from there yet."""
    forked_step: int | None
    """At which of its model turns."""
    created_at: datetime
    deleted_at: datetime | None

    @classmethod
    def from_row(cls, row: Row) -> Thread:
        """Read a row as psycopg gives it, which may have columns of a later release."""
        return cls(**{name: row[name] for name in _THREAD_COLUMNS})


@dataclass(frozen=True)
class StoredMessage:
    """A row of ``agent_messages``."""

    version: int
    """Of the commit that it came with."""
    ordinal: int
    """Its place in there."""
    role: MessageRole
    message: str
    """JSON text."""
    run_key: RunKey
    """Who wrote it."""
    step: int
    """At which model turn of that run."""
    epoch: int
    """The run's epoch then; a fork begins the next."""
    request_id: str | None
    created_at: datetime

    @classmethod
    def from_row(cls, row: Row) -> StoredMessage:
        """Read a row as psycopg gives it."""
        return cls(**{name: row[name] for name in _MESSAGE_COLUMNS})


_THREAD_COLUMNS = tuple(found.name for found in fields(Thread))
_MESSAGE_COLUMNS = tuple(found.name for found in fields(StoredMessage))


@dataclass(frozen=True)
class Request:
    """What a caller asked of a conversation."""

    thread_id: str
    request_id: str
    message: str
    """JSON text."""
    reply: str | None
    """JSON text, once it is answered."""

    @classmethod
    def from_row(cls, row: Row) -> Request:
        """Read a row as psycopg gives it."""
        return cls(row["thread_id"], row["request_id"], row["message"], row["reply"])


@dataclass(frozen=True)
class NewMessage:
    """A message to commit."""

    role: MessageRole
    message: str
    """JSON text."""
    request_id: str | None = None
    """The request that it is."""


@dataclass(frozen=True)
class Turn:
    """What one model turn commits."""

    thread_id: str
    version: int
    """The version that it started from."""
    run_key: RunKey
    step: int
    epoch: int
    messages: Sequence[NewMessage]
    """What is new since that version, the completion among it."""
    input_tokens: int = 0
    output_tokens: int = 0
    told: Sequence[str] = ()
    """The actions whose settlement the messages tell."""
    replies_to: str | None = None
    """The request that it answers."""
    reply: str | None = None
    """JSON text."""
    state: str | None = None
    """JSON text of the state that it leaves; None where that is as it was."""


@dataclass(frozen=True)
class Committed:
    """The turn that stands."""

    version: int
    input_tokens: int
    """Of the run so far."""
    output_tokens: int
    earlier: StoredMessage | None = None
    """The completion that stood before, if this commit was not the first."""


@dataclass(frozen=True)
class Conversation:
    """Everything that a model turn starts from."""

    run: Run
    thread: Thread
    messages: Sequence[StoredMessage]
    request: Request | None = None
    settled: Sequence[Action] = field(default_factory=tuple)
    """What has been settled since the conversation was told that it is unknown."""
    state: str = NO_STATE
    """JSON text of what its tools share."""
    state_version: int = 0
    """Of the commit that left it so."""


class ThreadLedger(LedgerCalls):
    """Conversations over an open psycopg pool (see `ledger_pool`)."""

    async def open(self, thread_id: str, *, agent: str) -> Thread:
        """Begin a conversation, or find it. Safe to repeat.

        Raises:
            ThreadDeleted: It was deleted.
            LedgerUnavailable: No answer within the deadline.
        """
        return _alive(thread_id, await self._one("open_thread", thread_id=thread_id, agent=agent))

    async def get(self, thread_id: str) -> Thread | None:
        """Return one conversation, deleted or not; it only reads."""
        row = await self._maybe("get_thread", thread_id=thread_id)
        return None if row is None else Thread.from_row(row)

    async def list(self, *, limit: int = 100) -> Sequence[tuple[Thread, int]]:
        """Return the newest conversations and how many messages each has; it only reads."""
        rows = await self._all("list_threads", limit=limit)
        return [(Thread.from_row(row), row["messages"]) for row in rows]

    async def messages(self, thread_id: str) -> Sequence[StoredMessage]:
        """Return a conversation in order; it only reads.

        Raises:
            ThreadNotFound: There is none.
            ThreadDeleted: It was deleted.
        """

        async def work(connection: Connection) -> Sequence[StoredMessage]:
            _alive(thread_id, await fetch(connection, "get_thread", thread_id=thread_id))
            return await _messages(connection, thread_id)

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

        async def work(connection: Connection) -> Row | None:
            if agent is None:
                found = await fetch(connection, "get_thread", thread_id=thread_id)
            else:
                found = await fetch(connection, "open_thread", thread_id=thread_id, agent=agent)
            _alive(thread_id, found)
            await execute(connection, "receive", **parameters)
            return await fetch(connection, "get_request", **parameters)

        row = await self._call(work)
        if row is None:
            raise ThreadDeleted(f"the thread {thread_id!r} was deleted")
        if row["message"] != message:
            raise RequestConflict(f"{request_id!r} of the thread {thread_id!r} said something else")
        return Request.from_row(row)

    async def request(self, thread_id: str, request_id: str) -> Request | None:
        """Return one request, or None; it only reads."""
        row = await self._maybe("get_request", thread_id=thread_id, request_id=request_id)
        return None if row is None else Request.from_row(row)

    async def read(
        self, run_key: RunKey, thread_id: str, *, request_id: str | None = None
    ) -> Conversation:
        """Return what a model turn starts from; it only reads.

        Raises:
            RunNotRunning: The run is not in the ledger.
            ThreadNotFound: The conversation is not.
            ThreadDeleted: The conversation was deleted.
        """

        async def work(connection: Connection) -> Conversation:
            # The thread before its messages: one that is written meanwhile is found stale.
            runs, threads, messages, requests, settled = await fetch_each(
                connection,
                ("get_run", {"run_key": run_key}),
                ("get_thread_with_state", {"thread_id": thread_id, "version": None}),
                ("get_messages", {"thread_id": thread_id}),
                ("get_request", {"thread_id": thread_id, "request_id": request_id}),
                ("pending_notices_in_thread", {"thread_id": thread_id}),
            )
            if not runs:
                raise RunNotRunning(f"the run {run_key} is not in the ledger", known=False)
            thread = _alive(thread_id, threads[0] if threads else None)
            return Conversation(
                Run.from_row(runs[0]),
                thread,
                [StoredMessage.from_row(row) for row in messages],
                Request.from_row(requests[0]) if requests else None,
                [Action.from_row(row) for row in settled],
                threads[0]["state"] or NO_STATE,
                threads[0]["state_version"] or 0,
            )

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
        row = await self._maybe("get_thread_with_state", thread_id=thread_id, version=version)
        _alive(thread_id, row)
        return NO_STATE if row is None or row["state"] is None else str(row["state"])

    async def pending_notices(self, thread_id: str) -> Sequence[Action]:
        """Return what was settled since the conversation was told that it is unknown.

        It only reads: the commit that tells it marks it (`Turn.told`).
        """
        rows = await self._all("pending_notices_in_thread", thread_id=thread_id)
        return [Action.from_row(row) for row in rows]

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
            "told": list(turn.told),
        }

        async def work(connection: Connection) -> Committed:
            try:
                row = await fetch(connection, "commit_turn", **parameters)
            except pg.UniqueViolation:
                # Committed before, and this starts from what came of it.
                row = None
                at = {"run_key": turn.run_key, "step": turn.step}
                if await fetch(connection, "get_turn", **at) is None:
                    raise
            if row is not None:
                return Committed(
                    row["version"], row["input_tokens"] or 0, row["output_tokens"] or 0
                )
            return await _stands(connection, turn)

        return await self._call(work)

    async def give_up_turn(
        self,
        run_key: RunKey,
        positions: Sequence[Position],
        *,
        by: RunKey,
        thread_id: str,
        version: int,
    ) -> dict[Position, Action]:
        """Return what the ledger has of a turn that another run left unanswered.

        From then on that run starts nothing: a call of it without a row was not carried out,
        for good. What it may have sent is parked: told as unknown, for a person to settle.
        Safe to repeat.

        Args:
            run_key: The run that left it.
            positions: Its calls.
            by: The run that goes on with the conversation.
            thread_id: The conversation.
            version: The version of it that ``by`` goes on from.

        Raises:
            StaleThread: Another commit came between: it is not for this run to give it up.
            ThreadDeleted: The conversation was deleted.
        """
        reason = f"the conversation went on with {by}"

        async def work(connection: Connection) -> dict[Position, Action]:
            async with connection.transaction():
                found = await fetch(connection, "lock_thread", thread_id=thread_id)
                at = _alive(thread_id, found).version
                if at != version:
                    raise StaleThread(f"the thread {thread_id!r} is at {at}, not at {version}")
                if run_key != by:
                    await execute(
                        connection,
                        "give_up_run",
                        run_key=run_key,
                        workflow_id=started_workflow_of(run_key),
                        parent_key=parent_of(run_key),
                        reason=reason,
                    )
                await _give_up_below(connection, run_key, positions, reason=reason)
                own = await _give_up(connection, run_key, positions)
                return await _claimed_for(connection, run_key, positions) | own

        return await self._call(work)

    async def delete(self, thread_id: str) -> None:
        """Delete a conversation for good: its messages, requests, state and large read results.

        A tombstone stays, and late writes do not bring it back. The record of its actions
        stays too. Safe to repeat.

        Raises:
            ThreadNotFound: There is none.
        """

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                row = await fetch(connection, "lock_thread", thread_id=thread_id)
                if row is None:
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

        What the conversation has from there on is taken back (kept, and no part of it any
        more), and so is its state. What was done stands. Safe to repeat until the run has gone on.

        Returns:
            The epoch.

        Raises:
            ResetRefused: The run has no such turn, was stopped, or writes no conversation.
            StaleThread: Another run has written the conversation since.
            ThreadDeleted: It was deleted.
        """

        async def work(connection: Connection) -> int:
            async with connection.transaction():
                return await _fork(connection, run_key, step)

        return await self._call(work)


def _alive(thread_id: str, row: Row | None) -> Thread:
    if row is None:
        raise ThreadNotFound(f"no thread {thread_id!r}")
    if row["deleted_at"] is not None:
        raise ThreadDeleted(f"the thread {thread_id!r} was deleted at {row['deleted_at']}")
    return Thread.from_row(row)


async def _messages(connection: Connection, thread_id: str) -> Sequence[StoredMessage]:
    rows = await fetch_all(connection, "get_messages", thread_id=thread_id)
    return [StoredMessage.from_row(row) for row in rows]


async def _stands(connection: Connection, turn: Turn) -> Committed:
    """Return the completion that stands for a turn whose commit was not taken, or say why."""
    found = await fetch(connection, "get_thread", thread_id=turn.thread_id)
    thread = _alive(turn.thread_id, found)
    row = await fetch(connection, "get_turn", run_key=turn.run_key, step=turn.step)
    if row is None:
        raise StaleThread(
            f"the thread {turn.thread_id!r} is at version {thread.version}, by "
            f"{thread.written_by}; turn {turn.step} of {turn.run_key} started from {turn.version}"
        )
    run = await fetch(connection, "get_run", run_key=turn.run_key)
    return Committed(
        row["version"],
        0 if run is None else run["input_tokens"],
        0 if run is None else run["output_tokens"],
        StoredMessage.from_row(row),
    )


async def _give_up(
    connection: Connection, run_key: RunKey, positions: Sequence[Position]
) -> dict[Position, Action]:
    at = {"run_key": run_key, "positions": list(positions)}
    # The domain keys first: that is the lock order.
    for row in await fetch_all(connection, "domain_keys_of", **at):
        await fetch(connection, "lock_domain_key", domain_key=row["domain_key"])
    for row in await fetch_all(connection, "lock_turn_actions", **at):
        await _end(connection, Action.from_row(row))
    rows = await fetch_all(connection, "get_turn_actions", **at)
    return {row["position"]: Action.from_row(row) for row in rows}


async def _give_up_below(
    connection: Connection, run_key: RunKey, positions: Sequence[Position], *, reason: str
) -> None:
    """Give up the runs of the sub-agents that calls of a run began, with all below them."""
    below = await fetch_all(connection, "runs_below", run_key=run_key)
    given_up: list[RunKey] = []  # the upper ones come first
    for row in below:
        if _called_at(row, run_key) in positions or row["parent_key"] in given_up:
            given_up.append(row["run_key"])
    if not given_up:
        return
    await execute(connection, "give_up_runs", run_keys=given_up, reason=reason)
    for below_key in given_up:
        rows = await fetch_all(connection, "list_actions_of_run", run_key=below_key)
        # What is just being taken back is brought to its end all the same.
        at = [row["position"] for row in rows if not row["position"].startswith(UNDO_PREFIX)]
        await _give_up(connection, below_key, at)


def _called_at(row: Row, parent: RunKey) -> Position | None:
    """Return at which of its calls a run began the one of the row; None where another run did."""
    return position_in_parent(row["run_key"]) if row["parent_key"] == parent else None


async def _claimed_for(
    connection: Connection, run_key: RunKey, positions: Sequence[Position]
) -> dict[Position, Action]:
    """Return the rows of other actions on which calls of a run were carried out, or are."""
    keys = {action_key(run_key, at): at for at in positions}
    found: dict[Position, Action] = {}
    for row in await fetch_all(connection, "lock_claimed_for", keys=list(keys)):
        action = Action.from_row(row)
        if action.state == "dispatched":
            await _end(connection, action)
        now = await fetch(connection, "get_action", key=action.key)
        assert now is not None, "the row is locked"
        found[keys[ActionKey(row["claimed_by"])]] = Action.from_row(now)
    return found


async def _end(connection: Connection, action: Action) -> None:
    """Bring a row of a run that is given up to an end: void what was not sent, park the rest."""
    if action.dispatched_at is None:
        await fetch(connection, "void_intent", key=action.key, result=_GIVEN_UP.result)
        await execute(connection, "leave_relay", keys=[action.key])
        if action.domain_key is not None:
            await execute(
                connection, "release_domain_key", domain_key=action.domain_key, key=action.key
            )
        return
    if action.relayed:
        return  # the relay is at it, and answers for it
    await fetch(
        connection,
        "park",
        key=action.key,
        token=None,
        reason="its run went away in the middle of it, and the conversation went on",
        over=False,
        failures=None,
    )


async def _fork(connection: Connection, run_key: RunKey, step: int) -> int:
    run = await fetch(connection, "get_run", run_key=run_key)
    if run is None or run["thread_id"] is None:
        raise ResetRefused(f"{run_key} has no conversation in the ledger that could be forked")
    found = await fetch(connection, "lock_thread", thread_id=run["thread_id"])
    thread = _alive(run["thread_id"], found)
    # Read again: another fork, or a stop, may have come between.
    run = await fetch(connection, "lock_run_to_fork", run_key=run_key)
    assert run is not None, "it was there before"
    check_goes_back(Run.from_row(run), thread)
    turn = await fetch(connection, "get_turn", run_key=run_key, step=step)
    if turn is None:
        if run["fork_step"] == step:
            return int(run["epoch"])  # forked before, and not gone on yet
        raise ResetRefused(f"{run_key} has no model turn {step} on record")
    back = {"thread_id": thread.thread_id, "version": turn["version"]}
    other = await fetch(connection, "written_by_others", run_key=run_key, **back)
    if other is not None:
        raise StaleThread(
            f"{other['run_key']} has written the thread {thread.thread_id!r} since turn {step}"
        )
    await execute(connection, "reopen_requests", **back)
    await execute(connection, "supersede", **back)
    await execute(connection, "supersede_states", **back)
    await fetch(connection, "fork_thread", thread_id=thread.thread_id, run_key=run_key, step=step)
    forked = await fetch(connection, "fork_run", run_key=run_key, step=step)
    assert forked is not None, "the run was read before"
    rows = await fetch_all(connection, "list_actions_of_run", run_key=run_key)
    later = [row["position"] for row in rows if is_from(row["position"], step)]
    below = await fetch_all(connection, "runs_below", run_key=run_key)
    called = [at for row in below if (at := _called_at(row, run_key)) and is_from(at, step)]
    reason = f"{run_key} was taken back to before it, and goes another way"
    await _give_up_below(connection, run_key, called, reason=reason)
    await _give_up(connection, run_key, later)
    # Last: it locks actions whose domain keys are not locked here.
    await execute(connection, "untell", **back)
    return int(forked["epoch"])


def check_goes_back(run: Run, thread: Thread) -> None:
    """Refuse to take back what another run has built on.

    Raises:
        StaleThread: Another run has written the conversation since.
        ResetRefused: The run was stopped.
    """
    if thread.written_by not in (None, run.run_key):
        raise StaleThread(
            f"{thread.written_by} has written the thread {thread.thread_id!r} since {run.run_key}"
        )
    check_not_stopped(run)


def check_not_stopped(run: Run) -> None:
    """Refuse to open a run again that was stopped.

    Raises:
        ResetRefused: It was.
    """
    if run.stopped_at is not None:
        raise ResetRefused(f"{run.run_key} was stopped for good: {run.stop_reason}")
