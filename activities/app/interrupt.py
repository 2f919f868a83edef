"""Asking a person midway: what `ToolContext.interrupt` does inside a tool.

An answer that is there is returned. Without one the attempt has to end: `Interrupted` is raised
through the tool, which `except Exception` does not catch, and the guard writes the question
down and hands the call's row back. The call is made again with the answer, from the top.
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
    """Ends an attempt that asks. For the guard alone: let it through.

    No `Exception`, as `asyncio.CancelledError` is none, and for the same reason.
    """


@dataclass(frozen=True)
class OpenQuestion:
    """A question that the running attempt has no answer to."""

    index: int
    """Which question of the call it is; the first is 0."""
    message: str
    payload: str
    """JSON text."""


class AttemptQuestions:
    """The questions of one attempt at one call.

    Args:
        asked: What earlier attempts have asked, in order, with the answers.
    """

    def __init__(self, asked: Sequence[Question] = ()) -> None:
        self._asked = asked
        self._count = 0
        self.open_question: OpenQuestion | None = None
        """What ends this attempt. One question at a time: nothing is answered after it."""

    def ask(self, payload: Any, message: str) -> Coroutine[Any, Any, Any]:
        """Return what waits for the answer; questions count in the order of these calls.

        Raises:
            UnrepresentableValue: The payload has no JSON form.
        """
        open_question = OpenQuestion(self._count, scrub(message, limit=_MESSAGE), dumps(payload))
        self._count += 1
        return self._answer(open_question)

    async def _answer(self, open_question: OpenQuestion) -> Any:
        if self.open_question is None:
            if open_question.index < len(self._asked):
                found = self._asked[open_question.index]
                # An answer counts for what its person saw, and for nothing else.
                if found.answer is not None and found.asks(
                    open_question.message, open_question.payload
                ):
                    return parse(found.answer)
            self.open_question = open_question
        raise Interrupted


def interrupt_call(
    questions: AttemptQuestions | None, payload: Any, message: str
) -> Coroutine[Any, Any, Any]:
    """Ask, where somebody can be asked; see `ToolContext.interrupt`."""
    if questions is None:
        raise CannotInterrupt(
            "nobody can be asked here: only a tool of an agent's run can ask, not one that is "
            "called by itself, that runs in a process of its own, or an activity of another "
            "workflow"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise CannotInterrupt(
            "a plain function, or a thread, cannot ask: make the tool `async def`, and await it"
        ) from None
    return questions.ask(payload, message)


def is_interrupt(error: BaseException) -> bool:
    """Whether a tool ended with its question and nothing else; a task group wraps it."""
    if isinstance(error, BaseExceptionGroup):
        return all(
            is_interrupt(one) or isinstance(one, asyncio.CancelledError) for one in error.exceptions
        ) and any(is_interrupt(one) for one in error.exceptions)
    return isinstance(error, Interrupted)
