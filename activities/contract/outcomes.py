"""How a call ended that its own attempt could not record, on its way through the workflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ...identity import ActionKey
from ...ledger.action_records import Outcome, OutcomeKind
from ...ledger.claim_results import Dispatched, HeldClaim
from .sizes import MAX_CONTENT


@dataclass(frozen=True)
class Unrecorded:
    """How a call ended, on its way into the ledger by way of the workflow's history."""

    key: str
    token: str
    domain_key: str | None
    outcome: OutcomeKind | None = None
    """``ok`` or ``error``; None where it is unknown how it ended."""
    result: str = "null"
    effect_possible: bool = True
    reason: str = ""
    """Why it is unknown."""
    over: bool = True
    """Whether the tool has ended, where it is unknown how."""
    failures: int | None = None
    """Tries that the tool has failed, where it is unknown how the last one ended."""
    content_limit: int = MAX_CONTENT
    """Characters of the result that the model reads."""
    state_changes: str | None = None
    """JSON text of what it changed in the conversation's state."""

    @property
    def held(self) -> HeldClaim:
        """By which it is recorded."""
        return HeldClaim(ActionKey(self.key), UUID(self.token), self.domain_key)

    @property
    def known(self) -> Outcome | None:
        """The outcome; None where it is unknown."""
        if self.outcome is None:
            return None
        return Outcome(
            self.outcome,
            self.result,
            effect_possible=self.effect_possible,
            state_changes=self.state_changes,
        )

    @classmethod
    def of(cls, claim: Dispatched, outcome: Outcome) -> Unrecorded:
        """Hand over an outcome."""
        return cls(
            claim.key,
            str(claim.token),
            claim.domain_key,
            outcome.kind,
            outcome.result,
            outcome.effect_possible,
            state_changes=outcome.state_changes,
        )

    @classmethod
    def unknown(
        cls, claim: Dispatched, reason: str, *, over: bool, failures: int | None
    ) -> Unrecorded:
        """Hand over that it is unknown."""
        return cls(
            claim.key,
            str(claim.token),
            claim.domain_key,
            reason=reason,
            over=over,
            failures=failures,
        )


RECORD_OUTCOME: Final = "commitline.record_outcome"


SETTLE_ENDED: Final = "commitline.settle_ended"


@dataclass(frozen=True)
class SettleEnded:
    """A call whose activity an operator ended."""

    key: ActionKey
    content_limit: int = MAX_CONTENT
    """Characters of a result that the model reads."""
