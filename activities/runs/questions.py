"""The activities of a question that a tool asked midway: look at its state, record its answer.

The guard writes the question when the attempt that asked it ends. `answer` writes the answer
before the workflow's update returns. The workflow reads both from the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from temporalio import activity
from temporalio.common import RawValue

from ...identity import action_key
from ...ledger import QuestionLedger
from ...logs import Log
from ...metrics import QUESTIONS, count
from ..contract.deadlines import wait_seconds
from ..contract.encoding import pack, unpack
from ..contract.questions import ANSWER, CHECK_QUESTION, Answer, CheckQuestion, QuestionState
from ..replies import call_reply
from ..runner.clock import began_at

log = Log()

_BUSY_SECONDS: Final = 1.0
"""How soon to look again at an expired question while an attempt works on its call."""


class QuestionActivities:
    """The activities of calls that wait for a person's answer."""

    def __init__(self, questions: QuestionLedger) -> None:
        self._questions = questions

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return (self.check_question, self.answer)

    @activity.defn(name=CHECK_QUESTION)
    async def check_question(self, raw: RawValue) -> RawValue:
        """Return the `QuestionState` of a question. One that has expired ends its call.

        Safe to repeat.
        """
        request = unpack(CheckQuestion, raw)
        key = action_key(request.run_key, request.position)
        question, action = await self._questions.look(key, request.number)
        match None if question is None else question.state:
            case "waiting":
                assert question is not None
                return pack(QuestionState(wait_seconds=wait_seconds(question.seconds_left)))
            case "expired":
                assert question is not None
                if action is None:  # a READ has no row
                    return pack(QuestionState(call_reply.done(None, question.not_executed)))
                if action.state in ("intent", "dispatched"):
                    return pack(QuestionState(wait_seconds=_BUSY_SECONDS))
                count(QUESTIONS, "expired")
                log.info("question.expired", action_key=key, number=request.number)
                return pack(
                    QuestionState(call_reply.of_action(action, limit=request.content_limit))
                )
        return pack(QuestionState())

    @activity.defn(name=ANSWER)
    async def answer(self, raw: RawValue) -> RawValue:
        """Record a person's answer. Safe to repeat: the first answer counts."""
        said = unpack(Answer, raw)
        key = action_key(said.run_key, said.position)
        # The relay may have closed the run as gone before a reset; no claim has come since.
        await self._questions.reopen_run(said.run_key, attempt_at=began_at())
        answered = await self._questions.answer(key, said.number, said.answer, by=said.by)
        count(QUESTIONS, "answered")
        log.info("question.answered", action_key=key, number=said.number, by=answered.answered_by)
        return pack(answered.number)
