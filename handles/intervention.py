"""`Intervention`: what a person is about to do; an application's ``authorize`` is asked about it.

It tells what would be carried out, and nothing that could still change in between: arguments that
a person edited, not those that were requested.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..identity import ActionKey, RunKey
from ..ledger import Action, Approval, Outcome, Question, UndoReport

Verb: TypeAlias = Literal[
    "approve", "reject", "answer", "settle", "reopen", "stop", "undo", "reset", "fork", "delete"
]


@dataclass(frozen=True)
class Intervention:
    """What a person wants to do to a call, to a run, or to a conversation."""

    verb: Verb
    """A stop that also undoes is asked about twice: as ``stop`` and as ``undo``."""
    target: str
    """The action key of the call, the run key, or the conversation's id (``delete``)."""
    run_key: RunKey | None = None
    """The run; of an action of the outbox too. None for ``delete``."""
    key: ActionKey | None = None
    """The call, where it is about one."""
    tool: str | None = None
    """The tool of that call."""
    args: str | None = None
    """Of that call, as JSON text: what would be carried out. Where a person edits arguments,
    these are the edited ones, as the tool will get them."""
    value: str | None = None
    """``answer``: JSON text of the answer."""
    outcome: Outcome | None = None
    """``settle``: what would be recorded."""
    step: int | None = None
    """``reset``, ``fork``: the model turn from which the run would go on."""
    about: Approval | Question | Action | UndoReport | None = None
    """What the ledger has of it: the approval, the question, the action that is settled or
    reopened, or what an undo would take back."""


Authorize: TypeAlias = Callable[[str, Intervention], bool | Awaitable[bool]]
"""Says whether a person may do it. False, or what it raises, refuses."""


def about_call(
    verb: Verb,
    found: Approval | Question | Action,
    *,
    args: str | None = None,
    value: str | None = None,
    outcome: Outcome | None = None,
) -> Intervention:
    """Return what a person wants to do to a call.

    Args:
        verb: What.
        found: What the ledger has of the call.
        args: What would be carried out; None for a question's call.
        value: The answer.
        outcome: What would be recorded.
    """
    return Intervention(
        verb,
        found.key,
        run_key=found.run_key,
        key=found.key,
        tool=found.tool,
        args=args,
        value=value,
        outcome=outcome,
        about=found,
    )
