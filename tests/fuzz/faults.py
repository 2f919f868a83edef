"""What may go wrong with an attempt at a call, how often, and how it ends without a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from commitline.ledger import Question


class Died(Exception):
    """The worker of the attempt is dead, or Temporal takes it for dead."""


class Again(Exception):
    """The attempt is over; Temporal starts another one."""


class Waits(Exception):
    """The call has put a question to a person; another attempt follows once that is answered."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.key)
        self.question = question


class Cancelled(Exception):
    """The run was stopped, and the call with it."""


@dataclass(frozen=True)
class Faults:
    """How often an attempt meets which fault, at each point where it may."""

    death: float = 0.025
    taken_for_dead: float = 0.1
    """How often an attempt is taken for dead while it goes on."""
    pause: float = 0.3
    """How often it pauses for a moment, and a tenth as often for long."""
    wait: float = 30
    """Ledger calls, at most, before another attempt where time has to pass first."""
    lost_answer: float = 0.12
    no_connection: float = 0.05
    unordered: float = 0.2
    """How often a run's attempt is a local one, which has no place among the others."""
    goes_on: float = 0.3
    """Of the tools that do not answer: how many go on, and end late."""
    lives_on: float = 0.7
    """How often a sub-agent's workflow goes on that was stopped, or replaced by another one."""


NO_FAULTS: Final = Faults(0, 0, 0, 0, 0, 0, 0, 0, 0)
