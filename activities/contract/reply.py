"""`Reply`: the answer to one call, as it goes through Temporal to the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...identity import ActionKey
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
    recorded: bool = False
    """It travels without its key, which is the call's own: run and position give it."""

    @property
    def without_key(self) -> Reply:
        """It as it travels, where the row that answers is the call's own."""
        return self if self.action_key is None else replace(self, action_key=None, recorded=True)

    def with_key(self, own: ActionKey) -> Reply:
        """Return it as it arrives.

        Args:
            own: The key of the call.
        """
        return replace(self, action_key=own, recorded=False) if self.recorded else self
