"""The tool `action_state`: the model reads with it what became of a call that was accepted."""

from __future__ import annotations

from typing import Any, Final

from ...ledger import Effect
from .tool_decorator import tool

ACTION_STATE: Final = "action_state"


@tool(effect=Effect.READ, name=ACTION_STATE, summary="Ask how {action} stands")
async def action_state(action: str) -> dict[str, Any]:
    """Say how an accepted action stands: pending, ok, error, unknown, or undone.

    Give the `action` that the call was answered with.
    """
    raise NotImplementedError  # a worker registers an activity of its own, which has the ledger
