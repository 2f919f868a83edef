"""What passes between a run whose call asks midway and the activities that look and answer."""

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
    """A question that may have been answered, or have expired."""

    run_key: RunKey
    position: Position
    number: int
    content_limit: int = MAX_CONTENT
    """Characters of a result that the model reads."""


@dataclass(frozen=True)
class QuestionState:
    """What became of it. Neither: the call is made again."""

    reply: Reply | None = None
    """It is not carried out."""
    wait_seconds: float | None = None
    """It waits, so long at most."""


@dataclass(frozen=True)
class Answer:
    """A person's answer."""

    run_key: RunKey
    position: Position
    number: int
    """Of the question, as the person saw it."""
    by: str
    answer: str = "null"
    """JSON text; not ``null``."""
