"""The calls of one foreign workflow that a person may have to approve.

A decision is committed by the client, and this workflow is told by a signal to look. Only arguments
that a person has edited come by an update: the tool's code, which a worker has, checks them. Both
go to the workflow that waits, as the approval's row names it: a child gets its own.
Both handlers have names of our own, so that they are no handler of the workflow's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

from ..activities.contract.approvals import (
    FOREIGN_DECISION,
    FOREIGN_WORD_GIVEN,
    Decide,
    WordGiven,
)
from ..activities.contract.encoding import from_plain, unpack
from ..identity import Position
from ..workflows.run_end import run_failure
from .parent_call import place_of

Record: TypeAlias = Callable[[Decide], Awaitable[RawValue]]
"""Has a decision checked and recorded, where the tool's workers are."""


class Gates:
    """What persons say to one workflow."""

    def __init__(self) -> None:
        self.decided: set[Position] = set()
        """Calls that were decided about since the ledger was read."""
        self._recorders: dict[Position, Record] = {}

    def listen(self) -> None:
        """Take decisions from now on."""
        workflow.set_signal_handler(FOREIGN_WORD_GIVEN, self._word_given)
        workflow.set_update_handler(FOREIGN_DECISION, self._decide, validator=_check)

    def waits(self, at: Position, record: Record) -> None:
        """Take decisions about a call."""
        self._recorders[at] = record

    def _word_given(self, *sent: Any) -> None:
        """Look at a call once more. Anybody may send a signal, so what it says counts for nothing.

        An error here would fail the workflow task for ever: what cannot be read is dropped.
        """
        try:
            given = from_plain(WordGiven, sent[0] if sent else None)
        except ValueError:
            return
        self.decided.add(given.position)

    async def _decide(self, raw: RawValue) -> RawValue:
        """Record a decision. Safe to repeat: the first decision counts."""
        said = unpack(Decide, raw)
        record = self._recorders.get(said.position)
        if record is None:
            raise ApplicationError(
                f"{said.position} is not reached: decide again when it waits",
                type="CallNotReached",
                non_retryable=True,
            )
        try:
            decision = await record(said)
        except ActivityError as err:
            raise run_failure(err) from err
        self.decided.add(said.position)
        return decision


def _check(raw: RawValue) -> None:
    """Refuse, without an event in history, what surely does not count."""
    said, own = unpack(Decide, raw), place_of(Position(""))[0]
    if said.run_key != own:
        raise ApplicationError(
            f"it is about a call of {said.run_key}, and this workflow makes those of {own}",
            type="ApprovalRefused",
            non_retryable=True,
        )
