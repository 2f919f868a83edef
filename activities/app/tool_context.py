"""`ToolContext`: what a tool may know of the call that it carries out, and how it asks a person."""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ...errors import NoCurrentCall
from ...identity import ActionKey, Position, RunKey
from .interrupt import AttemptQuestions, ask_question


@dataclass(frozen=True)
class UndoneAction:
    """The action that a call undoes, as the ledger has it."""

    action_key: ActionKey
    """Its row in the ledger."""
    tool: str
    """The tool that did it."""
    arguments: dict[str, Any]
    """Its effective arguments, as JSON has them."""
    result: Any
    """What it returned, as JSON has it; None where that could not be kept."""
    idempotency_key: str | None
    """The key that the downstream system got; None if it got none."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know of the call that it carries out."""

    idempotency_key: str
    """Hand it to the downstream system. It is the same on every attempt of this action."""
    action_key: ActionKey
    """The row of the action in the ledger."""
    run_key: RunKey
    """The run that the call belongs to."""
    position: Position
    """The place of the call in its run: ``<step>.<call>``."""
    tool: str
    """The name of the tool."""
    taken_over: bool
    """Whether an earlier attempt may have called already, with the same key."""
    seconds_left: float | None = None
    """Seconds that this attempt had left when the call began: the time-out for an HTTP client.
    None is no limit."""
    undoes: UndoneAction | None = None
    """The action that the call undoes; None if it undoes none."""
    questions: AttemptQuestions | None = field(default=None, repr=False, compare=False)
    """For `interrupt` alone; None where no person can be asked."""

    def interrupt(self, payload: Any, *, message: str = "") -> Coroutine[Any, Any, Any]:
        """Ask a person, and return the answer: ``answer = await ctx.interrupt({"cents": 900})``.

        If there is no answer yet, this attempt of the call ends here. Nothing failed: no try and
        no time of the call is used up, and no worker is held. When a person has answered, the
        tool is called again *from the top*, so the code before this must be safe to repeat. With
        the same payload and message it then returns the answer; with others it is a new question.
        Several questions of one call are told apart by their order.

        It ends the tool by an exception that is no `Exception`; do not catch it.

        Args:
            payload: JSON data for the person who answers: the question, and what it is about. The
                answer counts for this payload only, so leave out what changes by itself.
            message: The question in words, 1,000 characters at most.

        Raises:
            CannotInterrupt: Outside an agent's run, in a plain function, or in another process.
            UnrepresentableValue: The payload has no JSON form.
        """
        return ask_question(self.questions, payload, message)


current_call: ContextVar[ToolContext] = ContextVar("commitline_call")
"""The guarded call that the running code belongs to."""


def current() -> ToolContext:
    """Return what a tool or a guarded activity may know of the call that it carries out.

    Works in coroutines, in the threads of plain functions, and in whatever they call.

    Raises:
        NoCurrentCall: The running code is not inside a guarded call.
    """
    call = current_call.get(None)
    if call is None:
        raise NoCurrentCall("commitline.current() is called outside of a guarded call")
    return call


def note_work_beside_question() -> None:
    """Note that the running tool was at work on something else as its question ended it."""
    call = current_call.get(None)
    if call is not None and call.questions is not None:
        call.questions.worked_beside = True
