"""What a call asks a person midway, and which answer counts for it.

asked                                        the call
-----                                        --------
for the first time                           waits
the same, carried out again: waiting         waits
answered                                   gets that answer
expired                                    is not carried out
differently than it was asked before         asks anew, and all that it asked after that;
an answer counts for what its person saw
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from ..canonical import canonical, parse
from ..identity import ActionKey, Position, RunKey, action_key
from .records import Outcome

EXPIRED: Final = "AnswerExpired"
"""The kind of the error that a call ends with whose question nobody answered in time."""


@dataclass(frozen=True)
class Question:
    """A row of ``agent_questions``; times are by the database's clock."""

    key: ActionKey
    """The action key of the call."""
    number: int
    """Counts what this call has asked, from one."""
    run_key: RunKey
    position: Position
    thread_id: str
    tool: str
    message: str
    payload: str
    """JSON text: what the tool hands to whoever answers."""
    asked_at: datetime
    expires_at: datetime | None
    replaced_at: datetime | None
    """When the call asked something else in its place."""
    answer: str | None
    """JSON text."""
    answered_by: str | None
    answered_at: datetime | None
    workflow_id: str
    """Of its run."""
    now: datetime
    """The database's clock when the row was read."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Question:
        """Read a row as psycopg gives it, which may have columns of a later release."""
        return cls(**{name: row[name] for name in _COLUMNS})

    @property
    def state(self) -> Literal["waiting", "answered", "expired", "replaced"]:
        """In one word."""
        if self.replaced_at is not None:
            return "replaced"
        if self.answer is not None:
            return "answered"
        over = self.expires_at is not None and self.expires_at <= self.now
        return "expired" if over else "waiting"

    @property
    def seconds_left(self) -> float | None:
        """How long it may still be answered; None is for ever."""
        if self.expires_at is None:
            return None
        return max((self.expires_at - self.now).total_seconds(), 0.0)

    def asks(self, message: str, payload: str) -> bool:
        """Whether this is what is asked now: the same words, and the same payload by meaning."""
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


_COLUMNS = tuple(found.name for found in fields(Question))


@dataclass(frozen=True)
class QuestionRequest:
    """What is asked."""

    run_key: RunKey
    position: Position
    thread_id: str
    tool: str
    index: int
    """Which question of the call it is, as the tool is carried out; the first is 0."""
    message: str
    payload: str
    """JSON text."""
    expires_after: timedelta | None
    """None: it waits for ever."""

    @property
    def key(self) -> ActionKey:
        """The action key of the call."""
        return action_key(self.run_key, self.position)


def standing(asked: Sequence[Question], request: QuestionRequest) -> Question | None:
    """Return what was asked before, if it is what is asked now.

    Args:
        asked: What the call has asked and not asked differently since, in order.
        request: What it asks now.
    """
    if request.index >= len(asked):
        return None
    found = asked[request.index]
    return found if found.asks(request.message, request.payload) else None
