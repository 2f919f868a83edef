"""Conversations, for an operator: find one, and show what was said in it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.text import Text

from ..handles.thread_message import ThreadMessage
from ..ledger import ActionLedger, Thread
from ..ledger.thread_records import NO_STATE
from ..shown import block
from .console import OUT, age, line, moment
from .listing import Listing


async def conversation(ledger: ActionLedger, id: str) -> tuple[Sequence[ThreadMessage], str]:
    """Return what was said in a conversation, and what its tools share, as JSON text.

    Args:
        ledger: The ledger.
        id: The conversation's, or a run's.

    Raises:
        ThreadNotFound: There is none.
        ThreadDeleted: It was deleted.
    """
    thread = await thread_id(ledger, id)
    messages = await ledger.threads.messages(thread)
    state = await ledger.threads.state(thread)
    return [ThreadMessage.from_stored(one) for one in messages], state


async def thread_id(ledger: ActionLedger, id: str) -> str:
    """Return a conversation's id, by itself or by the id of its newest run."""
    if await ledger.threads.get(id) is None:
        newest = await ledger.runs.list(workflow_id=id, limit=1)
        if newest and newest[0].thread_id is not None:
            return newest[0].thread_id
    return id


def table(found: Sequence[tuple[Thread, int]]) -> Listing:
    """Return a list of conversations."""
    now = datetime.now(tz=UTC)
    listing = Listing("thread", "agent", "messages", "state", "begun")
    for thread, count in found:
        listing.add_row(
            line(thread.thread_id),
            line(thread.agent, limit=24),
            str(count),
            Text("deleted" if thread.deleted_at else f"version {thread.version}"),
            f"{age(now - thread.created_at)} ago",
        )
    return listing


def print_message(one: ThreadMessage) -> None:
    """Print one message of a conversation."""
    who = {"user": "user", "assistant": "model", "tool": "tools"}[one.role]
    OUT.print(Text(f"{who}  (version {one.version}, {moment(one.created_at)})", style="dim"))
    if one.text:
        OUT.print(Text(block(one.text)), soft_wrap=True)
    for call in one.calls:
        OUT.print(line(f"-> {call.name} {call.arguments}", limit=500), soft_wrap=True)
    for result in one.results:
        told = f"<- {result.position} {result.name}: {result.status}: {result.content}"
        OUT.print(line(told, limit=500), soft_wrap=True)
    OUT.print()


def print_state(text_of_it: str) -> None:
    """Print what a conversation's tools share (JSON text), if that is anything."""
    if text_of_it != NO_STATE:
        OUT.print(line(f"state  {text_of_it}", limit=2_000), soft_wrap=True)
