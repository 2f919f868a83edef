"""The activity of `action_state`, the tool that returns the state of an accepted action.

Every agent with a detached tool has this tool too. It reads the ledger, and returns only actions
of the run's own conversation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.common import RawValue

from ...canonical import parse
from ...errors import LedgerUnavailable, NotAttempted, ToolRefused
from ...identity import ActionKey
from ...ledger import Action, ActionLedger
from ..app.action_state_tool import ACTION_STATE
from ..app.tool_context import current_call
from ..contract.encoding import raw_text
from ..replies import call_reply


def action_state_activity(ledger: ActionLedger) -> Callable[[RawValue], Any]:
    """Return the activity. It runs under the guard, as every tool's activity does."""

    @activity.defn(name=ACTION_STATE)
    async def run(arguments: RawValue) -> dict[str, Any]:
        key = parse(raw_text(arguments))["action"]
        try:
            found = await ledger.get(ActionKey(key)) if key.isprintable() else None
            if found is None or not await _is_of_conversation(ledger, found):
                raise ToolRefused(f"this conversation has no action {key[:200]!r}")
        except LedgerUnavailable as err:
            raise NotAttempted(err.message) from err
        return call_reply.action_state(found)

    return run


async def _is_of_conversation(ledger: ActionLedger, found: Action) -> bool:
    """Whether the action is of the calling run, or of its conversation."""
    calling = current_call.get().run_key
    if found.run_key == calling:
        return True
    run = await ledger.runs.get(calling)
    return run is not None and run.thread_id is not None and run.thread_id == found.thread_id
