"""What the model reads of the run's calls of the message before.

What an action returned is on its row, where the first record stands for ever; so a turn names the
calls, and the results are read with the conversation. Everything else travels with the turn: what
the model is told of a call that is unknown must not change because its row is settled meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

from temporalio.exceptions import ApplicationError

from ...canonical import parse
from ...identity import ActionKey, action_key
from ...ledger import Conversation, Returned
from ...logs import Log
from ..contract.conversation import ToolResult
from ..contract.sizes import result_share
from ..contract.turns import RESULTS_LOST, CallModel, CallResult
from ..replies import call_reply
from ..replies.pairing import unanswered
from ..replies.reply_content import content_text
from .stored_conversation import read_message

log = Log()


def kept_calls(request: CallModel) -> list[ActionKey]:
    """Return the calls whose results the ledger has."""
    return [action_key(request.run_key, one.position) for one in request.results if one.kept]


def results_of(found: Conversation, request: CallModel, *, limit: int) -> list[ToolResult]:
    """Return what the model reads of the run's calls, in order.

    Args:
        found: The conversation, whose last message made the calls.
        request: The turn.
        limit: Characters that the model reads of a result, by the run's spec.

    Raises:
        ApplicationError: The ledger has lost a result. The workflow sends what it has of them.
    """
    if not request.results:
        return []
    calls = unanswered([read_message(found.messages[-1])])
    share = result_share(len(calls), limit=limit)
    results = []
    for call, given in zip(calls, request.results, strict=True):
        key = action_key(request.run_key, given.position)
        one = _whole(key, given, found.returned.get(key), share) if given.kept else given
        results.append(
            ToolResult(one.position, call.id, call.name, one.status, one.content, one.changes)
        )
    return results


def _whole(key: ActionKey, result: CallResult, returned: Returned | None, limit: int) -> CallResult:
    """Return a result with what the ledger has, or else with what history has of it."""
    if returned is not None:
        again = returned.duplicate_of
        reply = call_reply.done(key, returned.outcome, duplicate_of=again, limit=limit)
        return replace(result, content=content_text(reply, limit=limit), changes=reply.changes)
    if not result.content:
        log.error("ledger.row_lost", action_key=key)
        text = f"the ledger has lost the result of {key}"
        raise ApplicationError(text, type=RESULTS_LOST, non_retryable=True)
    if not result.partial:
        return result
    return replace(result, content=content_text(call_reply.result_lost(parse(result.content))))
