"""The job of `turns.py`, which every kind of agent carries out: charge orders, turn after turn.

A prompt says how large it is, so that one worker of each kind serves jobs of every size, and a
model knows from the prompt and the turn alone what to answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

INSTRUCTIONS: Final = "You charge orders, turn by turn, and say when you are done."
DONE: Final = "Every open order is charged."


@dataclass(frozen=True)
class Job:
    """A number of turns, each of which makes a number of calls side by side."""

    turns: int
    calls: int = 1

    @property
    def prompt(self) -> str:
        """What the agent is asked to do."""
        return f"Charge every open order: {self.turns} x {self.calls}"

    @classmethod
    def of(cls, prompt: str) -> Job:
        """Read a job from its prompt."""
        turns, calls = prompt.rpartition(": ")[2].split(" x ")
        return cls(int(turns), int(calls))

    def arguments(self, turn: int) -> list[dict[str, Any]]:
        """Return the arguments of each call that the model makes at a turn; none: it is done."""
        if turn == self.turns:
            return []
        return [
            {"order_id": f"order-{turn}-{index}", "amount_cents": 4999}
            for index in range(self.calls)
        ]


def receipt_of(order_id: str) -> dict[str, Any]:
    """Return what the tool answers."""
    return {"charge_id": f"ch_{order_id}", "state": "succeeded"}
