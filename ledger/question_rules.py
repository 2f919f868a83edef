"""What a call asks a person midway (`interrupt`), and which answer counts for it.

An answer counts for what its person read: for the same words, and a payload of the same meaning.

    the call raises                             and
    ---------------                             ---
    a question for the first time               waits
    the same again, carried out once more:
      it waits                                  waits
      it is answered                            gets that answer
      it has expired                            is not carried out
    another question than before                raises it, and later ones are raised again, too
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from ..canonical import canonical, parse
from ..identity import ActionKey, Position, RunKey, action_key
from .action_records import Outcome

EXPIRED: Final = "AnswerExpired"
"""The kind of the error with which a call ends whose question was not answered in time."""


@dataclass(frozen=True)
class Question:
    """A row of ``agent_questions``; times are by the database's clock."""

    key: ActionKey
    """The action key of the call."""
    number: int
    """Counts the questions of this call, from one."""
    run_key: RunKey
    """The run that makes the call."""
    position: Position
    """Where in the run the call stands."""
    thread_id: str
    """The conversation."""
    tool: str
    """The name of the tool."""
    message: str
    """What the person reads."""
    payload: str
    """JSON text: what the tool adds for the person, or their program."""
    raised_at: datetime
    """When the call raised it."""
    expires_at: datetime | None
    """Until when it may be answered; None is for ever."""
    replaced_at: datetime | None
    """When the call raised another question in its place."""
    answer: str | None
    """JSON text; None while it waits."""
    answered_by: str | None
    """The person."""
    answered_at: datetime | None
    """When they answered."""
    workflow_id: str
    """Of its run: where an answer goes."""
    now: datetime
    """The database's clock when the row was read."""
    withdrawn_at: datetime | None = None
    """When its run was forked to before the call, which it does not make any more."""
    run_over: bool = False
    """Whether its run acts no more; `QuestionLedger.list` says so."""

    @property
    def state(self) -> Literal["waiting", "answered", "expired", "replaced", "withdrawn"]:
        """In one word; nobody has to answer one that is ``withdrawn``."""
        if self.replaced_at is not None:
            return "replaced"
        if self.answer is not None:
            return "answered"
        if self.withdrawn_at is not None or self.run_over:
            return "withdrawn"
        over = self.expires_at is not None and self.expires_at <= self.now
        return "expired" if over else "waiting"

    @property
    def seconds_left(self) -> float | None:
        """How long it may still be answered; None is for ever."""
        if self.expires_at is None:
            return None
        return max((self.expires_at - self.now).total_seconds(), 0.0)

    def is_same(self, message: str, payload: str) -> bool:
        """Whether this is the same question: the same words, and a payload of the same meaning."""
        same = self.message == message
        return same and canonical(parse(self.payload)) == canonical(parse(payload))

    @property
    def not_executed(self) -> Outcome:
        """How a call ends whose question has expired."""
        return Outcome.error(
            kind=EXPIRED,
            message=f"not executed: nobody answered its question until {self.expires_at}",
            effect_possible=False,
        )


@dataclass(frozen=True)
class QuestionRequest:
    """A question that a call raises."""

    run_key: RunKey
    """The run that makes the call."""
    position: Position
    """Where in the run the call stands."""
    thread_id: str
    """The conversation."""
    tool: str
    """The name of the tool."""
    index: int
    """Which question of the call it is, as the tool is carried out; the first is 0."""
    message: str
    """What the person reads."""
    payload: str
    """JSON text: what the tool adds for the person, or their program."""
    expires_after: timedelta | None
    """None: it waits for ever."""

    @property
    def key(self) -> ActionKey:
        """The action key of the call."""
        return action_key(self.run_key, self.position)


def raised_before(questions: Sequence[Question], request: QuestionRequest) -> Question | None:
    """Return the question that the call raised here before, if it is the same one.

    Args:
        questions: Those that the call has raised and not replaced, in order.
        request: The one that it raises now.
    """
    if request.index >= len(questions):
        return None
    found = questions[request.index]
    return found if found.is_same(request.message, request.payload) else None
