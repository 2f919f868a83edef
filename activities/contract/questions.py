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
    """From a run to `CHECK_QUESTION`: was the question answered, or has it expired?"""

    run_key: RunKey
    position: Position
    number: int
    """Of the question."""
    content_limit: int = MAX_CONTENT
    """Characters of a result that the model reads."""


@dataclass(frozen=True)
class QuestionState:
    """From `CHECK_QUESTION` to the run: if no field is set, the call starts again."""

    reply: Reply | None = None
    """The call has ended, with this reply."""
    wait_seconds: float | None = None
    """The call waits, for this time at most."""


@dataclass(frozen=True)
class Answer:
    """From a run to `ANSWER`: a person's answer to a question."""

    run_key: RunKey
    position: Position
    number: int
    """The number of the question that the person saw."""
    by: str
    """Who answered."""
    answer: str = "null"
    """JSON text; not ``null``."""
