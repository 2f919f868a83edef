"""Whether a call that asked midway may go on: its question's answer, or its end.

The question is written by the guard, as the attempt that asks ends, and the answer by
`answer`, before the update that brings it is answered. The run reads it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from temporalio import activity
from temporalio.common import RawValue

from ...errors import AnswerRefused, LedgerError
from ...identity import action_key
from ...ledger import QuestionLedger
from ..contract.activity_failure import as_failure
from ..contract.deadlines import wait_seconds
from ..contract.questions import ANSWER, CHECK_QUESTION, Answer, CheckQuestion, QuestionState
from ..contract.wire import pack, unpack
from ..replies import call_reply

log = structlog.get_logger("commitline")

_BUSY_SECONDS = 1.0
"""How soon to look again at an expired question whose call somebody is at work on."""


class QuestionActivities:
    """The activities of calls that ask midway."""

    def __init__(self, questions: QuestionLedger) -> None:
        self._questions = questions

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.look, self.answer)

    @activity.defn(name=CHECK_QUESTION)
    async def look(self, raw: RawValue) -> RawValue:
        """Say what became of a question. Safe to repeat; one that has expired ends its call."""
        request = unpack(CheckQuestion, raw)
        key = action_key(request.run_key, request.position)
        try:
            question, action = await self._questions.look(key, request.number)
        except LedgerError as err:
            raise as_failure(err) from err
        match None if question is None else question.state:
            case "waiting":
                assert question is not None
                return pack(QuestionState(wait_seconds=wait_seconds(question.seconds_left)))
            case "expired":
                assert question is not None
                if action is None:  # it only reads, and has no row
                    return pack(QuestionState(call_reply.done(None, question.not_executed)))
                if action.state in ("intent", "dispatched"):
                    return pack(QuestionState(wait_seconds=_BUSY_SECONDS))
                log.info("question.expired", action_key=key, number=request.number)
                return pack(
                    QuestionState(call_reply.of_action(action, limit=request.content_limit))
                )
        return pack(QuestionState())

    @activity.defn(name=ANSWER)
    async def answer(self, raw: RawValue) -> RawValue:
        """Take a person's answer down. Safe to repeat: the first one counts."""
        said = unpack(Answer, raw)
        key = action_key(said.run_key, said.position)
        try:
            # Taken for gone, and reset: no claim has come yet that says so.
            await self._questions.go_on(said.run_key, attempt_at=activity.info().started_time)
            answered = await self._questions.answer(key, said.number, said.answer, by=said.by)
        except AnswerRefused as err:
            # The person is told; the SDK need not log a traceback of it.
            raise as_failure(err, benign=True) from err
        except LedgerError as err:
            raise as_failure(err) from err
        log.info("question.answered", action_key=key, number=said.number, by=answered.answered_by)
        return pack(answered.number)
