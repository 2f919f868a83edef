"""What passes between a run and the activities of a question that a tool asked midway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...identity import Position, RunKey
from .reply import Reply
from .sizes import MAX_CONTENT

CHECK_QUESTION: Final = "commitline.check_question"
ANSWER: Final = "commitline.answer"


@dataclass(frozen=True)
class CheckQuestion:
    """Find out whether a question was answered, or has expired."""

    run_key: RunKey
    position: Position
    number: int
    content_limit: int = MAX_CONTENT
    """Characters of a result that the model reads."""


@dataclass(frozen=True)
class QuestionState:
    """The state of a question. If no field is set, the call starts again."""

    reply: Reply | None = None
    """The call has ended, with this reply."""
    wait_seconds: float | None = None
    """The call waits, for this time at most."""


@dataclass(frozen=True)
class Answer:
    """A person's answer to a question."""

    run_key: RunKey
    position: Position
    number: int
    """The number of the question that the person saw."""
    by: str
    answer: str = "null"
    """JSON text; not ``null``."""
