"""What Temporal's list shows of a workflow of ours, by search attributes: one upsert a change.

Each upsert is an event, and is billed. So there is one when the workflow begins, with its agent and
its conversation, and one whenever another state must be shown. A workflow whose server lacks the
attributes makes none: an upsert of one that is not registered would fail its task for ever.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from temporalio import workflow
from temporalio.common import SearchAttributeUpdate

from ..activities.contract.search_attributes import (
    AGENT,
    MOST_CHARACTERS,
    STATE,
    THREAD,
    Listing,
    RunState,
)
from ..canonical import scrub
from ..ledger.undo_rules import UndoReport
from .progress import Progress


class ListState:
    """Keeps the search attributes of one workflow true.

    Args:
        is_run: The calls that the workflow shows are its own: commands name them by its id.
    """

    def __init__(self, *, is_run: bool = False) -> None:
        self.is_run = is_run
        self.stage: RunState = "running"
        """What the workflow does, or how it has ended. While it runs, its calls say more."""
        self._listing: Listing | None = None
        self._shown: RunState | None = None

    def begin(self, listing: Listing | None) -> None:
        """Show the workflow from now on; None: its server lacks the attributes."""
        self._listing = listing

    def end(self, progress: Progress, report: UndoReport | None, *, refused: bool = False) -> None:
        """Show how the workflow ends.

        Args:
            progress: Its calls.
            report: What was undone; None if nothing had to be.
            refused: The ledger let it go no further.
        """
        if report is not None:
            partly = report.state == "partly compensated"
            self.stage = "partly compensated" if partly else "done"
        elif _call_state(progress) == "unknown":
            self.stage = "unknown"
        else:
            self.stage = "refused" if refused else "done"
        self.show(progress)

    def show(self, progress: Progress) -> None:
        """Show the state, if it has changed."""
        state = _call_state(progress) if self.stage == "running" else self.stage
        if self._listing is None or state == self._shown:
            return
        changed: list[SearchAttributeUpdate[str]] = [STATE.value_set(state)]
        if self._shown is None:
            changed.append(AGENT.value_set(_value(self._listing.agent)))
            if self._listing.thread_id:
                changed.append(THREAD.value_set(_value(self._listing.thread_id)))
        self._shown = state
        workflow.upsert_search_attributes(changed)


list_state: Final[ContextVar[ListState]] = ContextVar("list_state")
"""Of the workflow, in all that its main coroutine begins."""


def show(progress: Progress) -> None:
    """Show the progress of the workflow, in its details and in the list."""
    listed = list_state.get(None)
    is_run = listed is not None and listed.is_run
    workflow.set_current_details(progress.markdown(workflow.info().workflow_id if is_run else ""))
    if listed is not None:
        listed.show(progress)


def _call_state(progress: Progress) -> RunState:
    """Return what the calls of a workflow that goes on say of it: what a person must do first."""
    states = {call.state for call in progress.calls}
    if "awaiting_approval" in states:
        return "waits for approval"
    if "awaiting_answer" in states:
        return "waits for an answer"
    return "unknown" if "unknown" in states else "running"


def _value(text: str) -> str:
    return scrub(text, limit=MOST_CHARACTERS)
