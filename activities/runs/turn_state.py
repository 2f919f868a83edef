"""Merges what calls changed in the state, for the commit of the next model turn.

The turn whose input has the results of calls merges their changes into the conversation's state.
That is the state of which each call had a copy: a commit by another run would make the turn
stale. State and messages are committed together, and a turn is committed once, so no change
counts twice, whatever is retried or reset.

The changes of a call that was unknown, and is settled later, are merged by the turn whose input
has the notice, if the state is still the one that the call had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...canonical import dumps, parse
from ...identity import ActionKey, epoch_of, step_of
from ...ledger import Action, Conversation
from ...logs import Log
from ..app.state import State
from ..app.state_merge import merge
from ..contract.conversation import Message
from ..contract.state_changes import CallChanges, Changes, Dropped, Merged
from ..replies import notices

log = Log()

_MERGE_SECONDS: Final = 10.0
"""How long the reducers of one turn may take, all together."""


@dataclass(frozen=True)
class TurnState:
    """The state that a turn commits, and the notices about it for the model."""

    state: str | None = None
    """JSON text; None where the state stays as it is."""
    notices: Sequence[Message] = ()


def changes_before(
    found: Conversation,
    messages: Sequence[Message],
    settled: Sequence[Action],
    with_results: Collection[ActionKey],
) -> list[CallChanges]:
    """Return the changes to merge, in order: of actions settled late, then of the new results.

    Args:
        found: The conversation.
        messages: The turn's new messages.
        settled: Actions that were unknown to the model and are settled since.
        with_results: Actions whose results, and so whose changes, are in the new messages.
    """
    calls = [
        CallChanges(action.position, changes)
        for action in settled
        # An undone action is settled once more; its changes were merged when it was done, if ever.
        if action.key not in with_results
        and action.undone_by is None
        and (changes := _late(found, action)) is not None
    ]
    for message in messages:
        calls += [
            CallChanges(result.position, Changes.read(result.changes))
            for result in message.results
            if result.changes is not None
        ]
    return calls


def _late(found: Conversation, action: Action) -> Changes | None:
    if action.state_changes is None:
        return None
    changes = Changes.read(parse(action.state_changes))
    turn = next(_turns_of(found, action), None)
    if turn is None:
        return Changes(dropped="it became known after its turn was taken back")
    if changes.set and found.state_version > turn:
        return replace(changes, dropped="it became known after the state had changed")
    return changes


def _turns_of(found: Conversation, action: Action) -> Iterator[int]:
    """Return the version of the turn that planned an action, as an iterator of one or none."""
    planned_in = (action.run_key, step_of(action.position), epoch_of(action.position))
    for one in found.messages:
        if one.role == "assistant" and (one.run_key, one.step, one.epoch) == planned_in:
            yield one.version


def without_changes(messages: Sequence[Message]) -> list[Message]:
    """Return messages as they are stored: without changes, which the rows and the state have."""
    return [
        replace(one, results=[replace(result, changes=None) for result in one.results])
        if one.results
        else one
        for one in messages
    ]


async def merged(
    model: type[State] | None, found: Conversation, calls: Sequence[CallChanges]
) -> TurnState:
    """Merge, away from the worker's event loop, because reducers are the application's code."""
    before = parse(found.state)
    try:
        async with asyncio.timeout(_MERGE_SECONDS):
            result = await asyncio.to_thread(merge, model, before, calls)
    except TimeoutError:
        why = f"the reducers took longer than {_MERGE_SECONDS:g} s"
        lost = [Dropped(one.position, one.changes.fields, why) for one in calls]
        result = Merged(before, dropped=lost)
    _log(found, result)
    texts = [notices.state_conflict(one) for one in result.conflicts]
    texts += [notices.state_dropped(one) for one in result.dropped]
    after = dumps(result.state)  # compared as text: to Python, True is 1
    return TurnState(
        None if after == dumps(before) else after, [Message.user(text) for text in texts]
    )


def _log(found: Conversation, result: Merged) -> None:
    thread_id = found.thread.thread_id
    for one in result.conflicts:
        log.warning(
            "state.conflict",
            thread_id=thread_id,
            field=one.field,
            earlier=one.earlier,
            later=one.later,
        )
    for lost in result.dropped:
        log.warning(
            "state.changes_dropped",
            thread_id=thread_id,
            position=lost.position,
            fields=lost.fields,
            reason=lost.why,
        )
