"""One result per call, in order: what every provider demands of a conversation.

A run that died, was terminated or lost its conversation to another one leaves a message whose
calls have no results. The next turn makes the results from the ledger: of an action that is done,
the recorded outcome; of one that may have happened, ``unknown``; of one that was never sent,
that it was not carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...identity import Position, RunKey, position
from ...ledger import Action
from ...logs import Log
from ..contract.conversation import Message, ToolCall, ToolResult
from ..contract.reply import Reply
from ..contract.sizes import MAX_CONTENT, result_share
from . import call_reply
from .reply_content import content_text
from .standing_actions import left_standing

log = Log()


def unanswered(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the calls of the last message, if they have no results yet."""
    last = messages[-1] if messages else None
    return last.completion.calls if last is not None and last.completion is not None else []


def results_from(
    actions: Mapping[Position, Action],
    calls: Sequence[ToolCall],
    *,
    step: int,
    epoch: int,
    limit: int = MAX_CONTENT,
    below: Mapping[Position, Sequence[Action]] | None = None,
    left_by: RunKey | None = None,
) -> list[ToolResult]:
    """Return the results of calls that another run left, by what the ledger has of them.

    A result carries what its call changed in the state only where the action is ``left_by``'s
    own. A call may have been answered with the row of another action; the changes belong to
    that one.

    Args:
        actions: Of the calls themselves.
        calls: In the order of the message.
        step: The model turn of the message.
        epoch: Its run's epoch then.
        limit: Characters of a result that travel.
        below: For each call of a sub-agent, all actions of its run.
        left_by: The run that left them.
    """
    share = result_share(len(calls), limit=limit)
    found = []
    for index, call in enumerate(calls):
        at = position(step, index, epoch=epoch)
        action = actions.get(at)
        if below is not None and at in below:
            standing = left_standing(below[at])
            reply = call_reply.sub_agent_failed("the run that called it was lost", standing)
        else:
            reply = _reply(action, call, limit=share)
        own = action is not None and (action.run_key, action.position) == (left_by, at)
        changes = reply.changes if own else None
        content = content_text(reply)
        found.append(ToolResult(at, call.id, call.name, reply.status, content, changes))
    return found


def paired(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with exactly one result per call, in order.

    What we commit is so already; this makes it certain for the provider, whatever became of the
    rows. A result without a call is left out. A call without a result is answered as unknown.
    """
    found: list[Message] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            continue  # taken along with its calls, below
        found.append(message)
        if message.completion is not None and message.completion.calls:
            after = messages[index + 1] if index + 1 < len(messages) else None
            given = after.results if after is not None and after.role == "tool" else []
            found.append(Message.tool(_in_order(message.completion.calls, given)))
    if len(found) != len(messages) or found != list(messages):
        log.error("thread.messages_unpaired", messages=len(messages), sent=len(found))
    return found


def _in_order(calls: Sequence[ToolCall], given: Sequence[ToolResult]) -> list[ToolResult]:
    by_index = {result.position.rpartition(".")[2]: result for result in reversed(given)}
    found = []
    for index, call in enumerate(calls):
        result = by_index.get(str(index))
        fits = result is not None and result.name == call.name
        found.append(result if result is not None and fits else _lost(call, position(0, index)))
    return found


def _lost(call: ToolCall, at: Position) -> ToolResult:
    reply = call_reply.record_lost()
    return ToolResult(at, call.id, call.name, reply.status, content_text(reply))


def _reply(action: Action | None, call: ToolCall, *, limit: int) -> Reply:
    if action is not None:
        return call_reply.of_action(action, limit=limit)
    if call.problem is not None:
        return call_reply.not_run("InvalidArguments", f"not run: {call.problem}")
    return call_reply.not_carried_out()
