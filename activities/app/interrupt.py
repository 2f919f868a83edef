"""A question to a person midway: what `ToolContext.interrupt` does inside a tool.

If the question has an answer, the answer is returned. If not, the attempt has to end:
`Interrupted` is raised through the tool, which `except Exception` does not catch. The guard then
records the question and hands the row of the call back. When a person has answered, the call is
made again, from the top.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...canonical import dumps, parse, scrub
from ...errors import CannotInterrupt
from ...ledger.question_rules import Question

_MESSAGE: Final = 1_000
"""Characters of a message; what is longer goes into the payload."""


class Interrupted(BaseException):
    """Ends an attempt that has an open question. Only the guard may catch it.

    It is no `Exception`, for the same reason as `asyncio.CancelledError`: a tool that catches
    `Exception` must not catch it.
    """


@dataclass(frozen=True)
class OpenQuestion:
    """A question that the running attempt has no answer to."""

    index: int
    """Which question of the call it is; the first is 0."""
    message: str
    """The question in words; may be empty."""
    payload: str
    """JSON text."""


class AttemptQuestions:
    """The questions of one attempt at one call.

    Args:
        earlier: The questions of earlier attempts, in order, with their answers.
    """

    def __init__(self, earlier: Sequence[Question] = ()) -> None:
        self._earlier = earlier
        self._count = 0
        self.open_question: OpenQuestion | None = None
        """The question that ends this attempt. No later one gets an answer in this attempt."""
        self.worked_beside = False
        """Whether another task of the tool was at work as the question ended it."""

    def answer_to(self, payload: Any, message: str) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of an answer. Questions are numbered in the order of these calls.

        Raises:
            UnrepresentableValue: The payload has no JSON form.
        """
        open_question = OpenQuestion(self._count, scrub(message, limit=_MESSAGE), dumps(payload))
        self._count += 1
        return self._answer(open_question)

    async def _answer(self, open_question: OpenQuestion) -> Any:
        if self.open_question is None:
            if open_question.index < len(self._earlier):
                found = self._earlier[open_question.index]
                # An answer counts only for the question that its person saw.
                if found.answer is not None and found.is_same(
                    open_question.message, open_question.payload
                ):
                    return parse(found.answer)
            self.open_question = open_question
        raise Interrupted


def ask_question(
    questions: AttemptQuestions | None, payload: Any, message: str
) -> Coroutine[Any, Any, Any]:
    """Return the coroutine of an answer; see `ToolContext.interrupt`."""
    if questions is None:
        raise CannotInterrupt(
            "nobody can be asked here: only a tool of an agent's run can ask, not one that is "
            "called by itself, that is local or runs in a process of its own, or an activity of "
            "another workflow"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise CannotInterrupt(
            "a plain function, or a thread, cannot ask: make the tool `async def`, and await it"
        ) from None
    return questions.answer_to(payload, message)


def is_interrupt(error: BaseException) -> bool:
    """Whether a tool ended by its question and by nothing else; a task group may wrap it."""
    if isinstance(error, BaseExceptionGroup):
        return all(
            is_interrupt(one) or isinstance(one, asyncio.CancelledError) for one in error.exceptions
        ) and any(is_interrupt(one) for one in error.exceptions)
    return isinstance(error, Interrupted)
