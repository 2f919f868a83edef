"""`ToolContext`: what a tool may know of the call that it carries out."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ...identity import ActionKey, Position, RunKey
from .interrupt import AttemptQuestions, interrupt_call


@dataclass(frozen=True)
class UndoneAction:
    """The action that a call undoes, as the ledger has it."""

    action_key: ActionKey
    tool: str
    arguments: dict[str, Any]
    """As JSON has them."""
    result: Any
    """What it returned, as JSON has it; None where that could not be kept."""
    idempotency_key: str | None
    """What the downstream system was given."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of the call that it carries out."""

    idempotency_key: str
    """Hand it to the downstream system. The same on every attempt of this action."""
    action_key: ActionKey
    run_key: RunKey
    position: Position
    tool: str
    taken_over: bool
    """An earlier attempt may have called already, with the same key."""
    seconds_left: float | None = None
    """What this attempt had left when the call began: the time-out for a client. None is no
    limit."""
    undoes: UndoneAction | None = None
    """What the call undoes, where it undoes another."""
    questions: AttemptQuestions | None = field(default=None, repr=False, compare=False)
    """For `interrupt`; None where nobody can be asked."""

    def interrupt(self, payload: Any, *, message: str = "") -> Coroutine[Any, Any, Any]:
        """Ask a person, and return the answer: ``answer = await ctx.interrupt({"cents": 900})``.

        Without an answer this attempt of the call ends here. Nothing failed: no try and no
        time of the call is used up, and no worker is held. Once the answer is there the tool is
        called again *from the top*, so what stands before this must be safe to repeat. Asked
        again with the same payload and message, it returns the answer; asked differently, it
        is another question. Several questions of a call are told apart by their order.

        It ends the tool by an exception that is no `Exception`; do not catch it.

        Args:
            payload: JSON data for whoever answers: what is asked, and about what. The answer
                counts for this payload only, so keep out of it what changes by itself.
            message: The question in words, 1,000 characters at most.

        Raises:
            CannotInterrupt: Outside an agent's run, in a plain function, or in another process.
            UnrepresentableValue: The payload has no JSON form.
        """
        return interrupt_call(self.questions, payload, message)


current_call: ContextVar[ToolContext] = ContextVar("commitline_call")
"""The guarded call that the running code belongs to."""
