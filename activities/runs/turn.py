"""A model turn: what the model answered next, recorded before it is acted on.

    read the conversation -> ask the model -> commit what is new, and the answer

The input names the conversation's version and carries only what is new since; the messages are
read from Postgres. The commit writes them with the completion, the state as the calls before
have changed it, and the next version, in one transaction. A retry, a reset and a retry of the
workflow find the completion there and read it back: the model is asked, and paid, once a turn.

A fork opens a new epoch from a turn on: there the model is asked anew, and told what it did on
the way that was taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ...crash import crash_point
from ...errors import (
    ConfigurationError,
    Fenced,
    LedgerError,
    LedgerUnavailable,
    ModelRejected,
    RunNotRunning,
    StaleThread,
    ThreadNotFound,
)
from ...identity import Position, RunKey, action_key, is_from, position, position_below, sub_run_key
from ...ledger import (
    Action,
    ActionLedger,
    Committed,
    Conversation,
    NewMessage,
    StoredMessage,
    Thread,
    ThreadLedger,
    Turn,
)
from ..app.app import App
from ..contract.activity_failure import as_failure, not_started
from ..contract.conversation import Completion, Message, RunResult, ToolResult, Usage
from ..contract.final_result import ACCEPTED, FINAL_RESULT, OUTPUT_REQUEST
from ..contract.spec import AgentSpec
from ..contract.turns import CALL_MODEL, RECORD_TURN, RUN_LOST, CallModel, RecordTurn, TurnResult
from ..contract.wire import from_text, pack, to_text, unpack
from ..guard.heartbeat import beating
from ..guard.ledger_write import persist
from ..replies import notices
from ..replies.pairing import paired, results_from, unanswered
from ..replies.standing import stands
from ..runner.bounded_call import despite_cancellation
from .model_request import Asked, completion_text
from .served import served_agent
from .state_merge import TurnState, changes_before, merged, without_changes

log = structlog.get_logger("commitline")

_SMALL: Final = 4096
"""Characters of a message that is kept read, for the next turns: 8,192 of them at most."""
MAX_ACTIONS: Final = 1_000_000
"""Of a run that is forked: all of them."""
MAX_TRAVELLING: Final = 1_900_000
"""Characters of an activity's result. Temporal refuses a payload over 2 MiB, again and again."""


