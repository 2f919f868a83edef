"""The commit of a model turn, and the turn that stands where it was committed before.

One transaction writes the new messages, the completion, the merged state and the conversation's
next version. The first commit of a turn stands: a later one gets that one back.
"""

from __future__ import annotations

from dataclasses import replace

from ...identity import position
from ...ledger import Committed, Conversation, NewMessage, ThreadLedger, Turn
from ...logs import Log
from ..contract.conversation import Completion, Message, RunResult, ToolResult, Usage
from ..contract.encoding import from_text, to_text
from ..contract.final_result import ACCEPTED, FINAL_RESULT
from ..contract.turns import CallModel, RecordTurn, TurnResult
from .model_request import completion_text
from .stored_conversation import read_completion, tokens_so_far

log = Log()


def recorded_turn(found: Conversation, request: CallModel) -> TurnResult | None:
    """Return the turn, or the reply to its request, that is on record; None if there is none."""
    tokens = tokens_so_far(found)
    for one in found.messages:
        same_turn = one.run_key == request.run_key and one.step == request.step
        if one.role == "assistant" and same_turn:
            return TurnResult(_decided(read_completion(one)), one.version, one.epoch, tokens)
    if found.request is not None and found.request.reply is not None:
        replied = from_text(RunResult, found.request.reply)
        version = found.thread.version
        return TurnResult(Completion(), version, request.epoch, tokens, replied=replied)
    return None


async def commit_turn(threads: ThreadLedger, turn: RecordTurn) -> TurnResult:
    """Commit a turn; return the one that stands. Safe to repeat: the first commit stands.

    Raises:
        ModelRejected: The completion has no JSON form, or is too large.
        StaleThread: Another run has written the conversation since.
        LedgerUnavailable: No answer within the deadline.
    """
    completion = turn.completion
    committed = await threads.commit(
        Turn(
            turn.thread_id,
            turn.version,
            turn.run_key,
            turn.step,
            turn.epoch,
            _new_messages(turn),
            input_tokens=completion.usage.input_tokens,
            output_tokens=completion.usage.output_tokens,
            notified=turn.notified,
            replies_to=turn.request_id if turn.final else None,
            reply=to_text(_reply(turn)) if turn.final and turn.request_id is not None else None,
            state=turn.state,
        )
    )
    if committed.earlier is None:
        log.info(
            "model.completion_recorded",
            run_key=turn.run_key,
            step=turn.step,
            version=committed.version,
            calls=len(completion.calls),
            finish_reason=completion.finish_reason,
            input_tokens=completion.usage.input_tokens,
            output_tokens=completion.usage.output_tokens,
        )
    return _standing(committed, turn)


def _new_messages(turn: RecordTurn) -> list[NewMessage]:
    """Return what is new as it is stored: the input, the completion, a confirmed final result."""
    completion = turn.completion
    text = completion_text(completion)
    messages = [
        NewMessage(one.role, to_text(one), turn.request_id if at == turn.request_at else None)
        for at, one in enumerate(turn.messages)
    ]
    messages.append(NewMessage("assistant", f'{{"role":"assistant","completion":{text}}}'))
    if completion.output is not None:
        at = position(turn.step, 0, epoch=turn.epoch)
        call = completion.calls[0]
        accepted = ToolResult(at, call.id, FINAL_RESULT, "ok", ACCEPTED)
        messages.append(NewMessage("tool", to_text(Message.tool([accepted]))))
    return messages


def _reply(turn: RecordTurn) -> RunResult:
    """Return what the caller of the request reads, if this turn is the last one."""
    completion = turn.completion
    return RunResult(
        completion.output or completion.text,
        turn.step - turn.request_step + 1,
        completion.finish_reason,
        turn.spent + completion.usage,
    )


def _standing(committed: Committed, turn: RecordTurn) -> TurnResult:
    tokens = Usage(committed.input_tokens, committed.output_tokens)
    earlier = committed.earlier
    if earlier is None:
        return TurnResult(_decided(turn.completion), committed.version, turn.epoch, tokens)
    return TurnResult(_decided(read_completion(earlier)), earlier.version, earlier.epoch, tokens)


def _decided(completion: Completion) -> Completion:
    """Return what the run, and people, read of a completion."""
    return replace(completion, provider_state=None)
