"""`Reply`: the answer to one call, as it goes through Temporal to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .conversation import OutcomeStatus
from .outcomes import Unrecorded


@dataclass(frozen=True)
class CallQuestion:
    """The question that ended an attempt: the run waits for its answer and calls again."""

    number: int
    """Which question of the call it is; the first is 1."""
    message: str
    """The question in words."""
    wait_seconds: float
    """How long at most; zero where the answer is there."""


@dataclass(frozen=True)
class Reply:
    """The answer to one call, as it goes through Temporal to the model."""

    status: OutcomeStatus
    """Whether it happened, did not, or may have."""
    content: Any
    """JSON data."""
    action_key: str | None = None
    """The row that answers for it; None where it has none."""
    existing: bool = False
    """Another action had done it before; this one did not do it again."""
    effect_possible: bool = True
    """Whether the outside world may have changed."""
    accepted: bool = False
    """It is not done yet: the relay carries it out."""
    partial: bool = False
    """The result is too large to travel: the content says how it begins."""
    unrecorded: Unrecorded | None = None
    """How the call ended, where the ledger did not answer: the run records it before it goes on,
    and the model reads what *stands*."""
    changes: dict[str, Any] | None = None
    """What it changed in the state, as `Changes.to_data` has it; None for a receipt."""
    judge_again: bool = False
    """Nothing was called: the tool has changed since the call's arguments were approved, or passed
    without an approval. The run has that judged anew, and calls again."""
    question: CallQuestion | None = None
    """What the call asks a person. The call is not over: it is made again with the answer."""
