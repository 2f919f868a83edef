"""What the calls before a model turn have changed in the state, merged for the turn's commit.

The turn that is told the results of calls merges their changes: into the state that each call
was given a copy of, which is the one that stands, since a commit by anybody else makes the turn
stale. State and messages are committed together, and a turn is committed once, so no change
counts twice, whatever is retried or reset.

What became known only later (a call that was unknown) is merged by the turn that is told so, if
the state is still as that call knew it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from ...canonical import dumps, parse
from ...identity import ActionKey, epoch_of, step_of
from ...ledger import Action, Conversation
from ..app.state import State
from ..app.state_merge import merge
from ..contract.conversation import Message
from ..contract.state_changes import CallChanges, Changes, Dropped, Merged
from ..replies import notices

log = structlog.get_logger("commitline")

_MERGE_SECONDS: Final = 10.0
"""How long the reducers of one turn may take, all together."""


@dataclass(frozen=True)
class TurnState:
    """What a turn commits of the state, and tells of it."""

    state: str | None = None
    """JSON text; None where it stays as it is."""
    notices: Sequence[Message] = ()


def changes_before(
    found: Conversation,
    messages: Sequence[Message],
    settled: Sequence[Action],
    told: Collection[ActionKey],
) -> list[CallChanges]:
    """Return what is to be merged, in order: what was settled late, then the calls' results.

    Args:
        found: The conversation.
        messages: What is new since.
        settled: What became known since it was told to be unknown.
        told: The actions whose results are among the messages, and their changes with them.
    """
    calls = [
        CallChanges(action.position, changes)
        for action in settled
        # What was undone is told of once more; its changes were merged when it was done, if ever.
        if action.key not in told
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
    """Return the version at which the turn was committed that asked for an action."""
    asked_in = (action.run_key, step_of(action.position), epoch_of(action.position))
    for one in found.messages:
        if one.role == "assistant" and (one.run_key, one.step, one.epoch) == asked_in:
            yield one.version


def without_changes(messages: Sequence[Message]) -> list[Message]:
    """Return messages as they are kept: changes are on the calls' rows, and in the state."""
    return [
        replace(one, results=[replace(result, changes=None) for result in one.results])
        if one.results
        else one
        for one in messages
    ]


async def merged(
    model: type[State] | None, found: Conversation, calls: Sequence[CallChanges]
) -> TurnState:
    """Merge, away from the worker's event loop: reducers are the application's code."""
    before = parse(found.state)
    try:
        async with asyncio.timeout(_MERGE_SECONDS):
            result = await asyncio.to_thread(merge, model, before, calls)
    except TimeoutError:
        why = f"the reducers took longer than {_MERGE_SECONDS:g} s"
        lost = [Dropped(one.position, one.changes.fields, why) for one in calls]
        result = Merged(before, dropped=lost)
    _say(found, result)
    texts = [notices.state_conflict(one) for one in result.conflicts]
    texts += [notices.state_dropped(one) for one in result.dropped]
    after = dumps(result.state)  # compared as text: to Python, True is 1
    return TurnState(
        None if after == dumps(before) else after, [Message.user(text) for text in texts]
    )


def _say(found: Conversation, result: Merged) -> None:
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
