"""Waits in a workflow for a person's decision about a call; no worker slot is taken meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from temporalio import workflow

from ..activities.contract.approvals import ApprovalState
from ..identity import Position
from ..shown import markdown_line
from .activity_calls import raise_if_cancelled

CHECK_AGAIN: Final = 3_600.0
"""Seconds after which a run that waits for a person reads the ledger once more: what brings the
decision or the answer may be lost. Twice as long each time, since each look stays in the history,
of each call that waits."""
CHECK_DAILY: Final = 86_400.0
"""The longest time between two looks."""


async def wait_for_approval(
    look: Callable[[], Awaitable[ApprovalState]],
    *,
    at: Position,
    tool: str,
    decided: set[Position],
    on_wait: Callable[[], None] = lambda: None,
) -> ApprovalState:
    """Wait until a call is approved or not; return its state.

    Args:
        look: Asks the ledger, and requests the approval.
        at: The call's position.
        tool: Its tool, for the Temporal UI.
        decided: Calls that were decided about since the ledger was read; what is read is taken out.
        on_wait: Called each time before it waits.
    """
    look_in = CHECK_AGAIN
    while True:
        raise_if_cancelled()
        approval = await look()
        if approval == ApprovalState():
            continue  # an operator's
        if approval.wait_seconds is None:
            return approval
        on_wait()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: at in decided,
                timeout=min(approval.wait_seconds, look_in),
                timeout_summary=markdown_line(f"{at} {tool} waits for a person"),
            )
        look_in = min(2 * look_in, CHECK_DAILY)
        decided.discard(at)
