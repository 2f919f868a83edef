"""One model turn: read the conversation, request the model, commit what is new.

    read the conversation -> make the turn's input -> request the model -> commit both

The activity's input names the conversation's version and carries only what is new since; the
messages are read from Postgres. The commit writes them with the completion, the state as the
calls before have changed it, and the next version, in one transaction. A retry, a reset and a
retry of the workflow find the completion there and read it back, so each turn pays for one
model request.

A fork opens a new epoch from a turn on. There the model is requested anew, and it reads what it
did in the turns that were taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from ...crash import crash_point
from ...errors import Fenced, LedgerUnavailable, RunNotRunning, StatementRefused, ThreadNotFound
from ...ledger import ActionLedger, Conversation, ThreadLedger
from ...logs import Log, logged_with
from ..app.app import App
from ..contract.conversation import Completion
from ..contract.encoding import pack, to_text, unpack
from ..contract.turns import (
    CALL_MODEL,
    RECORD_TURN,
    RUN_LOST,
    CallModel,
    RecordTurn,
    TurnResult,
)
from ..guard.heartbeat import beating
from ..guard.ledger_write import hold
from ..guard.start_later import start_later
from ..replies.pairing import paired
from ..runner.bounded_call import despite_cancellation
from ..runner.clock import now
from .model_request import RunModel
from .served import served_agent
from .stored_conversation import read_message, read_spec
from .turn_commit import commit_turn, recorded_turn
from .turn_input import TurnInput
from .turn_results import kept_calls

log = Log()

MAX_TRAVELLING: Final = 1_900_000
"""Characters of an activity's result. Temporal refuses a payload over 2 MiB, again and again."""


class TurnActivities:
    """The activities of a run's model turns."""

    def __init__(self, app: App, actions: ActionLedger, threads: ThreadLedger) -> None:
        self._app = app
        self._threads = threads
        self._input = TurnInput(app, actions, threads)

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.call_model, self.record_turn)

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, raw: RawValue) -> RawValue:
        """Return this turn's `TurnResult`: what is recorded, or a new completion, recorded first.

        Safe to repeat: the first completion of a turn stands.
        """
        request, began = unpack(CallModel, raw), now()
        said = {"run_key": request.run_key, "step": request.step, "request_id": request.request_id}
        with logged_with(**said):
            return await self._call_model(request, began)

    async def _call_model(self, request: CallModel, began: float) -> RawValue:
        async with beating():
            try:
                return pack(await self._turn(request))
            except LedgerUnavailable as err:
                # The model was not requested: a later attempt requests it.
                raise start_later(err.message, began=began) from err
            except RunNotRunning as err:
                if err.known:
                    raise
                # A failover lost the run's row, or more: the workflow opens the run again.
                raise ApplicationError(err.message, type=RUN_LOST, non_retryable=True) from err

    @activity.defn(name=RECORD_TURN)
    async def record_turn(self, raw: RawValue) -> RawValue:
        """Record a turn that its own attempt could not; return the one that stands.

        Safe to repeat: the first completion of a turn stands.
        """
        return pack(await commit_turn(self._threads, unpack(RecordTurn, raw)))

    async def _turn(self, request: CallModel) -> TurnResult:
        try:
            found = await self._threads.read(
                request.run_key,
                request.thread_id,
                request_id=request.request_id,
                calls=kept_calls(request),
            )
        except ThreadNotFound as err:
            # A call has registered the run again, which the ledger had lost with its conversation.
            raise RunNotRunning(err.message, known=False) from err
        recorded = recorded_turn(found, request)
        if recorded is not None:
            log.info("model.completion_replayed", run_key=request.run_key, step=request.step)
            return recorded
        if not found.run.is_owned_by(activity.info().workflow_id or ""):
            raise Fenced(f"{request.run_key} is carried out by {found.run.owner or 'no workflow'}")
        turn = await self._input.of(found, request)
        turn = await self._completed(turn, found)
        crash_point("after_completion")
        result = await self._committed(turn)
        if result.unrecorded is None:
            crash_point("completion_recorded")
        return result

    async def _completed(self, turn: RecordTurn, found: Conversation) -> RecordTurn:
        """Request the model; return the turn with its completion."""
        spec = read_spec(found, turn.run_key)
        agent = served_agent(self._app, spec.name)
        model = RunModel(
            self._app.model(agent=spec.name, name=spec.model),
            spec,
            agent.output if spec.output_schema is not None else None,
        )
        stored = [read_message(one) for one in found.messages]
        completion = await model.complete(paired([*stored, *turn.messages]))
        return replace(turn, completion=completion, final=spec.ends_with(completion))

    async def _committed(self, turn: RecordTurn) -> TurnResult:
        """Commit the turn; where the ledger does not take it, have the workflow record it."""
        try:
            return await despite_cancellation(commit_turn(self._threads, turn))
        except (LedgerUnavailable, StatementRefused) as err:
            # The completion is paid for. The workflow has it recorded before it acts on it.
            log.error(
                "model.completion_handed_over",
                run_key=turn.run_key,
                step=turn.step,
                reason=err.message,
            )
        result = TurnResult(Completion(), turn.version, turn.epoch, unrecorded=turn)
        if len(to_text(result)) > MAX_TRAVELLING:
            # Too large to travel: this attempt tries until the ledger is back.
            result = await hold(lambda: commit_turn(self._threads, turn))
        return result
