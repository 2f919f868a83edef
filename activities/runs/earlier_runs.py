"""Runs that a release before conversations opened: their messages travel, all of them, each turn.

A run goes on as it was opened, whatever worker serves it, so its turns do not change their way
half through. Remove this, `CallModel.spec` and `agent_completions` when no run that was opened
before migration 0004 can be under way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog
from temporalio import activity
from temporalio.common import RawValue

from ...crash import crash_point
from ...errors import LedgerError, LedgerUnavailable
from ...identity import RunKey
from ...ledger import ActionLedger
from ..app.app import App
from ..contract.action_header import first_of_all
from ..contract.activity_failure import as_failure
from ..contract.conversation import Completion, Message
from ..contract.turns import CallModel
from ..contract.wire import from_plain, pack, unpack
from ..replies import call_reply as replies
from ..runner.bounded_call import see_through
from .model_request import Asked, completion_text
from .served import served_agent

log = structlog.get_logger("commitline")

RECORD_COMPLETION = "commitline.record_completion"


@dataclass(frozen=True)
class RecordCompletion:
    """A completion that the ledger did not take when the model gave it."""

    run_key: RunKey
    step: int
    completion: Completion


class EarlierRuns:
    """The turns of such runs."""

    def __init__(self, app: App, actions: ActionLedger) -> None:
        self._app = app
        self._actions = actions

    @activity.defn(name=RECORD_COMPLETION)
    async def record_completion(self, raw: RawValue) -> RawValue:
        """Record a completion that its own attempt could not; return the one that stands.

        Safe to repeat: the first completion of a turn stands.
        """
        request = unpack(RecordCompletion, raw)
        text = completion_text(request.completion)
        try:
            stands = await self._actions.record_completion(request.run_key, request.step, text)
        except LedgerError as err:
            raise as_failure(err) from err
        return pack(from_plain(Completion, stands))

    async def completion(self, request: CallModel) -> Completion:
        """Return this turn's completion: the recorded one, or a new one, recorded first."""
        at = (request.run_key, request.step)
        recorded = None
        if not first_of_all(request.run_key):
            recorded = await self._actions.get_completion(*at)
        if recorded is not None:
            log.info("model.completion_replayed", run_key=request.run_key, step=request.step)
            return from_plain(Completion, recorded)
        notices = await self._notices(request)
        messages = [*request.messages, *(Message.user(notice) for notice in notices)]
        completion = replace(await self._asked(request).complete(messages), notices=notices)
        crash_point("after_completion")
        text = completion_text(completion)
        try:
            stands = await see_through(self._actions.record_completion(*at, text))
        except LedgerUnavailable as err:
            # Paid for, and not to be asked for again: the run records it before it acts on it.
            log.error("model.completion_handed_over", run_key=at[0], step=at[1], reason=err.message)
            return replace(completion, unrecorded=True)
        crash_point("completion_recorded")
        log.info(
            "model.completion_recorded",
            run_key=request.run_key,
            step=request.step,
            calls=len(completion.calls),
            input_tokens=completion.usage.input_tokens,
            output_tokens=completion.usage.output_tokens,
        )
        return from_plain(Completion, stands)

    async def _notices(self, request: CallModel) -> list[str]:
        """Return what this turn tells the model of: what was unknown to it, and is settled."""
        told = (result.status for message in request.messages for result in message.results)
        if "unknown" not in told:
            return []
        settled = await self._actions.take_notices(request.run_key, request.step)
        return [replies.notice(action) for action in settled]

    def _asked(self, request: CallModel) -> Asked:
        assert request.spec is not None, "it travels with each turn of these runs"
        agent = served_agent(self._app, request.spec.name)
        model = self._app.model(agent=agent.name, name=request.spec.model)
        return Asked(model, request.spec, None)
