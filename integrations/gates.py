"""The calls of one foreign workflow that a person may have to approve.

A decision is committed by the client, and this workflow is told by a signal to look. Only arguments
that a person has edited come by an update: the tool's code, which a worker has, checks them.
Both handlers have names of our own, so that they are no handler of the workflow's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
from ..workflows.action_headers import this_run
from ..workflows.run_end import run_failure

Record: TypeAlias = Callable[[Decide], Awaitable[RawValue]]
"""Has a decision checked and recorded, where the tool's workers are."""


class Gates:
    """What persons say to one workflow."""

    def __init__(self) -> None:
        self.decided: set[Position] = set()
        """Calls that were decided about since the ledger was read."""
        self._recorders: dict[Position, Record] = {}
        self._passing_on: set[asyncio.Task[None]] = set()
        self._children: dict[Position, workflow.ChildWorkflowHandle[Any, Any]] = {}

    def listen(self) -> None:
        """Take decisions from now on."""
        workflow.set_signal_handler(FOREIGN_WORD_GIVEN, self._word_given)
        workflow.set_update_handler(FOREIGN_DECISION, self._decide, validator=_check)

    def waits(self, at: Position, record: Record) -> None:
        """Take decisions about a call."""
        self._recorders[at] = record

    def belongs_to(self, at: Position, child: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """Have what is said of the calls below a position reach the child that makes them."""
        self._children[at] = child
        child.add_done_callback(lambda _: self._children.pop(at, None))

    def _word_given(self, *sent: Any) -> None:
        """Look at a call once more. Anybody may send a signal, so what it says counts for nothing.

        An error here would fail the workflow task for ever: what cannot be read is dropped.
        """
        try:
            given = from_plain(WordGiven, sent[0] if sent else None)
        except ValueError:
            return
        self.decided.add(given.position)
        for at, child in self._children.items():
            if given.position.startswith(f"{at}."):
                self._passing_on.add(passed := asyncio.create_task(_pass_on(child, sent[0])))
                passed.add_done_callback(self._passing_on.discard)

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


async def _pass_on(child: workflow.ChildWorkflowHandle[Any, Any], said: Any) -> None:
    """Tell a child; one that has ended needs no word."""
    with suppress(ApplicationError):
        await child.signal(FOREIGN_WORD_GIVEN, said)


def _check(raw: RawValue) -> None:
    """Refuse, without an event in history, what surely does not count."""
    said = unpack(Decide, raw)
    if said.run_key != this_run():
        raise ApplicationError(
            f"it is about a call of {said.run_key}, and this is the workflow of {this_run()}",
            type="ApprovalRefused",
            non_retryable=True,
        )
