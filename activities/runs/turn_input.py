"""What a model turn adds to the conversation before the model reads it.

In this order: results for calls, which another run may have left without, what the run brings, the
caller's request, what a fork took back, what became known since, conflicts in the state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ...errors import StaleThread, ThreadNotFound
from ...identity import Position, RunKey, action_key, is_from, position, position_below, sub_run_key
from ...ledger import Action, ActionLedger, Conversation, StoredMessage, Thread, ThreadLedger
from ...ledger.run_rules import check_starts_something
from ...logs import Log
from ..app.app import App
from ..contract.conversation import Completion, Message, ToolResult
from ..contract.encoding import from_text
from ..contract.final_result import OUTPUT_REQUEST
from ..contract.turns import CallModel, RecordTurn
from ..replies import notices
from ..replies.pairing import results_from, unanswered
from ..replies.standing_actions import stands
from .served import served_agent
from .stored_conversation import read_message, read_spec, tokens_so_far
from .turn_results import results_of
from .turn_state import TurnState, changes_before, merged, without_changes

log = Log()

MAX_ACTIONS: Final = 1_000_000
"""Actions that are read of one run: all of them."""


class TurnInput:
    """Makes the input of model turns."""

    def __init__(self, app: App, actions: ActionLedger, threads: ThreadLedger) -> None:
        self._app = app
        self._actions = actions
        self._threads = threads

    async def of(self, found: Conversation, request: CallModel) -> RecordTurn:
        """Return a new turn with everything but the completion.

        Safe to repeat: only `close_turn` writes, and that is safe to repeat itself.

        Raises:
            StaleThread: The conversation is not the one that the run knows.
            RunNotRunning: The run was stopped, or is being undone. Its history may have been reset
                to before that, and what the model says would be acted on.
            ThreadNotFound: The ledger does not have the request.
            ApplicationError: It has lost a result; see `results_of`.
        """
        epoch, version = _place(found, request)
        check_starts_something(found.run)
        actions, messages = await self._missing_results(found, request)
        spec = read_spec(found, request.run_key)
        own = results_of(found, request, limit=spec.result_limit)
        messages += [*([Message.tool(own)] if own else []), *request.messages]
        request_at = None
        from_caller = _request_message(found, request)
        if from_caller is not None:
            if not _is_stored(found, request.request_id):
                request_at = len(messages)
            messages.append(from_caller)
        if found.thread.forked_run is not None:
            messages.append(Message.user(notices.forked(await self._taken_back(found.thread))))
        # The new result of an unanswered call says how it ended, but not that it was undone.
        repaired = {action.key for action in actions}
        settled = [one for one in found.settled if one.key not in repaired or one.undone_by]
        messages += [Message.user(notices.settled(action)) for action in settled]
        state = await self._state_after(found, request, messages, settled, own)
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
            notified=[action.key for action in found.settled],
            request_id=request.request_id,
            request_at=request_at,
            request_step=request.request_step,
            spent=tokens_so_far(found),
            state=state.state,
        )

    async def _state_after(
        self,
        found: Conversation,
        request: CallModel,
        messages: Sequence[Message],
        settled: Sequence[Action],
        own: Sequence[ToolResult],
    ) -> TurnState:
        """Return the state with what the calls before this turn have changed."""
        # Only the run's own: of another run's calls, the settled ones here were only undone.
        with_results = {
            action_key(request.run_key, Position(result.position))
            for result in own
            if result.changes is not None
        }
        calls = changes_before(found, messages, settled, with_results)
        if not calls:
            return TurnState()
        agent = served_agent(self._app, read_spec(found, request.run_key).name)
        return await merged(agent.state, found, calls)

    async def _missing_results(
        self, found: Conversation, request: CallModel
    ) -> tuple[Collection[Action], list[Message]]:
        """Return the actions of calls that another run left without results, and those results."""
        last = found.messages[-1] if found.messages else None
        if last is None or request.results:
            return (), []
        calls = unanswered([read_message(last)])
        if not calls:
            return (), []
        log.warning("thread.repaired", thread_id=request.thread_id, left_by=last.run_key)
        actions = await self._threads.close_turn(
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
            limit=read_spec(found, request.run_key).result_limit,
            below=await self._of_sub_agents(last, len(calls)),
            left_by=last.run_key,
        )
        return actions.values(), [Message.tool(results)]

    async def _of_sub_agents(
        self, last: StoredMessage, calls: int
    ) -> dict[Position, Sequence[Action]]:
        """Return the actions of the sub-agents that a message's calls began, by call."""
        begun = {one.run_key for one in await self._actions.sub_runs.below(last.run_key)}
        found = {}
        for at in (position(last.step, index, epoch=last.epoch) for index in range(calls)):
            key = sub_run_key(last.run_key, at)
            if key in begun:
                found[at] = await self._actions.sub_runs.actions(key, limit=MAX_ACTIONS)
        return found

    async def _taken_back(self, thread: Thread) -> list[Action]:
        """Return the actions that stand of the turns that a fork took back."""
        run, step = thread.forked_run, thread.forked_step or 0
        assert run is not None, "a fork took turns of it back"
        actions = await self._actions.sub_runs.actions(run, limit=MAX_ACTIONS)
        return [one for one in actions if _is_after(one, run, step) and stands(one)]


def _place(found: Conversation, request: CallModel) -> tuple[int, int]:
    """Return the epoch of a new turn, and the version that it starts from.

    Raises:
        StaleThread: Another run has written the conversation; or the run was forked, and this
            is an execution of it from before. The model need not be called.
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


def _request_message(found: Conversation, request: CallModel) -> Message | None:
    """Return the message of the caller's request; None where it is the latest already.

    Raises:
        ThreadNotFound: The ledger does not have it.
    """
    if request.request_id is None:
        return None
    if found.request is None:
        raise ThreadNotFound(f"the request {request.request_id!r} is not in the ledger")
    message = from_text(Message, found.request.message)
    if not _is_stored(found, request.request_id):
        return message
    latest = [one.request_id for one in found.messages if one.request_id is not None][-1]
    if latest == request.request_id or request.step != request.request_step:
        return None
    # Its run was lost, and others were answered since: name the request that is answered now.
    return Message.user(
        f"[notice] This was asked before and not answered; answer it now: {message.text}"
    )


def _is_stored(found: Conversation, request_id: str | None) -> bool:
    return any(one.request_id == request_id for one in found.messages)


def _is_after(action: Action, run: RunKey, step: int) -> bool:
    """Whether an action was called at the fork's turn, or at a later one."""
    return is_from(position_below(run, action.run_key) or action.position, step)