class TurnActivities:
    """The activities by which a run asks its model."""

    def __init__(self, app: App, actions: ActionLedger, threads: ThreadLedger) -> None:
        self._app = app
        self._actions = actions
        self._threads = threads

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.call_model, self.record_turn)

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, raw: RawValue) -> RawValue:
        """Return this turn's `TurnResult`: what is recorded, or a new completion, recorded first.

        Safe to repeat: the first completion of a turn stands.
        """
        request = unpack(CallModel, raw)
        async with beating():
            try:
                return pack(await self._answer(request))
            except LedgerUnavailable as err:
                # The model was not asked: the run waits, and asks with a fresh clock.
                raise not_started(err.message) from err
            except RunNotRunning as err:
                # A failover lost the run's row: the run has it opened again.
                raise ApplicationError(err.message, type=RUN_LOST, non_retryable=True) from err
            except (ConfigurationError, LedgerError, ModelRejected) as err:
                raise as_failure(err) from err

    @activity.defn(name=RECORD_TURN)
    async def record_turn(self, raw: RawValue) -> RawValue:
        """Record a turn that its own attempt could not; return the one that stands.

        Safe to repeat: the first completion of a turn stands.
        """
        turn = unpack(RecordTurn, raw)
        try:
            return pack(await self._commit(turn))
        except (LedgerError, ModelRejected) as err:
            raise as_failure(err) from err

    async def _answer(self, request: CallModel) -> TurnResult:
        found = await self._threads.read(
            request.run_key, request.thread_id, request_id=request.request_id
        )
        standing = _standing(found, request)
        if standing is not None:
            log.info("model.completion_replayed", run_key=request.run_key, step=request.step)
            return standing
        workflow_id = activity.info().workflow_id or ""
        if not found.run.is_of(workflow_id):
            raise Fenced(f"{request.run_key} is carried out by {found.run.owner or 'no workflow'}")
        turn = await self._new_turn(found, request)
        spec = _spec_of(found, request)
        agent = served_agent(self._app, spec.name)
        model = self._app.model(agent=spec.name, name=spec.model)
        asked = Asked(model, spec, agent.output if spec.output_schema is not None else None)
        stored = [_message(one.message) for one in found.messages]
        completion = await asked.complete(paired([*stored, *turn.messages]))
        crash_point("after_completion")
        turn = replace(turn, completion=completion, final=spec.ends_with(completion))
        try:
            answer = await despite_cancellation(self._commit(turn))
        except LedgerUnavailable as err:
            # Paid for, and not to be asked for again: the run records it before it acts on it.
            log.error(
                "model.completion_handed_over",
                run_key=request.run_key,
                step=request.step,
                reason=err.message,
            )
            answer = TurnResult(completion, turn.version, turn.epoch, unrecorded=turn)
            if len(to_text(answer)) > MAX_TRAVELLING:
                # Too large to travel: this attempt goes on trying.
                answer = await persist(lambda: self._commit(turn))
            return answer
        crash_point("completion_recorded")
        return answer

    async def _new_turn(self, found: Conversation, request: CallModel) -> RecordTurn:
        """Return the turn that is to be asked for: everything but the completion."""
        epoch, version = _place(found, request)
        actions, messages = await self._left_unanswered(found, request)
        messages += request.messages
        spec = _spec_of(found, request)
        repaired = {action.key for action in actions}
        request_at = None
        asked = _asked(found, request)
        if asked is not None:
            if not _is_there(found, request.request_id):
                request_at = len(messages)
            messages.append(asked)
        if found.thread.forked_run is not None:
            messages.append(Message.user(notices.forked(await self._taken_back(found.thread))))
        # The result of a repaired call says what became of it, but not that it was undone.
        settled = [one for one in found.settled if one.key not in repaired or one.undone_by]
        messages += [Message.user(notices.settled(action)) for action in settled]
        state = await self._state_after(found, request, messages, settled)
        messages = [*without_changes(messages), *state.notices]
        if not messages and spec.output_schema is not None:
            messages.append(Message.user(OUTPUT_REQUEST))  # its run ended before it said so
        return RecordTurn(
            request.run_key,
            request.step,
            request.thread_id,
            version,
            epoch,
            messages,
            Completion(),
            told=[action.key for action in found.settled],
            request_id=request.request_id,
            request_at=request_at,
            request_step=request.request_step,
            spent=_spent(found),
            state=state.state,
        )

    async def _state_after(
        self,
        found: Conversation,
        request: CallModel,
        messages: Sequence[Message],
        settled: Sequence[Action],
    ) -> TurnState:
        """Return the state with what the calls before this turn have changed."""
        # The run's own; of what another run left, none is among the settled but what was undone.
        told = {
            action_key(request.run_key, Position(result.position))
            for message in request.messages
            for result in message.results
            if result.changes is not None
        }
        calls = changes_before(found, messages, settled, told)
        if not calls:
            return TurnState()
        agent = served_agent(self._app, _spec_of(found, request).name)
        return await merged(agent.state, found, calls)

    async def _left_unanswered(
        self, found: Conversation, request: CallModel
    ) -> tuple[Collection[Action], list[Message]]:
        """Return results for the calls that another run left, and the actions that they tell."""
        last = found.messages[-1] if found.messages else None
        if last is None or any(new.role == "tool" for new in request.messages):
            return (), []
        calls = unanswered([_message(last.message)])
        if not calls:
            return (), []
        log.warning("thread.repaired", thread_id=request.thread_id, left_by=last.run_key)
        actions = await self._threads.give_up_turn(
            last.run_key,
            [position(last.step, index, epoch=last.epoch) for index in range(len(calls))],
            by=request.run_key,
            thread_id=request.thread_id,
            version=found.thread.version,
        )
        results = results_from(
            actions,
            calls,
            step=last.step,
            epoch=last.epoch,
            limit=_spec_of(found, request).result_limit,
            below=await self._below(last, len(calls)),
            left_by=last.run_key,
        )
        return actions.values(), [Message.tool(results)]

    async def _below(self, last: StoredMessage, calls: int) -> dict[Position, Sequence[Action]]:
        """Return the actions of the sub-agents that a message's calls began, by call."""
        begun = {one.run_key for one in await self._actions.sub_runs.below(last.run_key)}
        found = {}
        for at in (position(last.step, index, epoch=last.epoch) for index in range(calls)):
            key = sub_run_key(last.run_key, at)
            if key in begun:
                found[at] = await self._actions.sub_runs.actions(key, limit=MAX_ACTIONS)
        return found

    async def _taken_back(self, thread: Thread) -> list[Action]:
        """Return what was done, or may have been, on the way that a fork took back."""
        assert thread.forked_run is not None, "asked before"
        run = thread.forked_run
        actions = await self._actions.sub_runs.actions(run, limit=MAX_ACTIONS)
        return [one for one in actions if _stands(one, run, thread.forked_step or 0)]

    async def _commit(self, turn: RecordTurn) -> TurnResult:
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
        answers = turn.request_id if turn.final else None
        reply = RunResult(
            completion.output or completion.text,
            turn.step - turn.request_step + 1,
            completion.finish_reason,
            turn.spent + completion.usage,
        )
        committed = await self._threads.commit(
            Turn(
                turn.thread_id,
                turn.version,
                turn.run_key,
                turn.step,
                turn.epoch,
                messages,
                input_tokens=completion.usage.input_tokens,
                output_tokens=completion.usage.output_tokens,
                told=turn.told,
                replies_to=answers,
                reply=None if answers is None else to_text(reply),
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
                input_tokens=completion.usage.input_tokens,
                output_tokens=completion.usage.output_tokens,
            )
        return _answer_of(committed, completion, turn.epoch)


def _standing(found: Conversation, request: CallModel) -> TurnResult | None:
    """Return what stands for the turn: its completion, or the reply that the request has."""
    spent = _spent(found)
    for one in found.messages:
        mine = one.run_key == request.run_key and one.step == request.step
        if one.role == "assistant" and mine:
            return TurnResult(_completion_in(one), one.version, one.epoch, spent)
    if found.request is not None and found.request.reply is not None:
        replied = from_text(RunResult, found.request.reply)
        return TurnResult(Completion(), found.thread.version, request.epoch, spent, replied=replied)
    return None


def _answer_of(committed: Committed, completion: Completion, epoch: int) -> TurnResult:
    spent = Usage(committed.input_tokens, committed.output_tokens)
    if committed.earlier is None:
        return TurnResult(completion, committed.version, epoch, spent)
    earlier = committed.earlier
    return TurnResult(_completion_in(earlier), earlier.version, earlier.epoch, spent)


def _spent(found: Conversation) -> Usage:
    return Usage(found.run.input_tokens, found.run.output_tokens)


def _completion_in(stored: StoredMessage) -> Completion:
    completion = from_text(Message, stored.message).completion
    assert completion is not None, "an assistant's message holds a completion"
    return completion


def _place(found: Conversation, request: CallModel) -> tuple[int, int]:
    """Return the epoch in which a new turn is asked for, and the version that it starts from.

    Raises:
        StaleThread: Another run has written it, or the run was forked, and this is an
            execution of it from before. The model need not be asked.
    """
    run = found.run
    if run.epoch <= request.epoch:
        if found.thread.version != request.version:
            raise StaleThread(
                f"the thread {request.thread_id!r} is at version {found.thread.version}, by "
                f"{found.thread.written_by}; turn {request.step} of {run.run_key} knows "
                f"{request.version}"
            )
        return request.epoch, request.version
    if request.step != run.fork_step or found.thread.written_by != run.run_key:
        raise StaleThread(f"{run.run_key} was forked at its turn {run.fork_step}")
    return run.epoch, found.thread.version


def _spec_of(found: Conversation, request: CallModel) -> AgentSpec:
    if found.run.spec is None:
        raise RunNotRunning(f"the ledger has lost what {request.run_key} keeps", known=False)
    return _spec(found.run.spec)


def _message(text: str) -> Message:
    """Read a stored message; a conversation is read again each turn, and most of it is small."""
    return _small_message(text) if len(text) <= _SMALL else from_text(Message, text)


@lru_cache(maxsize=8192)
def _small_message(text: str) -> Message:
    return from_text(Message, text)


@lru_cache(maxsize=64)
def _spec(text: str) -> AgentSpec:
    """Read what a run keeps of its agent; it is the same for all of its turns."""
    return from_text(AgentSpec, text)


def _asked(found: Conversation, request: CallModel) -> Message | None:
    """Return what the model is to be told of the request, if it does not stand there last.

    Raises:
        ThreadNotFound: The ledger does not have it.
    """
    if request.request_id is None:
        return None
    if found.request is None:
        raise ThreadNotFound(f"the request {request.request_id!r} is not in the ledger")
    if not _is_there(found, request.request_id):
        return from_text(Message, found.request.message)
    latest = [one.request_id for one in found.messages if one.request_id is not None][-1]
    if latest == request.request_id or request.step != request.request_step:
        return None
    # Its run was lost, and others were answered since: say which one it is about.
    text = from_text(Message, found.request.message).text
    return Message.user(f"[notice] This was asked before and not answered; answer it now: {text}")


def _is_there(found: Conversation, request_id: str | None) -> bool:
    return any(one.request_id == request_id for one in found.messages)


def _stands(action: Action, run: RunKey, step: int) -> bool:
    at = position_below(run, action.run_key) or action.position
    return is_from(at, step) and stands(action)
