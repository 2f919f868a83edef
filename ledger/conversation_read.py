"""Reading what a model turn starts from: one round trip, where this process knows the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.rows import dict_row

from ..errors import RunNotRunning
from ..identity import ActionKey
from .action_records import Action
from .known_messages import KnownMessages
from .row_factory import read, record_row
from .run_records import Run
from .statements import Connection, Row, fetch_all, fetch_each
from .thread_records import NO_STATE, Conversation, Request, Returned, StoredMessage, Thread, Turn
from .thread_rules import check_alive


async def read_conversation(
    connection: Connection, known: KnownMessages, at: Mapping[str, Any], calls: Sequence[ActionKey]
) -> Conversation:
    """Return what a model turn starts from. See `ThreadLedger.read`.

    Args:
        connection: In autocommit.
        known: The messages that need not be read; what is read is kept there.
        at: The run, its conversation and the request: ``run_key``, ``thread_id``, ``request_id``.
        calls: Those of which it is read what they returned.
    """
    [row], *returned = await fetch_each(
        connection,
        (dict_row, "read_turn", at),
        *([(record_row(Returned), "get_returned", {"keys": list(calls)})] if calls else []),
    )
    if row["run_key"] is None:
        raise RunNotRunning(f"the run {at['run_key']} is not in the ledger", known=False)
    thread = check_alive(at["thread_id"], _thread(row))
    messages = known.get(thread.thread_id, version=thread.version, committed_at=row["committed_at"])
    if messages is None:
        messages = await _read_messages(connection, known, thread)
    settled: Sequence[Action] = ()
    if row["has_notices"]:
        settled = await fetch_all(connection, Action, "pending_notices", thread_id=thread.thread_id)
    return Conversation(
        read(Run, row),
        thread,
        messages,
        _request(row, at),
        settled,
        {one.key: one for one in (returned[0] if calls else ())},
        row["shared_state"] or NO_STATE,
        row["state_version"] or 0,
    )


async def _read_messages(
    connection: Connection, known: KnownMessages, thread: Thread
) -> Sequence[StoredMessage]:
    """Read the messages, after the thread: one that is written meanwhile is found stale."""
    given = {"thread_id": thread.thread_id}
    messages = await fetch_all(connection, StoredMessage, "get_messages", **given)
    if messages and messages[-1].version == thread.version:
        known.keep(thread.thread_id, messages)
    return messages


def keep_committed(known: KnownMessages, turn: Turn, committed: Row) -> None:
    """Keep what a commit has added to a conversation, if what it started from is known.

    Args:
        known: Where it is kept.
        turn: The turn that was committed.
        committed: The row that its commit returned.
    """
    before = known.get(turn.thread_id, version=turn.version, committed_at=committed["started_from"])
    if before is None:
        return
    added = [
        StoredMessage(
            committed["version"],
            ordinal,
            new.role,
            new.message,
            turn.run_key,
            turn.step,
            turn.epoch,
            new.request_id,
            committed["committed_at"],
        )
        for ordinal, new in enumerate(turn.messages)
    ]
    known.keep(turn.thread_id, [*before, *added])


def _thread(row: Row) -> Thread | None:
    if row["found_thread_id"] is None:
        return None
    return Thread(
        row["found_thread_id"],
        row["thread_agent"],
        row["thread_version"],
        row["written_by"],
        row["forked_run"],
        row["forked_step"],
        row["thread_created_at"],
        row["deleted_at"],
    )


def _request(row: Row, at: Mapping[str, Any]) -> Request | None:
    if row["request_message"] is None:
        return None
    return Request(at["thread_id"], at["request_id"], row["request_message"], row["request_reply"])
